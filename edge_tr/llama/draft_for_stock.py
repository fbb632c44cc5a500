"""Drafts for the stock class, learned from the text alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from llama_cpp.llama_speculative import LlamaDraftModel

from edge_tr.errors import ConfigError
from edge_tr.target import Int32

_MAX_ROWS = 1 << 18
"""Most pairs of tokens to remember (about 40 MB)."""


class TokenRecyclingDraft(LlamaDraftModel):  # type: ignore[misc]
    """A ``draft_model`` for ``llama_cpp.Llama``: a chain of tokens that followed before.

    ``edge_tr.Llama`` does better in every respect. The stock class shows a draft model only the
    text, so that this one learns from tokens that were accepted and not from the candidates at
    every node, and it verifies a chain instead of a tree. With a draft model the stock class keeps
    the logits of every position, 4 bytes times ``n_ctx`` times the vocabulary (0.8 GB for a
    context of 4,096 and 49,152 tokens), drafts whether it pays or not, and raises ValueError once
    a prompt is longer than ``n_batch``.

    Parameters
    ----------
    num_pred_tokens : longest draft; few tokens pay on a CPU, ten or more on a GPU.

    Raises
    ------
    ConfigError : a length outside 1 to 64.
    """

    def __init__(self, num_pred_tokens: int = 4) -> None:
        if not 1 <= num_pred_tokens <= 64:
            raise ConfigError(
                f"num_pred_tokens {num_pred_tokens} is not allowed; it must be 1 to 64"
            )
        self.num_pred_tokens = num_pred_tokens
        self._after: dict[int, int] = {}
        self._after_two: dict[tuple[int, int], int] = {}
        self._text: list[int] = []

    def __call__(self, input_ids: Int32, /, **kwargs: Any) -> Int32:
        """Tokens that may follow the text; empty where nothing is known.

        Parameters
        ----------
        input_ids : int32[n], prompt and answer so far.
        """
        text: list[int] = input_ids.tolist()
        self._learn(text)
        draft: list[int] = []
        before, last = (-1, *text[-2:])[-2:] if text else (-1, -1)
        while len(draft) < self.num_pred_tokens:
            token = self._after_two.get((before, last), self._after.get(last, -1))
            if token < 0:
                break
            draft.append(token)
            before, last = last, token
        return np.array(draft, dtype=np.intc)

    def _learn(self, text: list[int]) -> None:
        """Take over the part of a text that was not seen before."""
        n_known = 0
        if text[: len(self._text)] == self._text:
            n_known = len(self._text)
        for i in range(max(1, n_known), len(text)):
            token = text[i]
            self._after[text[i - 1]] = token
            if i > 1:
                self._after_two[text[i - 2], text[i - 1]] = token
        while len(self._after_two) > _MAX_ROWS:
            del self._after_two[next(iter(self._after_two))]
        self._text = text
