"""Places in the running text and in earlier texts that end with the same tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from edge_tr.kernels import CACHE

Array = np.ndarray[Any, Any]

MAX_MATCHES = 8
EARLIER = 1 << 30
"""Places of matches from here on lie in the history."""

LONGEST_MATCH = 32
"""Tokens of a match that are counted."""

N_KEY = 4
"""Least tokens that a match in the history agrees in."""

_MAX_EARLIER = 4
"""Matches in the history that are kept."""

_N_PLACES = 64
"""Latest places that are looked at for matches."""


class Index(NamedTuple):
    """Where the same tokens stand.

    Attributes
    ----------
    heads, links : int32[2**m], int32[>= n] of the committed sequence, see ``index_tokens``.
    history_heads, history_links : int32[2**m], int32[>= m], see ``index_history``.
    """

    heads: Array
    links: Array
    history_heads: Array
    history_links: Array


@njit(cache=CACHE, nogil=True)
def index_tokens(tokens: Array, first: int, last: int, heads: Array, links: Array) -> None:
    """Enter the positions ``first <= i < last`` of a sequence into the match index.

    Parameters
    ----------
    tokens : int32[n], the committed sequence.
    heads : int32[2**m]; last position whose two tokens up to it have this hash, or -1.
    links : int32[>= n]; the position before it in the same chain, or -1.
    """
    for i in range(max(first, 1), last):
        h = (tokens[i - 1] * 31 + tokens[i] * 2027) & (heads.shape[0] - 1)
        links[i] = heads[h]
        heads[h] = i


@njit(cache=CACHE, nogil=True)
def _history_key(tokens: Array, i: int, n_heads: int) -> int:
    """Hash of the ``N_KEY`` tokens up to a place; -1 where a text begins among them."""
    if i < N_KEY - 1:
        return -1
    key = np.int64(0)
    for j in range(N_KEY):
        t = tokens[i - j]
        if t < 0:
            return -1
        key = (key * np.int64(1000003) + t) & np.int64(0x7FFFFFFFFFFF)
    return int((key ^ (key >> 17)) & np.int64(n_heads - 1))


@njit(cache=CACHE, nogil=True)
def index_history(tokens: Array, first: int, last: int, heads: Array, links: Array) -> None:
    """Enter the places ``first <= i < last`` of the history into its index.

    Parameters
    ----------
    tokens : int32[n]; -1 stands behind each text.
    heads : int32[2**m]; last place whose ``N_KEY`` tokens up to it have this hash, or -1; written.
    links : int32[>= n]; the place before it in the same chain, or -1; written.
    """
    for i in range(first, last):
        h = _history_key(tokens, i, heads.shape[0])
        if h >= 0:
            links[i] = heads[h]
            heads[h] = i


@njit(cache=CACHE, nogil=True)
def _agreement(tokens: Array, n: int, other: Array, i: int) -> int:
    """How many tokens up to place ``i`` are those at the end of a sequence of ``n``."""
    length = 0
    most = min(LONGEST_MATCH, i + 1, n)
    while length < most and other[i - length] == tokens[n - 1 - length]:
        length += 1
    return length


@njit(cache=CACHE, nogil=True)
def holds_text(tokens: Array, text: Array, heads: Array, links: Array) -> bool:
    """Whether a text of at least ``N_KEY`` tokens stands in the history, as a part or whole; only
    the latest places are looked at."""
    n = text.shape[0]
    h = _history_key(text, n - 1, heads.shape[0])
    i = heads[h]
    for _ in range(_N_PLACES):
        if i < n - 1:
            break
        j = 0
        while j < n and tokens[i - j] == text[n - 1 - j]:
            j += 1
        if j == n:
            return True
        i = links[i]
    return False


@njit(cache=CACHE, nogil=True, forceinline=True)
def _keep_match(place: Array, length: Array, found: int, most: int, i: int, agreed: int) -> int:
    """Enter a match among the ``found`` longest, behind equal ones; how many there are then."""
    slot = found
    if found >= most:
        if length[most - 1] >= agreed:
            return found
        slot = most - 1
    while slot > 0 and length[slot - 1] < agreed:
        place[slot] = place[slot - 1]
        length[slot] = length[slot - 1]
        slot -= 1
    place[slot] = i
    length[slot] = agreed
    return min(found + 1, most)


@njit(cache=CACHE, nogil=True)
def _find_earlier(
    tokens: Array, n: int, index: Index, history: Array, matches: Array, found: int
) -> int:
    """Add the longest matches in the history to those in the text; how many there are then."""
    h = _history_key(tokens, n - 1, index.history_heads.shape[0])
    i = index.history_heads[h] if h >= 0 else -1
    place, length = np.empty(_MAX_EARLIER, np.int32), np.empty(_MAX_EARLIER, np.int32)
    n_earlier = 0
    for _ in range(_N_PLACES):
        if i < 0:
            break
        agreed = _agreement(tokens, n, history, i)
        if agreed >= N_KEY and history[i + 1] >= 0:
            n_earlier = _keep_match(place, length, n_earlier, _MAX_EARLIER, i + 1 + EARLIER, agreed)
        i = index.history_links[i]
    for m in range(n_earlier):
        found = _keep_match(matches[0], matches[1], found, MAX_MATCHES, place[m], length[m])
    return found


@njit(cache=CACHE, nogil=True)
def extend(tokens: Array, n: int, new: Array, index: Any, history: Array, matches: Array) -> int:
    """Extend a sequence, and find the places before that end with the same tokens: at least two
    of them in the sequence, at least ``N_KEY`` in the history.

    Parameters
    ----------
    tokens, n : int32[>= n + n_new], and how many there are; the new ones are written behind them.
    new : int32[n_new].
    index : a tuple with the members of ``Index``; those of the sequence are written. Its last
        position is not in it.
    history : int32[> m], earlier texts; -1 stands behind each.
    matches : int32[2, MAX_MATCHES], written: the place after each match, ``EARLIER`` added where
        it lies in the history, and how many tokens agree, at most ``LONGEST_MATCH``.

    Returns
    -------
    Number of matches: the longest ones of the last ``_N_PLACES`` of each kind, at most
    ``_MAX_EARLIER`` of the history. Among equals the sequence's own stand first, newer ones first.
    """
    known = Index(*index)
    for i in range(new.shape[0]):
        tokens[n + i] = new[i]
    first, n = n - 1, n + new.shape[0]
    index_tokens(tokens, first, n - 1, known.heads, known.links)
    if n < 3:
        return 0
    found = 0
    h = (tokens[n - 2] * 31 + tokens[n - 1] * 2027) & (known.heads.shape[0] - 1)
    i = known.heads[h]
    for _ in range(_N_PLACES):
        if i < 1:
            break
        agreed = _agreement(tokens, n, tokens, i)
        if agreed >= 2:
            found = _keep_match(matches[0], matches[1], found, MAX_MATCHES, i + 1, agreed)
        i = known.links[i]
    return int(_find_earlier(tokens, n, known, history, matches, found))
