"""How many cores of this machine have nothing to do, lately and at this moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic, process_time, sleep

_STAT = Path("/proc/stat")
_LOAD = Path("/proc/loadavg")

QUIET = 0.3
"""Cores that other programs use at most where a machine is quiet."""

_LOOKS = 6
_PAUSE_S = 0.001
"""A program that computes is seen at each of so many looks, so long apart; what wakes now and then
is not."""


class IdleCores:
    """Counts idle cores between two calls, where the system tells (Linux)."""

    def __init__(self) -> None:
        self._before = _idle_s(), monotonic()

    def __call__(self) -> float | None:
        """Cores that were idle since the last call, on average; None where that is not known."""
        before, then = self._before
        self._before = now_s, now = _idle_s(), monotonic()
        if now_s is None or before is None or now <= then:
            return None
        return (now_s - before) / (now - then)


class BusyCores:
    """Counts cores that other programs used between two calls, where the system tells (Linux)."""

    def __init__(self) -> None:
        self._idle = IdleCores()
        self._before = process_time(), monotonic()

    def __call__(self) -> float | None:
        """Cores that others used since the last call, on average; None where that is not known."""
        idle, (own_s, then) = self._idle(), self._before
        self._before = process_time(), monotonic()
        if idle is None:
            return None
        own = (self._before[0] - own_s) / (self._before[1] - then)
        return max(0.0, (os.cpu_count() or 1) - idle - own)


def wait_until_quiet(patience_s: float, tell: Callable[[], object] = lambda: None) -> bool | None:
    """Wait for a second in which other programs do next to nothing.

    Parameters
    ----------
    patience_s : most seconds to wait, about.
    tell : called once where the first second was not quiet.

    Returns
    -------
    Whether there was one; None where that is not known.
    """
    others, stop, has_told = BusyCores(), monotonic() + patience_s, False
    while True:
        sleep(1.0)
        used = others()
        if used is None or used < QUIET or monotonic() > stop:
            return used if used is None else used < QUIET
        if not has_told:
            tell()
            has_told = True


def cores_now(wanted: int, own: int = 0) -> int | None:
    """Cores that no other program wants at this moment, 0 or more; None where the system does not
    tell (Linux does). Milliseconds where that is fewer than ``wanted``, else microseconds.

    Parameters
    ----------
    own : threads of this process that want one, the caller's left out.
    """
    n_cores, most = os.cpu_count() or 1, 0
    for look in range(_LOOKS):
        if look > 0:
            sleep(_PAUSE_S)
        try:
            n_running = int(_LOAD.read_text().split()[3].split("/")[0])
        except (OSError, ValueError, IndexError):
            return None
        most = max(most, n_cores - max(0, n_running - 1 - own))
        if most >= wanted:
            break
    return max(0, most)


def _idle_s() -> float | None:
    """Seconds that all cores together were idle since the start of the system."""
    try:
        fields = _STAT.read_text().split("\n", 1)[0].split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
