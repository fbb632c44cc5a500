"""The k largest logits of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from edge_tr.kernels import CACHE

Array = np.ndarray[Any, Any]


_BLOCK = 256
_INF_KEY = np.int32(0x7F800000)
_LOWEST_KEY = np.int32(-(1 << 31))


@njit(cache=CACHE, nogil=True, error_model="numpy", inline="always")
def _largest_key(bits: Array, n: int) -> np.int32:
    """The largest of n floats as an integer that sorts as they do; NaN counts as the lowest."""
    most = _LOWEST_KEY
    for j in range(n):
        x = bits[j]
        key = x if x >= 0 else -(x & np.int32(0x7FFFFFFF))  # the two zeros are equal
        key = key if key <= _INF_KEY else _LOWEST_KEY
        most = key if key > most else most
    return most


@njit(cache=CACHE, nogil=True, error_model="numpy")
def topk_rows(logits: Array, first: int, last: int, ids: Array, values: Array) -> None:
    """Write the k largest entries of rows ``first`` to ``last - 1``, best first.

    A row is read once for the largest entry of each block. At least k entries reach the k-th
    largest of these, so only the blocks that reach it, seldom more than k, are looked at closely.

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
    n_blocks = (n_vocab + _BLOCK - 1) // _BLOCK
    block_best = np.empty(n_blocks, np.int32)
    kth = np.empty(k, np.int32)
    for r in range(first, last):
        row = logits[r]
        bits = row.view(np.int32)
        best_ids, best = ids[r], values[r]
        for slot in range(k):
            kth[slot], best_ids[slot], best[slot] = _LOWEST_KEY, -1, -np.inf
        for b in range(n_blocks):
            start = b * _BLOCK
            # The constant trip count is what LLVM turns into SIMD.
            if start + _BLOCK <= n_vocab:
                most = _largest_key(bits[start : start + _BLOCK], _BLOCK)
            else:
                most = _largest_key(bits[start:], n_vocab - start)
            block_best[b] = most
            if most > kth[k - 1]:
                slot = k - 1
                while slot > 0 and kth[slot - 1] < most:
                    kth[slot] = kth[slot - 1]
                    slot -= 1
                kth[slot] = most
        least = kth[k - 1]
        threshold = best[k - 1]
        for b in range(n_blocks):
            if block_best[b] < least:
                continue
            start = b * _BLOCK
            for j in range(start, min(start + _BLOCK, n_vocab)):
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
