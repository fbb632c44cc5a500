"""The k largest logits of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from . import CACHE

Array = np.ndarray[Any, Any]


@njit(cache=CACHE, nogil=True, error_model="numpy")
def topk_rows(logits: Array, first: int, last: int, ids: Array, values: Array) -> None:
    """Write the k largest entries of rows ``first`` to ``last - 1``, best first.

    A row is scanned in blocks; a block is looked at closely only when one of its entries
    beats the current k-th value, which is rare after the first few blocks.

    Parameters
    ----------
    logits : float32[n_rows, n_vocab], C order, read only.
    first, last : rows ``first <= r < last`` are worked on, so that threads can share a call.
    ids : int32[>= n_rows, k], written. -1 where a row has fewer than k entries that count.
    values : float32[>= n_rows, k], written; the logits of ``ids``, -inf beside -1.

    Notes
    -----
    Ties: the lower token id comes first, as in llama.cpp's greedy sampler. NaN and -inf are
    never candidates.
    """
    n_vocab = logits.shape[1]
    k = ids.shape[1]
    for r in range(first, last):
        row = logits[r]
        best_ids = ids[r]
        best = values[r]
        best_ids[:] = -1
        best[:] = -np.inf
        threshold = best[k - 1]
        for start in range(0, n_vocab, 512):
            if start + 512 <= n_vocab:
                # The constant trip count and the uint32 "any" are what LLVM turns into SIMD.
                block = row[start : start + 512]
                hit = np.uint32(0)
                for j in range(512):
                    hit |= np.uint32(1) if block[j] > threshold else np.uint32(0)
                if hit == 0:
                    continue
            for j in range(start, min(start + 512, n_vocab)):
                x = row[j]
                if x > threshold:
                    slot = k - 1
                    while slot > 0 and best[slot - 1] < x:
                        best[slot] = best[slot - 1]
                        best_ids[slot] = best_ids[slot - 1]
                        slot -= 1
                    best[slot] = x
                    best_ids[slot] = j
                    threshold = best[k - 1]
