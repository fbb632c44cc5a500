"""How long measuring may take."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from edge_tr.target import TargetModel

_MEASURING_S = 300.0
_CROWDED_S = 5.0
"""Seconds after which measuring ends, the second with more threads than cores: there a step takes
as long as the machine's scheduler wants."""


def time_limit(target: TargetModel) -> tuple[float, str]:
    """Seconds that measuring a target may take, and a warning or an empty text."""
    n_threads, n_cores = int(getattr(target, "n_threads", 1)), _usable_cores()
    if n_threads <= n_cores:
        return _MEASURING_S, ""
    return _CROWDED_S, f"{n_threads} threads on {n_cores} cores make decode steps slow"


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def within(seconds: float, target: TargetModel) -> Iterator[None]:
    """Make what a target decodes raise CancelledError after some time."""
    timer = threading.Timer(seconds, target.interrupt, (True,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        target.interrupt(False)
