"""``python -m edge_tr.cli``: the command line where ``edge-tr`` is not on the path."""

from __future__ import annotations

import sys

from edge_tr.cli import main

sys.exit(main())
