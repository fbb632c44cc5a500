"""Numba kernels: arrays in, arrays out.

Each file holds one call graph, since a cached kernel does not notice a change in another
file. No kernel reads a constant of another module, and none uses ``fastmath``.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from numba import config, njit
from numba.core import caching
from numba.misc.appdirs import AppDirs


def _keep_for_one_file(unpacked: Path) -> None:
    """Keep what is compiled in the user's cache, by the names of the sources.

    An application frozen into one file lies in another folder each time it starts. Numba compiles
    anew when the application's file has changed.
    """
    kind = "UserProvidedCacheLocator"
    locator = getattr(caching, kind, None) or getattr(caching, f"_{kind}")  # older Numba
    own = hashlib.sha256(sys.executable.encode()).hexdigest()[:16]
    config.CACHE_DIR = config.CACHE_DIR or str(Path(AppDirs("numba").user_cache_dir) / own)
    locator.get_suitable_cache_subpath = staticmethod(
        lambda source: str(Path(source).parent.relative_to(unpacked))
    )


if hasattr(sys, "_MEIPASS"):
    _keep_for_one_file(Path(sys._MEIPASS))


def _can_cache() -> bool:
    try:
        njit(cache=True)(_can_cache)
    except RuntimeError:  # no directory can be written, as in a read-only container
        return False
    return True


CACHE = _can_cache()
"""Whether compiled kernels are kept on disk; else every process compiles them, in seconds."""
