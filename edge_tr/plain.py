"""Plain decode steps in a row, from which the drafter learns in one go."""

from __future__ import annotations

import numpy as np

from .draft import Draft, Drafter
from .target import Float32, Int32


class PlainRun:
    """What plain steps found, kept until it is worth a call of the drafter.

    A run of plain steps is to the drafter what a chain is whose every node was accepted.

    Parameters
    ----------
    drafter : learns from the run.
    capacity : most steps of a run.

    Attributes
    ----------
    n : steps in the run.
    """

    def __init__(self, drafter: Drafter, capacity: int) -> None:
        self._drafter = drafter
        self._chain = Draft(capacity)
        nodes = np.arange(capacity + 1, dtype=np.int32)
        self._chain.parent[:] = nodes - 1
        self._chain.depth[:] = nodes
        self._chain.slot[:] = nodes
        self._ids: Int32 = np.zeros((capacity, drafter.k), dtype=np.int32)
        self._values: Float32 = np.zeros((capacity, drafter.k), dtype=np.float32)
        self._emitted: list[int] = []

    @property
    def n(self) -> int:
        return len(self._emitted)

    def add(self, token: int, ids: Int32, values: Float32, emitted: int) -> None:
        """One step: int32[k] and float32[k], the best tokens after ``token``, and the choice."""
        n = len(self._emitted)
        self._chain.token[n] = token
        self._ids[n] = ids
        self._values[n] = values
        self._emitted.append(emitted)

    def forget(self) -> None:
        """Drop the run."""
        self._emitted.clear()

    def learn(self) -> None:
        """Let the drafter learn from the run, and start another."""
        n = len(self._emitted)
        if n:
            self._chain.n = n
            accepted = self._chain.all_nodes[1:n]
            self._drafter.learn(
                self._chain, self._ids[:n], self._values[:n], accepted, self._emitted
            )
            self._emitted.clear()
