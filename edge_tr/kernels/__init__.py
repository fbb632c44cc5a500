"""Numba kernels: arrays in, arrays out.

Each file holds one call graph, since a cached kernel does not notice a change in another
file. No kernel reads a constant of another module, and none uses ``fastmath``.
"""

from __future__ import annotations

from numba import njit


def _can_cache() -> bool:
    try:
        njit(cache=True)(_can_cache)
    except RuntimeError:  # no directory can be written, as in a read-only container
        return False
    return True


CACHE = _can_cache()
"""Whether compiled kernels are kept on disk; else every process compiles them, in seconds."""
