"""Prompt lookup decoding as a drafter: copy what followed the last n-gram before."""

from __future__ import annotations

import numpy as np

from edge_tr.drafts.draft import Draft
from edge_tr.target import Float32, Int32


class PromptLookup:
    """Prompt lookup decoding: the chain that followed the first earlier place of the last 3
    tokens, else of the last 2, else of the last one.

    Source: Saxena, Prompt Lookup Decoding (2023), with the settings of Spec-Bench.
    """

    k = 1
    harvest = 0
    max_lanes = 1
    n_rests = 0

    def __init__(self, n_vocab: int, *, max_nodes: int = 10, max_ngram: int = 3) -> None:
        self.n_vocab = n_vocab
        self.max_nodes = max_nodes
        self._max_ngram = max_ngram
        self._text: Int32 = np.zeros(0, dtype=np.int32)

    def learn_prompt(self, tokens: Int32, ids: Int32, values: Float32) -> None:
        """Nothing: it asks for no rows."""

    def begin(self, tokens: Int32, temperature: float = 0.0) -> None:
        self._text = tokens.copy()

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        text = self._text
        for n in range(min(self._max_ngram, len(text) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(text[:-1], n)
            places = np.flatnonzero((windows == text[-n:]).all(axis=1))
            if len(places):
                chain = text[places[0] + n :][: min(max_nodes, max_depth)]
                nodes = np.arange(1, len(chain) + 1)
                draft.n = len(chain) + 1
                draft.token[nodes] = chain
                draft.depth[nodes] = nodes
                draft.parent[nodes] = nodes - 1
                return

    def learn(
        self, draft: Draft, ids: Int32, values: Float32, accepted: Int32, emitted: list[int]
    ) -> None:
        self._text = np.concatenate((self._text, np.array(emitted, dtype=np.int32)))
