"""What to propose: a draft tree for the next decode step."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from edge_tr.kernels import tree as kernels
from edge_tr.target import Batch, Float32, Int32

MAX_HARVEST = 1 << 30
"""The whole prompt."""


class Draft:
    """One draft tree and its place in the batch, as arrays that are written in place.

    Attributes
    ----------
    n : number of nodes, root included.
    token, parent, depth : int32[capacity + 1] per node in BFS order; node 0 is the root.
    slot : int32[capacity + 1]; place of each node in depth-first order, root 0. The row of
        logits of node i is row ``slot[i]``.
    lane_first, lane_last : int32[capacity + 1]; lanes ``lane_first <= lane < lane_last``.
    n_lanes : number of lanes (leaves).
    n_past, n_front : committed cells before the batch, and tokens of the batch up to the root:
        the chain of committed tokens without cells, and the root.
    """

    def __init__(self, capacity: int) -> None:
        size = capacity + 1
        self.capacity = capacity
        self.n = 1
        self.n_lanes = 1
        self.n_past = 0
        self.n_front = 1
        self.token: Int32 = np.zeros(size, dtype=np.int32)
        self.parent: Int32 = np.full(size, -1, dtype=np.int32)
        self.depth: Int32 = np.zeros(size, dtype=np.int32)
        self.slot: Int32 = np.zeros(size, dtype=np.int32)
        self.lane_first: Int32 = np.zeros(size, dtype=np.int32)
        self.lane_last: Int32 = np.ones(size, dtype=np.int32)
        self.all_nodes: Int32 = np.arange(size, dtype=np.int32)
        self._scratch: Int32 = np.zeros((2, size), dtype=np.int32)

    def reset(self, root: int, *, n_past: int, n_front: int = 1) -> None:
        """Make it the tree that drafts nothing."""
        self.n = 1
        self.token[0] = root
        self.n_past = n_past
        self.n_front = n_front

    def plan(self) -> None:
        """Number the slots and lanes of the nodes that are there."""
        if self.n == 1:  # most steps of a text that cannot be drafted
            self.slot[0] = self.lane_first[0] = 0
            self.lane_last[0] = self.n_lanes = 1
            return
        self.n_lanes = int(
            kernels.plan_batch(
                self.parent, self.n, self.slot, self.lane_first, self.lane_last, self._scratch
            )
        )

    def fill(self, batch: Batch, front: Int32) -> None:
        """Write the whole batch of the step.

        Parameters
        ----------
        batch : written; its capacity is at least ``n_front - 1 + n``.
        front : int32[n_front], committed tokens from position ``n_past`` on, the root last.
        """
        batch.n = self.n_front - 1 + self.n
        kernels.fill_batch(
            front,
            self.n_front - 1,
            self.n_past,
            self.token,
            self.depth,
            self.slot,
            self.lane_first,
            self.lane_last,
            self.n,
            batch.lane_ids_address,
            batch.token,
            batch.pos,
            batch.n_lanes,
            batch.lanes,
            batch.logits,
        )


class Drafter(Protocol):
    """Proposes draft trees and learns from each verify step."""

    @property
    def n_vocab(self) -> int:
        """Size of the vocabulary it was made for; the target's must be the same."""

    @property
    def max_nodes(self) -> int:
        """Most nodes below the root that ``propose`` may fill."""

    @property
    def max_lanes(self) -> int:
        """Most lanes of a tree that ``propose`` may fill."""

    @property
    def k(self) -> int:
        """How many best tokens of each node ``learn`` wants."""

    @property
    def harvest(self) -> int:
        """How many tokens at the end of the next prompt ``learn_prompt`` wants to see; each
        costs a row of logits while the prompt is read."""

    @property
    def n_rests(self) -> int:
        """For how many plain steps at a time it is left alone once it has proposed nothing for a
        while; it then learns from them together. 0 = it is asked at every step."""

    def learn_prompt(self, tokens: Int32, ids: Int32, values: Float32) -> None:
        """See what the target model expected after each token of a part of the prompt.

        Parameters
        ----------
        tokens : int32[n], neighbours in the prompt, in order.
        ids, values : int32[n, k] and float32[n, k]; the best tokens after each, best first.
        """

    def begin(self, tokens: Int32, temperature: float = 0.0) -> None:
        """A prompt was read: int32[n], the whole committed sequence. ``temperature`` is that of
        the draws, 0 where the most probable token is taken."""

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        """Fill ``draft`` below its root with at most so many nodes, no deeper than that."""

    def learn(
        self, draft: Draft, ids: Int32, values: Float32, accepted: Int32, emitted: list[int]
    ) -> None:
        """See the outcome of a verify step.

        Parameters
        ----------
        ids : int32[n, k]; row ``draft.slot[i]`` holds the best tokens after node i.
        values : float32[n, k]; their logits.
        accepted : int32[n_accepted], the nodes of the accepted path below the root.
        emitted : the tokens of the accepted path and the bonus token.
        """
