"""edge_tr: a GGUF model answers faster on the machine it is on, with the same answer."""

from __future__ import annotations

__version__ = "0.1.0"
