"""Prompt lookup decoding as a drafter: copy what followed the last n-gram before."""

from __future__ import annotations

import numpy as np

from edge_tr.draft import Draft
from edge_tr.target import Float32, Int32


class PromptLookup:
    """A chain copied from behind the first earlier place with the longest matching suffix.

    Tries suffixes of 3, 2 and 1 tokens, as the method's author does; without a match it drafts
    nothing.

    Parameters
    ----------
    n_nodes : length of the chain.
    n_vocab : tokens of the target's vocabulary.

    Source: Saxena, Prompt Lookup Decoding, 2023, github apoorvumang/prompt-lookup-decoding.
    """

    max_lanes = 1
    k = 1
    harvest = 0

    def __init__(self, n_nodes: int, n_vocab: int) -> None:
        self.max_nodes = n_nodes
        self.n_vocab = n_vocab
        self._text: Int32 = np.zeros(0, dtype=np.int32)

    def begin(self, tokens: Int32) -> None:
        self._text = tokens.astype(np.int32)

    def learn_prompt(self, tokens: Int32, ids: Int32, values: Float32) -> None:
        raise AssertionError("prompt lookup reads no logits of the prompt")

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        found = self._find()[: min(max_nodes, max_depth)]
        n = len(found)
        draft.token[1 : n + 1] = found
        draft.parent[1 : n + 1] = np.arange(n)
        draft.depth[1 : n + 1] = np.arange(1, n + 1)
        draft.n = n + 1

    def _find(self) -> Int32:
        text = self._text
        for size in range(min(3, len(text) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
            places = np.flatnonzero((windows == text[-size:]).all(axis=1))
            if len(places):
                first = int(places[0]) + size
                return text[first : first + self.max_nodes]
        return text[:0]

    def learn(
        self, draft: Draft, ids: Int32, values: Float32, accepted: Int32, emitted: list[int]
    ) -> None:
        self._text = np.concatenate((self._text, np.array(emitted, dtype=np.int32)))
