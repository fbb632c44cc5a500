"""Benchmarks: each one is ``python -m bench.<name>``; the last line of stdout is JSON."""
