"""The best tokens of each row of logits, on one or more threads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from edge_tr.errors import ConfigError
from edge_tr.kernels.topk import topk_rows
from edge_tr.target import Float32, Int32

_MIN_PER_THREAD = 1 << 19
"""Logits that are worth handing to another thread (about 20 microseconds of work)."""


def default_threads() -> int:
    """Threads that a session gives to the top-k."""
    return min(4, os.cpu_count() or 1)


class TopK:
    """Finds the k best tokens of each row; keeps its buffers and threads between calls.

    Parameters
    ----------
    k : how many, 1 or more.
    n_threads : most threads to use; a call too small to gain from more uses fewer.
    """

    def __init__(self, k: int, n_threads: int = 1) -> None:
        if k < 1:
            raise ConfigError(f"k {k} is not allowed; it must be 1 or more")
        if n_threads < 1:
            raise ConfigError(f"n_threads {n_threads} is not allowed; it must be 1 or more")
        self.k = k
        self.n_threads = n_threads
        self._ids: Int32 = np.zeros((0, k), dtype=np.int32)
        self._values: Float32 = np.zeros((0, k), dtype=np.float32)
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, logits: Float32) -> tuple[Int32, Float32]:
        """Best tokens and their logits.

        Parameters
        ----------
        logits : float32[n_rows, n_vocab], C order, read only.

        Returns
        -------
        ids : int32[n_rows, k], best first; ties: the lower id first; -1 where a row has fewer
            than k entries above -inf (NaN never counts). Valid until the next call.
        values : float32[n_rows, k], the logits of ``ids``; -inf beside -1.
        """
        n_rows = len(logits)
        if n_rows > len(self._ids):
            self._ids = np.zeros((n_rows, self.k), dtype=np.int32)
            self._values = np.zeros((n_rows, self.k), dtype=np.float32)
        n_parts = min(self.n_threads, n_rows, max(1, logits.size // _MIN_PER_THREAD))
        if n_parts <= 1:
            topk_rows(logits, 0, n_rows, self._ids, self._values)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.n_threads - 1, "edge-tr-topk")
            edges = [n_rows * part // n_parts for part in range(n_parts + 1)]
            parts = [
                self._pool.submit(topk_rows, logits, first, last, self._ids, self._values)
                for first, last in pairwise(edges[1:])
            ]
            topk_rows(logits, 0, edges[1], self._ids, self._values)
            for part in parts:
                part.result()
        return self._ids[:n_rows], self._values[:n_rows]
