"""Rows of logits by position, without memory for a whole context times the vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_tr.target import Float32, Int64

_MAX_LOGITS = 1 << 26
"""Most logits to keep (256 MiB)."""


class RecentRows:
    """The rows of the last positions.

    Parameters
    ----------
    n_vocab : logits in a row.
    n_rows : most rows; fewer where the vocabulary is so large that they take over 256 MiB.
    """

    def __init__(self, n_vocab: int, n_rows: int) -> None:
        self.n_vocab = n_vocab
        self.capacity = max(1, min(n_rows, _MAX_LOGITS // n_vocab))
        self._rows: Float32 = np.empty((self.capacity, n_vocab), dtype=np.float32)
        self._position: Int64 = np.full(self.capacity, -1, dtype=np.int64)

    def put(self, first: int, rows: Float32) -> None:
        """Keep float32[n, n_vocab], the rows after the tokens from position ``first`` on."""
        skip = max(0, len(rows) - self.capacity)
        position = np.arange(first + skip, first + len(rows))
        self._rows[position % self.capacity] = rows[skip:]
        self._position[position % self.capacity] = position

    def get(self, positions: Int64) -> Float32:
        """float32[n, n_vocab], a copy.

        Parameters
        ----------
        positions : int64[n].

        Raises
        ------
        IndexError : one of them is not kept.
        """
        slots = positions % self.capacity
        missing = positions[self._position[slots] != positions]
        if len(missing):
            raise IndexError(
                f"the logits after token {missing[0]} are not kept; logits_all=True keeps the "
                f"last ones, as many as fit into {_MAX_LOGITS * 4 >> 20} MiB"
            )
        rows: Float32 = self._rows[slots]
        return rows


class RowsView:
    """The first rows as an array would show them; for those that are not kept an IndexError."""

    def __init__(self, rows: RecentRows, n_rows: int) -> None:
        self.kept = rows
        self.shape = (n_rows, rows.n_vocab)
        self.dtype = np.dtype(np.float32)

    def first(self, n_rows: int) -> RowsView:
        """The first ``n_rows`` of them."""
        return RowsView(self.kept, n_rows)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        key, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        chosen = np.arange(len(self))[key]
        rows = self.kept.get(np.atleast_1d(chosen))
        if np.ndim(chosen) == 0:
            return rows[0][rest] if rest else rows[0]
        return rows[(slice(None), *rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self[:].astype(dtype or self.dtype, copy=False)

    def tolist(self) -> list[list[float]]:
        """All rows as lists."""
        rows: list[list[float]] = self[:].tolist()
        return rows

    def copy(self) -> Float32:
        """All rows, or one of zeros to stand for them where they are not kept."""
        try:
            rows: Float32 = self[:]
        except IndexError:
            return np.zeros((1, self.shape[1]), dtype=np.float32)
        return rows
