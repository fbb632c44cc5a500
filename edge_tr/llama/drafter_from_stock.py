"""A ``draft_model`` that a user of ``llama_cpp.Llama`` brings, as a drafter."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_tr.drafts.draft import Draft
from edge_tr.target import Float32, Int32

_MAX_NODES = 64


class ModelDrafter:
    """Drafts the chain that a ``LlamaDraftModel`` gives for the text so far.

    Parameters
    ----------
    model : called with int32[n], the text; returns the tokens that it expects.
    n_vocab : a chain ends before a token that is not in the vocabulary.
    n_ctx : longest text.
    """

    max_nodes = _MAX_NODES
    max_lanes = k = 1
    harvest = n_rests = 0

    def __init__(self, model: Any, *, n_vocab: int, n_ctx: int) -> None:
        self.n_vocab = n_vocab
        self._model = model
        self._text: Int32 = np.zeros(n_ctx + 1, dtype=np.intc)
        self._n = 0

    def learn_prompt(self, tokens: Int32, ids: Int32, values: Float32) -> None:
        """Nothing: it sees the text alone."""

    def begin(self, tokens: Int32, temperature: float = 0.0) -> None:
        self._n = len(tokens)
        self._text[: self._n] = tokens

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        chain = np.asarray(self._model(self._text[: self._n]), dtype=np.int64)
        chain = chain[: min(max_nodes, max_depth)]
        wrong = np.flatnonzero((chain < 0) | (chain >= self.n_vocab))
        n = int(wrong[0]) if len(wrong) else len(chain)
        draft.token[1 : n + 1] = chain[:n]
        draft.parent[1 : n + 1] = np.arange(n)
        draft.depth[1 : n + 1] = np.arange(1, n + 1)
        draft.n = n + 1

    def learn(
        self, draft: Draft, ids: Int32, values: Float32, accepted: Int32, emitted: list[int]
    ) -> None:
        self._text[self._n : self._n + len(emitted)] = emitted
        self._n += len(emitted)
