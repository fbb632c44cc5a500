"""Scripts of developers, ``python -m bench.NAME``, see README.md; users have ``edge-tr bench``."""
