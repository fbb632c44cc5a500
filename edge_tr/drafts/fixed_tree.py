"""The drafter of a fixed tree: the same template at every step, filled from the matrix."""

from __future__ import annotations

from typing import Literal

import numpy as np

from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.draft import MAX_HARVEST, Draft
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import ConfigError
from edge_tr.kernels import tree as kernels
from edge_tr.target import Float32, Int32


class FixedTreeDrafter:
    """Token Recycling: the template's tree read off the matrix, all nodes written back.

    Parameters
    ----------
    matrix : learned from every step; may be shared by drafters of one thread.
    template : which tree to draft.
    update : "all" writes back every node, rejected ones too; "accepted" only the root and the
        accepted path.
    harvest : fill rows from the prompt's own logits too.

    Raises
    ------
    ConfigError : a template of higher rank than the matrix has candidates, another ``update``.
    """

    def __init__(
        self,
        matrix: AdjacencyMatrix,
        template: TreeTemplate,
        *,
        update: Literal["all", "accepted"] = "all",
        harvest: bool = False,
    ) -> None:
        if template.n_ranks > matrix.k:
            raise ConfigError(
                f"the tree template uses rank {template.n_ranks - 1}, but a row of the matrix "
                f"has k = {matrix.k} candidates (ranks 0 to {matrix.k - 1})"
            )
        if update not in ("all", "accepted"):
            raise ConfigError(f'update {update!r} is not allowed; use "all" or "accepted"')
        self.matrix = matrix
        self.template = template
        self.update = update
        self.harvest = MAX_HARVEST if harvest else 0
        self.n_rests = 0
        self.n_vocab = matrix.n_vocab
        self.max_nodes = template.n_nodes
        self.max_lanes = template.n_leaves
        self.k = matrix.k
        self._node_of: Int32 = np.zeros(template.n_nodes + 1, dtype=np.int32)

    def learn_prompt(self, tokens: Int32, ids: Int32, values: Float32) -> None:
        order = np.arange(len(tokens), dtype=np.int32)
        kernels.recycle(self.matrix.rows, tokens, order, order, len(tokens), ids)

    def begin(self, tokens: Int32, temperature: float = 0.0) -> None:
        """Nothing to prepare: a matrix is inherited across prompts."""

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        draft.n = int(
            kernels.fill_tree(
                self.matrix.rows,
                self.template.parent,
                self.template.rank,
                max_nodes,
                max_depth,
                draft.token,
                draft.parent,
                draft.depth,
                self._node_of,
            )
        )

    def learn(
        self, draft: Draft, ids: Int32, values: Float32, accepted: Int32, emitted: list[int]
    ) -> None:
        if self.update == "all":
            nodes, n = draft.all_nodes, draft.n
        else:
            nodes, n = np.concatenate((draft.all_nodes[:1], accepted)), len(accepted) + 1
        kernels.recycle(self.matrix.rows, draft.token, draft.slot, nodes, n, ids)
