"""How many cores of this machine have nothing to do."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic

_STAT = Path("/proc/stat")


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


def _idle_s() -> float | None:
    """Seconds that all cores together were idle since the start of the system."""
    try:
        fields = _STAT.read_text().split("\n", 1)[0].split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
