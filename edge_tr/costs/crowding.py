"""Fewer threads while other programs compute.

A step waits some hundred times for all of its threads. Where one of them does not run, since
another program has its core, a step takes many times as long as with the threads that do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from time import monotonic

_SLOW = 2.5
"""Mean of the last steps, in what they should cost, from which on fewer threads are tried."""

_VERY_SLOW = 10.0
"""Two steps in a row that are so much slower are enough: more would take seconds."""

_MOST = 20.0
"""One step counts for at most so much."""

_STEPS = 6
"""Steps that are looked at."""

_TRIED = 3
"""The first steps with all threads again, after which it is known whether it was too early."""

_WAIT = 32
_MOST_WAIT = 1024
"""Steps with fewer threads before all are tried again: at first, doubled each time that was too
early, and at most."""

_HOLD = 256
"""Steps before fewer threads are tried again where they did not help."""

_ROOM = 0.3
"""Part of a core that may be missing where all threads are tried again."""


_SPIN_S = 0.02
"""Threads of llama.cpp look for more work for less than this after a step."""


class Crowding:
    """Chooses the number of threads by what the steps cost.

    Parameters
    ----------
    n_threads : as many as steps were measured with.
    set_threads : is called with the number of threads for the steps that follow.
    free_cores : cores that were idle since it was called last; None where that is not known.
    cores_now : see ``machine.idle``.

    Attributes
    ----------
    n_used : threads of the next step.
    """

    def __init__(
        self,
        n_threads: int,
        set_threads: Callable[[int], object],
        free_cores: Callable[[], float | None],
        cores_now: Callable[[int, int], int | None] = lambda wanted, own: None,
    ) -> None:
        self.n_threads = self.n_used = n_threads
        self._set_threads = set_threads
        self._free_cores = free_cores
        self._cores_now = cores_now
        self._stepped_at = -math.inf
        self._last: deque[float] = deque(maxlen=_STEPS)
        self._slow = 0.0
        self._n_steps = 0
        self._wait = _WAIT
        self._hold = 0

    @property
    def is_usual(self) -> bool:
        """Whether steps are taken as they were measured."""
        return self.n_used == self.n_threads

    def begin(self) -> None:
        """A text begins: its threads are no more than there are cores without other programs."""
        if self.is_usual and self.n_threads > 1:
            is_spinning = monotonic() - self._stepped_at < _SPIN_S
            n_cores = self._cores_now(self.n_threads, is_spinning * (self.n_threads - 1))
            if n_cores is not None and n_cores < self.n_threads:
                self._slow = math.inf
                self._free_cores()
                self._use(max(1, n_cores))

    def observe(self, ratio: float) -> bool:
        """Take note of a step that took ``ratio`` times what it should cost with all threads;
        whether the number of threads changed."""
        self._stepped_at = monotonic()
        self._last.append(min(ratio, _MOST))
        self._n_steps += 1
        before = self.n_used
        if self.is_usual:
            self._with_all()
        else:
            self._with_fewer()
        return self.n_used != before

    def _with_all(self) -> None:
        too_early = self._n_steps == _TRIED and self._wait > _WAIT
        if self._n_steps == _WAIT:
            self._wait = _WAIT
        if self._hold > 0:
            self._hold -= 1
        elif len(self._last) == _STEPS or too_early or self._is_very_slow():
            self._slow = sum(self._last) / len(self._last)
            if self._slow > _SLOW and self.n_threads > 1:
                self._free_cores()
                self._use(max(1, self.n_threads // 2))

    def _is_very_slow(self) -> bool:
        return len(self._last) > 1 and min(self._last[-1], self._last[-2]) > _VERY_SLOW

    def _with_fewer(self) -> None:
        mean = sum(self._last) / len(self._last)
        if self._n_steps == _STEPS and mean > 0.9 * self._slow:
            self._hold = _HOLD
            self._use(self.n_threads)
        elif self._n_steps % self._wait == 0:
            free = self._free_cores()
            if free is None or free > self.n_threads - self.n_used - _ROOM:
                self._wait = min(2 * self._wait, _MOST_WAIT)
                self._use(self.n_threads)

    def _use(self, n_threads: int) -> None:
        self.n_used = n_threads
        self._set_threads(n_threads)
        self._last.clear()
        self._n_steps = 0
