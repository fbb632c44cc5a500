"""The paper's way to a static tree: how often each rank is right, and the best tree for it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.draft import Draft
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.target import Float32, Int32


class RankCounter(FixedTreeDrafter):
    """Drafts as usual, and counts at which rank of its row each token of the text stood.

    Attributes
    ----------
    hits : int64[k]; tokens of the text that stood at each rank of the row of the token before
        them, drafted or not.
    n_tokens : tokens counted.
    """

    def __init__(self, matrix: AdjacencyMatrix, template: TreeTemplate) -> None:
        super().__init__(matrix, template)
        self.hits = np.zeros(matrix.k, dtype=np.int64)
        self.n_tokens = 0

    @property
    def rates(self) -> list[float]:
        """Share of the tokens at each rank."""
        return [float(hits) / max(1, self.n_tokens) for hits in self.hits]

    def learn(
        self, draft: Draft, ids: Int32, values: Float32, accepted: Int32, emitted: list[int]
    ) -> None:
        before = [int(draft.token[0]), *emitted[:-1]]
        self.hits += (self.matrix.rows[before] == np.array(emitted)[:, None]).sum(axis=0)
        self.n_tokens += len(emitted)
        super().learn(draft, ids, values, accepted, emitted)


class RebuiltTree(RankCounter):
    """Drafts the best static tree for what it has counted so far, made anew every 64 tokens.

    Parameters
    ----------
    n_nodes : nodes of the tree; the first one is the paper's, cut.
    """

    def __init__(self, matrix: AdjacencyMatrix, n_nodes: int) -> None:
        super().__init__(matrix, TreeTemplate.paper().prefix(n_nodes))
        self.max_lanes = n_nodes
        self._rebuilt_at = 0

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        if self.n_tokens - self._rebuilt_at >= 64:
            self.template = best_static_tree(self.rates, self.template.n_nodes)
            self._rebuilt_at = self.n_tokens
        super().propose(draft, max_nodes=max_nodes, max_depth=max_depth)


def best_static_tree(rates: Sequence[float], n_nodes: int) -> TreeTemplate:
    """The tree of ``n_nodes`` nodes with the most accepted tokens to be expected.

    A path is as probable as the product of the rates of its ranks. Best-first: take the most
    probable path, then its first child and its next sibling are candidates; ties: the path
    that comes first in the order of its ranks.
    """
    order = sorted(range(len(rates)), key=lambda rank: (-rates[rank], rank))
    paths: list[tuple[int, ...]] = []
    heap: list[tuple[float, tuple[int, ...]]] = [(-rates[order[0]], (0,))]
    while heap and len(paths) < n_nodes:
        negative, places = heapq.heappop(heap)
        paths.append(tuple(order[place] for place in places))
        heapq.heappush(heap, (negative * rates[order[0]], (*places, 0)))
        last = places[-1]
        if last + 1 < len(order) and rates[order[last]] > 0:
            sibling = negative / rates[order[last]] * rates[order[last + 1]]
            heapq.heappush(heap, (sibling, (*places[:-1], last + 1)))
    return TreeTemplate(paths)
