"""One measurement at a time on a machine: two at once would see each other's time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import BinaryIO

from edge_tr.files.paths import cache_dir

_PATIENCE_S = 30.0
"""Seconds to wait for another measurement; it takes about four where the machine is idle."""

_POLL_S = 0.05


@contextmanager
def measuring_alone(
    patience_s: float = _PATIENCE_S, progress: Callable[[str], None] = lambda line: None
) -> Iterator[bool]:
    """Wait until nobody else measures, in this process or another; yields False where somebody
    still does after ``patience_s`` seconds, True where the file system has no locks."""
    stream = _open()
    if stream is None:
        yield True
        return
    with stream:
        stop, told = monotonic() + patience_s, False
        while not (is_alone := _take(stream)) and monotonic() < stop:
            if not told:
                progress("waiting for another program that measures decode steps")
                told = True
            sleep(_POLL_S)
        yield is_alone  # closing the file gives the lock back, as does the end of the process


def _open() -> BinaryIO | None:
    path = cache_dir() / "costs" / "measuring.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError:
        return None


def _take(stream: BinaryIO) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            stream.seek(0)
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True
