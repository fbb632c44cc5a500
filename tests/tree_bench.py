"""One draft tree at a time on a target, without the decode loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from drafters import add_node

from edge_tr.decode.lanes import LaneCache
from edge_tr.drafts.draft import Draft
from edge_tr.target import Batch, Float32, Int32, TargetModel


class TreeBench:
    """A target whose committed sequence is ``tokens``."""

    def __init__(self, target: TargetModel) -> None:
        self.target = target
        self.lanes = LaneCache(target)
        self.lanes.recover(0)
        self.draft = Draft(80)
        self.batch = Batch(max(64, target.n_batch), target.n_lanes)
        self.tokens: list[int] = []

    def read(self, tokens: Sequence[int]) -> Float32:
        """Decode and commit a chain; the logits after it."""
        self.batch.set_chain(int32(tokens), self.lanes.n_past, want_rows=1)
        row: Float32 = self.target.decode(self.batch)[0].copy()
        self.lanes.extend(len(tokens))
        self.tokens += tokens
        return row

    def rewind(self, n_past: int) -> None:
        """Drop the end of the committed sequence."""
        self.lanes.rewind(n_past)
        del self.tokens[n_past:]

    def plant(self, *nodes: tuple[int, int], root: int) -> None:
        """Make ``nodes``, pairs of token and parent, the tree below the root."""
        self.draft.reset(root, n_past=self.lanes.n_past)
        for token, parent in nodes:
            add_node(self.draft, token, parent)
        self.draft.plan()

    def plant_random(self, rng: np.random.Generator, n_nodes: int, n_vocab: int) -> None:
        """Make a random tree of random tokens the draft."""
        parents = sorted(int(rng.integers(0, i + 1)) for i in range(n_nodes))
        nodes = [(int(rng.integers(n_vocab)), parent) for parent in parents]
        self.plant(*nodes, root=int(rng.integers(n_vocab)))

    def path_to(self, node: int) -> list[int]:
        """Tokens from the root to a node."""
        path: list[int] = []
        while node >= 0:
            path.insert(0, int(self.draft.token[node]))
            node = int(self.draft.parent[node])
        return path

    def decode(self, front: Sequence[int] = ()) -> Float32:
        """Decode the chain ``front`` and the tree; rows by node."""
        draft = self.draft
        draft.n_past, draft.n_front = self.lanes.n_past, len(front) + 1
        self.lanes.sync(draft.n_lanes)
        draft.fill(self.batch, int32([*front, draft.token[0]]))
        rows: Float32 = self.target.decode(self.batch)[draft.slot[: draft.n]]
        return rows

    def commit(self, accepted: Sequence[int], token_s: float, front: Sequence[int] = ()) -> int:
        """Commit an accepted path; how many of its nodes were kept."""
        kept = self.lanes.commit(len(front) + 1, self.draft, int32(accepted), token_s)
        self.tokens += [*front, *self.draft.token[[0, *accepted[:kept]]].tolist()]
        assert self.lanes.n_past == len(self.tokens)
        return kept


def int32(numbers: Sequence[int]) -> Int32:
    return np.array(numbers, dtype=np.int32)
