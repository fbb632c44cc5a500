"""The adjacency matrix: the most probable next tokens last seen after each token."""

from __future__ import annotations

import numpy as np

from edge_tr.drafts.template import MAX_K
from edge_tr.errors import ConfigError
from edge_tr.target import Int32


class AdjacencyMatrix:
    """Rows of candidates, one row for each token of the vocabulary.

    Parameters
    ----------
    n_vocab : number of tokens, 1 to 2**24.
    k : candidates per row, 1 to 16; their column is their rank, 0 = best.

    Attributes
    ----------
    rows : int32[n_vocab, k], C order; -1 = no candidate. Takes ``4 * n_vocab * k`` bytes:
        1.5 MiB for 49k tokens at k = 8, 8 MiB for 262k.

    Source: Luo et al., Token Recycling, arXiv 2408.08696, section 3.1.
    """

    def __init__(self, n_vocab: int, k: int = 8) -> None:
        if not 1 <= n_vocab <= 1 << 24:
            raise ConfigError(f"n_vocab {n_vocab} is not allowed; it must be 1 to {1 << 24}")
        if not 1 <= k <= MAX_K:
            raise ConfigError(f"k {k} is not allowed; it must be 1 to {MAX_K}")
        self.n_vocab = n_vocab
        self.k = k
        self.rows: Int32 = np.full((n_vocab, k), -1, dtype=np.int32)

    @classmethod
    def random(cls, n_vocab: int, k: int = 8, *, seed: int = 0) -> AdjacencyMatrix:
        """Rows of random tokens, the paper's worst start; for experiments and tests."""
        matrix = cls(n_vocab, k)
        rng = np.random.default_rng(seed)
        matrix.rows[:] = rng.integers(0, n_vocab, size=(n_vocab, k), dtype=np.int32)
        return matrix

    @property
    def n_seen(self) -> int:
        """Number of rows that hold a candidate."""
        return int((self.rows[:, 0] >= 0).sum())

    def reset(self) -> None:
        """Forget every candidate."""
        self.rows.fill(-1)

    def set_row(self, token: int, candidates: Int32) -> None:
        """Overwrite the row of ``token`` with up to k candidates, best first.

        Raises
        ------
        ConfigError : a token or candidate outside the vocabulary, or too many candidates.
        """
        candidates = np.asarray(candidates, dtype=np.int32)
        if not 0 <= token < self.n_vocab:
            raise ConfigError(f"token {token} is not in the vocabulary (0 to {self.n_vocab - 1})")
        if len(candidates) > self.k:
            raise ConfigError(f"{len(candidates)} candidates given; a row has k = {self.k}")
        check_candidates(candidates, self.n_vocab)
        self.rows[token] = -1
        self.rows[token, : len(candidates)] = candidates


def check_candidates(candidates: Int32, n_vocab: int) -> None:
    """Raise ConfigError unless every entry is -1 or a token of the vocabulary."""
    wrong = (candidates < -1) | (candidates >= n_vocab)
    if wrong.any():
        value = int(candidates[wrong].flat[0])
        raise ConfigError(f"candidate {value} is not in the vocabulary (0 to {n_vocab - 1})")
