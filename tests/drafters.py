"""Drafters that make trouble on purpose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_tr.costs.running import StepCosts
from edge_tr.drafts.draft import Draft
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.target import Float32, Int32


class TestDrafter:
    """Learns nothing; ``propose`` is left to the subclass."""

    __test__ = False

    def __init__(self, n_vocab: int, *, max_nodes: int = 12, max_lanes: int = 6, k: int = 1):
        self.n_vocab = n_vocab
        self.max_nodes = max_nodes
        self.max_lanes = max_lanes
        self.k = k
        self.harvest = 0
        self.n_rests = 0

    def learn_prompt(self, tokens: Int32, ids: Int32, values: Float32) -> None:
        raise AssertionError("harvest is off")

    def begin(self, tokens: Int32, temperature: float = 0.0) -> None:
        pass

    def learn(
        self, draft: Draft, ids: Int32, values: Float32, accepted: Int32, emitted: list[int]
    ) -> None:
        pass


def add_node(draft: Draft, token: int, parent: int) -> int:
    """Append a node and return its number; the caller keeps BFS order."""
    node = draft.n
    draft.token[node] = token
    draft.parent[node] = parent
    draft.depth[node] = draft.depth[parent] + 1
    draft.n += 1
    return node


class RandomDrafter(TestDrafter):
    """Random trees of random tokens, siblings with the same token among them."""

    def __init__(self, n_vocab: int, seed: int, *, max_nodes: int = 12, max_lanes: int = 6):
        super().__init__(n_vocab, max_nodes=max_nodes, max_lanes=max_lanes)
        self._rng = np.random.default_rng(seed)

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        n_leaves, parent = 1, 0
        for _ in range(int(self._rng.integers(0, max_nodes + 1))):
            parent = int(self._rng.integers(parent, draft.n))
            starts_leaf = parent in draft.parent[1 : draft.n]
            if draft.depth[parent] >= max_depth or n_leaves + starts_leaf > self.max_lanes:
                return
            n_leaves += starts_leaf
            add_node(draft, int(self._rng.integers(self.n_vocab)), parent)


class OracleDrafter(TestDrafter):
    """Knows the text. Drafts up to ``reach`` right tokens, with decoys beside each.

    Parameters
    ----------
    text : what the target will generate.
    decoys_first : put the decoy before the right token, so that the accepted path is not the
        first one of the batch.
    wrong_last : make the last token of the right path wrong.
    """

    def __init__(
        self,
        n_vocab: int,
        text: Sequence[int],
        *,
        reach: int = 5,
        decoys_first: bool = False,
        wrong_last: bool = False,
    ):
        super().__init__(n_vocab, max_nodes=2 * reach, max_lanes=reach + 1)
        self.text = list(text)
        self._reach = reach
        self._decoys_first = decoys_first
        self._wrong_last = wrong_last
        self._n_emitted = 0

    def begin(self, tokens: Int32, temperature: float = 0.0) -> None:
        self._n_emitted = 0

    def learn(
        self, draft: Draft, ids: Int32, values: Float32, accepted: Int32, emitted: list[int]
    ) -> None:
        self._n_emitted += len(emitted)

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        n = min(self._reach, max_depth, max_nodes // 2)
        path = self.text[self._n_emitted : self._n_emitted + n]
        if self._wrong_last and path:
            path[-1] = (path[-1] + 1) % self.n_vocab
        node = 0
        for token in path:
            decoy = (token + 1) % self.n_vocab
            if self._decoys_first:
                add_node(draft, decoy, node)
            child = add_node(draft, token, node)
            if not self._decoys_first:
                add_node(draft, decoy, node)
            node = child


class MoodyDrafter(FixedTreeDrafter):
    """Token Recycling that drafts nothing at random steps."""

    rng = np.random.default_rng(0)

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        if self.rng.random() < 0.5:
            super().propose(draft, max_nodes=max_nodes, max_depth=max_depth)


class FixedCosts(StepCosts):
    """Costs that never change: ``token_s`` 0 makes redo always cheaper, infinity keep."""

    def __init__(self, token_s: float) -> None:
        super().__init__()
        self._token_s = token_s

    def observe(self, n_tokens: int, n_past: int, seconds: float, n_emitted: int) -> None:
        pass

    def token_s(self) -> float:
        return self._token_s
