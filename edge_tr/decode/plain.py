"""Plain decode steps, and what the drafter learns from a run of them in one go."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from edge_tr.decode.committed import Committed
from edge_tr.decode.sampling import Sampler
from edge_tr.decode.verify import NO_LOGIT
from edge_tr.drafts.draft import Draft, Drafter
from edge_tr.errors import DecodeError
from edge_tr.stats import Stats
from edge_tr.target import Float32, Int32


class PlainSteps:
    """Decode steps of one token, with as little around each as can be.

    What they find is kept until it is worth a call of the drafter: to it a run of plain steps is
    what a chain is whose every node was accepted.

    Parameters
    ----------
    committed : the sequence; each step adds to it.
    capacity : most steps of a run.

    Attributes
    ----------
    n : steps in the run.
    """

    def __init__(self, committed: Committed, capacity: int) -> None:
        self._committed = committed
        self._chain = Draft(capacity)
        nodes = np.arange(capacity + 1, dtype=np.int32)
        self._chain.parent[:] = nodes - 1
        self._chain.depth[:] = nodes
        self._chain.slot[:] = nodes
        self._ids: Int32 = np.zeros((capacity, committed.topk.k), dtype=np.int32)
        self._values: Float32 = np.zeros((capacity, committed.topk.k), dtype=np.float32)
        self._emitted: list[int] = []

    @property
    def n(self) -> int:
        return len(self._emitted)

    def step(self, sampler: Sampler | None, stats: Stats, *, keep: bool) -> tuple[int, float]:
        """Decode the last token, the only one that the cache does not hold yet; ``keep`` it in
        the run.

        Returns
        -------
        The next token, and the seconds that it took.

        Raises
        ------
        DecodeError : llama.cpp failed, or no token has a logit.
        """
        committed, n_past = self._committed, self._committed.n_past
        committed.last_row = None
        root = int(committed.tokens[n_past])
        committed.batch.set_one(root, n_past)
        t0 = perf_counter()
        logits = committed.target.decode(committed.batch)
        t1 = perf_counter()
        ids, values = committed.topk(logits)
        token = int(ids[0, 0]) if sampler is None else sampler.sample(0, logits[0])
        if token < 0:
            raise DecodeError(NO_LOGIT)
        t2 = perf_counter()
        if keep:
            n = len(self._emitted)
            self._chain.token[n] = root
            self._ids[n] = ids[0]
            self._values[n] = values[0]
            self._emitted.append(token)
        committed.lanes.extend(1)
        committed.append([token])
        stats.n_steps += 1
        stats.n_plain_steps += 1
        stats.decode_s += t1 - t0
        stats.topk_s += t2 - t1
        return token, t2 - t0

    def forget(self) -> None:
        """Drop the run."""
        self._emitted.clear()

    def learn(self, drafter: Drafter | None, stats: Stats) -> None:
        """Let the drafter learn from the run, and start another."""
        n = len(self._emitted)
        if drafter is None or n == 0:
            return
        started = perf_counter()
        self._chain.n = n
        accepted = self._chain.all_nodes[1:n]
        drafter.learn(self._chain, self._ids[:n], self._values[:n], accepted, self._emitted)
        self._emitted.clear()
        stats.recycle_s += perf_counter() - started
