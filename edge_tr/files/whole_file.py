"""Files that appear under their name whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

STALE_S = 3600.0
"""Age in seconds at which a scratch file left by a killed process is removed."""


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside ``path``, then put it in its place; what was there stays until then.

    Scratch files that killed processes left for the same path are removed when an hour old.

    Parameters
    ----------
    path : its directory must exist.
    write : called with the open file.

    Raises
    ------
    OSError : it cannot be written; the older file is as it was and no scratch file remains.
    """
    prefix, suffix = f".{path.name}-", ".tmp"
    handle, name = tempfile.mkstemp(suffix, prefix, path.parent)
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            _clean(path.parent, prefix, suffix, os.fstat(stream.fileno()).st_mtime - STALE_S)
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _clean(directory: Path, prefix: str, suffix: str, before_s: float) -> None:
    """Remove what killed processes left before a time, given in seconds of the file system."""
    for path in directory.iterdir():
        if path.name.startswith(prefix) and path.name.endswith(suffix):
            with contextlib.suppress(OSError):  # another process may have removed it
                if path.stat().st_mtime < before_s:
                    path.unlink()
