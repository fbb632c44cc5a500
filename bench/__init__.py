"""Scripts of developers, ``python -m bench.NAME``, see README.md; users have ``edge-tr bench``."""

from edge_tr.drafts import compiled

compiled.compile_now()  # nothing is measured beside the compiler
