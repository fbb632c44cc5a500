"""Decode steps on an open target, to measure it; nothing of them stays."""

from __future__ import annotations

import numpy as np

from edge_tr.decode.lanes import LaneCache
from edge_tr.drafts.draft import Draft
from edge_tr.target import Batch, Int32, TargetModel

_DRIFT = 128
"""Tokens that may be left behind a short text before it is read anew."""


def random_text(target: TargetModel) -> tuple[LaneCache, Int32]:
    """The target's cache, emptied, and int32[n_ctx], random tokens to read into it."""
    lanes = LaneCache(target)
    lanes.recover(0)
    rng = np.random.default_rng(0)
    return lanes, rng.integers(0, target.n_vocab, target.n_ctx).astype(np.int32)


class Trial:
    """Plants trees behind a text.

    Parameters
    ----------
    max_width : most tokens of a tree, root included.
    lanes, tokens : the cache, which may hold some of the text already, and int32[n_ctx], the text
        with its next token.
    """

    def __init__(
        self, target: TargetModel, max_width: int, lanes: LaneCache, tokens: Int32
    ) -> None:
        self.target = target
        self.max_width = max_width
        self.lanes = lanes
        self.tokens = tokens
        self.batch = Batch(target.n_batch, target.n_lanes)
        self.draft = Draft(max_width)
        self.base = lanes.n_past

    def read(self, n_past: int) -> None:
        """Extend the past to ``n_past`` tokens."""
        self.base = n_past
        while self.lanes.n_past < n_past:
            first = self.lanes.n_past
            n = min(self.target.n_batch, n_past - first)
            self.batch.set_chain(self.tokens[first : first + n], first, want_rows=1)
            self.target.decode(self.batch)
            self.lanes.extend(n)

    def make_room(self, n_tokens: int) -> None:
        """Read the past anew where steps that left tokens behind have drifted far from it, or
        leave no room for ``n_tokens``."""
        n_past = self.lanes.n_past
        if n_past + n_tokens > self.target.n_ctx or n_past > 2 * self.base + _DRIFT:
            self.lanes.recover(0)
            self.read(self.base)

    def grow(self, width: int) -> None:
        """Make the draft a tree of ``width`` tokens, two children a node where the lanes
        suffice, else a chain."""
        n_past, draft = self.lanes.n_past, self.draft
        draft.reset(int(self.tokens[n_past]), n_past=n_past)
        nodes = np.arange(1, width)
        arity = 2 if self.target.n_lanes > width // 2 else 1
        draft.parent[1:width] = (nodes - 1) // arity
        draft.token[1:width] = self.tokens[n_past - nodes % n_past]
        draft.depth[1:width] = np.log2(nodes + 1).astype(np.int32) if arity == 2 else nodes
        draft.n = width

    def plant(self) -> None:
        """Number the draft's nodes and fill the batch with it."""
        n_past = self.lanes.n_past
        self.draft.plan()
        self.lanes.sync(self.draft.n_lanes)
        self.draft.fill(self.batch, self.tokens[n_past : n_past + 1])
