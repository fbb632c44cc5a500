"""Earlier prompts and answers, in which later texts look for what they repeat."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_tr.errors import ConfigError
from edge_tr.kernels import matches
from edge_tr.target import Int32

_SHORTEST = 8
"""Shorter texts are not kept."""

_MOST_HEADS = 1 << 18


class History:
    """The tokens of earlier texts, and an index of where the same ones stand.

    Four bytes for each token, and as many for its place in the index: 9 MiB at 2**20 tokens,
    taken as they come. When it is full the oldest half goes.

    Parameters
    ----------
    capacity : most tokens, a separator behind each text included; 0 keeps none.

    Attributes
    ----------
    tokens, n : int32[capacity + 1], and how many of them there are; -1 stands behind each text.
    n_texts : how many texts they are.

    Raises
    ------
    ConfigError : a capacity that is not allowed.
    """

    def __init__(self, capacity: int) -> None:
        if not 0 <= capacity < matches.EARLIER:
            raise ConfigError(
                f"a history of {capacity} tokens is not allowed; it must be 0 to "
                f"{matches.EARLIER - 1}"
            )
        self.capacity = capacity
        self.tokens: Int32 = np.zeros(capacity + 1, dtype=np.int32)
        self.tokens[0] = -1
        self.n = self.n_texts = 0
        n_heads = 1
        while n_heads < min(capacity, _MOST_HEADS):
            n_heads *= 2
        self.heads: Int32 = np.full(n_heads, -1, dtype=np.int32)
        self.links: Int32 = np.zeros(capacity, dtype=np.int32)

    @property
    def n_bytes(self) -> int:
        """Memory of a full history."""
        return self.tokens.nbytes + self.heads.nbytes + self.links.nbytes

    def add(self, text: Int32) -> None:
        """Keep a text, int32[n], its end where it is longer than half of the capacity; one that
        stands there already is not kept twice."""
        text = text[max(0, len(text) - self.capacity // 2 + 1) :]
        if len(text) < _SHORTEST or self._holds(text):
            return
        if self.n + len(text) + 1 > self.capacity:
            self._drop_oldest()
        start, self.n = self.n, self.n + len(text) + 1
        self.tokens[start : self.n - 1] = text
        self.tokens[self.n - 1] = -1
        self.n_texts += 1
        matches.index_history(self.tokens, start, self.n, self.heads, self.links)

    def clear(self) -> None:
        """Forget every text."""
        self.n = self.n_texts = 0
        self.heads.fill(-1)

    def _holds(self, text: Int32) -> bool:
        return bool(matches.holds_text(self.tokens, text, self.heads, self.links))

    def _drop_oldest(self) -> None:
        """Drop whole texts from the front until half of the capacity is free."""
        ends = np.flatnonzero(self.tokens[: self.n] < 0) + 1
        cut = int(ends[np.searchsorted(ends, self.n - self.capacity // 2)])
        self.tokens[: self.n - cut] = self.tokens[cut : self.n].copy()
        self.n -= cut
        self.n_texts = int((ends > cut).sum())
        self.heads.fill(-1)
        matches.index_history(self.tokens, 0, self.n, self.heads, self.links)

    def texts(self) -> Int32:
        """int32[n], a copy of all tokens, oldest text first, -1 behind each."""
        return self.tokens[: self.n].copy()

    def load(self, tokens: Int32, n_vocab: int) -> None:
        """Take over what ``texts`` gave; the newest texts where it is more than there is room for.

        Raises
        ------
        ConfigError : not the tokens of whole texts of this vocabulary.
        """
        if tokens.ndim != 1 or tokens.dtype != np.int32:
            raise ConfigError(f"the saved history is {tokens.dtype}{list(tokens.shape)}, not int32")
        if len(tokens) and (tokens[-1] != -1 or tokens.min() < -1 or tokens.max() >= n_vocab):
            raise ConfigError("the saved history holds a token outside the vocabulary, or no end")
        self.clear()
        if len(tokens) > self.capacity:
            tokens = tokens[len(tokens) - self.capacity :]
            tokens = tokens[int(np.argmax(tokens < 0)) + 1 :]
        self.n = len(tokens)
        self.tokens[: self.n] = tokens
        self.n_texts = int((tokens < 0).sum())
        matches.index_history(self.tokens, 0, self.n, self.heads, self.links)


NOTHING: Any = History(0)
"""No earlier text."""
