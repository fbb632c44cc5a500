"""Candidates of several sources, and the draft tree that is best for them.

Sources of a node whose last two tokens are ``(a, b)``: the two-token row of ``(a, b)``, the
one-token row of ``b``, and the matches: places in the text so far that follow the same tokens.
Each candidate falls into a cell of the calibration by what the sources say of it::

    cell = (match class * N_CODES + two-token code) * N_CODES + one-token code

The code of a row is 0 = there is no row, 1 = the row lacks the candidate, 2 to 9 = the stored
probability, low to high. The match class is 0 = no match; 1 to 20 = the longest match, of equal
ones the newest, goes on with it: 5 classes of its length at each of 4 levels of how often matches
were right of late; 21 and 22 = only other matches go on with it; 23 to 25 = every match goes on
with something else, at level 0 or 1, 2, and 3.

A stored probability is a softmax over the k candidates of a row only, kept as such a code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from edge_tr.kernels import CACHE

Array = np.ndarray[Any, Any]

N_CODES = 10
N_CLASSES = 26
N_CELLS = N_CLASSES * N_CODES * N_CODES
MAX_CANDIDATES = 32
MAX_MATCHES = 8
N_SOURCES = 3
_WAYS = 4


@njit(cache=CACHE, nogil=True)
def _probability_code(p: float) -> int:
    if p < 0.04:
        return 2
    if p < 0.1:
        return 3
    if p < 0.2:
        return 4
    if p < 0.4:
        return 5
    if p < 0.6:
        return 6
    if p < 0.8:
        return 7
    if p < 0.95:
        return 8
    return 9


@njit(cache=CACHE, nogil=True)
def _match_class(length: int, says_other: bool, level: int) -> int:
    if says_other:
        return 21 if length < 4 else 22
    by_length = 5
    if length < 3:
        by_length = 1
    elif length < 5:
        by_length = 2
    elif length < 9:
        by_length = 3
    elif length < 17:
        by_length = 4
    return 5 * level + by_length


@njit(cache=CACHE, nogil=True)
def _match_level(rate: float) -> int:
    """0 to 3, low to high; 3 is a text that is being copied."""
    if rate < 0.35:
        return 0
    if rate < 0.8:
        return 1
    return 2 if rate < 0.95 else 3


@njit(cache=CACHE, nogil=True)
def _next_match_rate(rate: float, right: bool) -> float:
    return rate + 0.2 * ((1.0 if right else 0.0) - rate)


@njit(cache=CACHE, nogil=True)
def _first_way(keys: Array, a: int, b: int) -> int:
    """First place of the set that a two-token row belongs to; token ids are below 2**24."""
    mixed = np.int64(a) * np.int64(2654435761) + np.int64(b) * np.int64(2246822519)
    return int(((mixed & np.int64(0xFFFFFFFF)) >> 14) & np.int64(keys.shape[0] - _WAYS))


@njit(cache=CACHE, nogil=True)
def _find_pair(keys: Array, a: int, b: int) -> int:
    """Place of the two-token row, or -1."""
    key = (np.int64(a) << 32) | np.int64(b)
    first = _first_way(keys, a, b)
    for way in range(_WAYS):
        if keys[first + way] == key:
            return int(first + way)
    return -1


@njit(cache=CACHE, nogil=True)
def _claim_pair(keys: Array, stamps: Array, a: int, b: int, stamp: int) -> int:
    """Place of the two-token row, made where the set's longest unwritten row stood."""
    key = (np.int64(a) << 32) | np.int64(b)
    first = _first_way(keys, a, b)
    oldest = first
    for way in range(_WAYS):
        place = first + way
        if keys[place] == key:
            stamps[place] = stamp
            return int(place)
        if stamps[place] < stamps[oldest]:
            oldest = place
    keys[oldest] = key
    stamps[oldest] = stamp
    return int(oldest)


@njit(cache=CACHE, nogil=True)
def _gather(
    rows: Array,
    codes: Array,
    pair_keys: Array,
    pair_rows: Array,
    pair_codes: Array,
    a: int,
    b: int,
    match_token: Array,
    match_length: Array,
    n_matches: int,
    match_level: int,
    tokens: Array,
    cells: Array,
) -> int:
    """Candidates after ``(a, b)`` from every source, each token once."""
    n = 0
    place = -1
    if pair_keys.shape[0] > 0 and a >= 0:
        place = _find_pair(pair_keys, a, b)
    if place >= 0:
        for j in range(pair_rows.shape[1]):
            t = pair_rows[place, j]
            if t < 0:
                break
            tokens[n] = t
            cells[n] = np.int32(pair_codes[place, j]) * N_CODES
            n += 1
    lacking = 1 if place >= 0 else 0
    has_row = rows[b, 0] >= 0
    if has_row:
        for i in range(n):
            cells[i] += 1
    for j in range(rows.shape[1]):
        t = rows[b, j]
        if t < 0:
            break
        i = 0
        while i < n and tokens[i] != t:
            i += 1
        if i == n:
            tokens[n] = t
            cells[n] = lacking * N_CODES + codes[b, j]
            n += 1
        elif cells[i] % N_CODES == 1:  # a random row may hold a token twice: the first counts
            cells[i] += codes[b, j] - 1
    for m in range(n_matches):
        t = match_token[m]
        match_class = _match_class(match_length[m], t != match_token[0], match_level)
        i = 0
        while i < n and tokens[i] != t:
            i += 1
        if i == n:
            if n == MAX_CANDIDATES:
                continue
            tokens[n] = t
            cells[n] = lacking * N_CODES + (1 if has_row else 0)
            n += 1
        if cells[i] < N_CODES * N_CODES:  # the longest match stands first
            cells[i] += match_class * N_CODES * N_CODES
    if n_matches > 0:
        other_class = 22 + max(1, match_level)
        for i in range(n):
            if cells[i] < N_CODES * N_CODES:
                cells[i] += other_class * N_CODES * N_CODES
    return n


@njit(cache=CACHE, nogil=True)
def _estimate(cells: Array, n: int, calibration: Array, p: Array) -> None:
    """Probability of each candidate; where they add up to more than 1 they are scaled down."""
    total = 0.0
    for i in range(n):
        p[i] = calibration[0, cells[i]] / calibration[1, cells[i]]
        total += p[i]
    if total > 1.0:
        for i in range(n):
            p[i] /= total


@njit(cache=CACHE, nogil=True)
def _count_ranks(counts: Array, limit: float, source: int, row: Array, chosen: int) -> None:
    """Count, rank by rank, whether a source's candidate was the choice; old counts fade."""
    for rank in range(row.shape[0]):
        if row[rank] < 0:
            break
        counts[1, source, rank] += 1.0
        if row[rank] == chosen:
            counts[0, source, rank] += 1.0
        if counts[1, source, rank] > limit:
            counts[0, source, rank] *= 0.5
            counts[1, source, rank] *= 0.5


@njit(cache=CACHE, nogil=True)
def index_text(text: Array, first: int, last: int, heads: Array, links: Array) -> None:
    """Enter the positions ``first <= i < last`` of a text into the match index.

    Parameters
    ----------
    text : int32[n], the committed sequence.
    heads : int32[2**m]; last position whose two tokens up to it have this hash, or -1.
    links : int32[>= n]; the position before it in the same chain, or -1.
    """
    for i in range(max(first, 1), last):
        h = (text[i - 1] * 31 + text[i] * 2027) & (heads.shape[0] - 1)
        links[i] = heads[h]
        heads[h] = i


@njit(cache=CACHE, nogil=True)
def find_matches(
    text: Array,
    n: int,
    heads: Array,
    links: Array,
    match_next: Array,
    match_length: Array,
) -> int:
    """Earlier places that end with the same tokens as the text, at least two.

    Parameters
    ----------
    text, heads, links : as in ``index_text``; the last position is not indexed yet.
    match_next : int32[MAX_MATCHES], written: position after each match.
    match_length : int32[MAX_MATCHES], written: how many tokens agree, at most 32.

    Returns
    -------
    Number of matches: the longest ones of the last 64 places, newer ones first among equals.
    """
    if n < 3:
        return 0
    found = 0
    h = (text[n - 2] * 31 + text[n - 1] * 2027) & (heads.shape[0] - 1)
    i = heads[h]
    for _ in range(64):
        if i < 1:
            break
        length = 0
        while length < 32 and i - length >= 0 and text[i - length] == text[n - 1 - length]:
            length += 1
        if length >= 2:
            slot = found if found < MAX_MATCHES else MAX_MATCHES - 1
            if found < MAX_MATCHES or match_length[slot] < length:
                while slot > 0 and match_length[slot - 1] < length:
                    match_next[slot] = match_next[slot - 1]
                    match_length[slot] = match_length[slot - 1]
                    slot -= 1
                match_next[slot] = i + 1
                match_length[slot] = length
                found = min(found + 1, MAX_MATCHES)
        i = links[i]
    return found


@njit(cache=CACHE, nogil=True)
def _match_tokens(
    text: Array,
    n_text: int,
    match_next: Array,
    n: int,
    node: int,
    token: Array,
    parent: Array,
    depth: Array,
    match_token: Array,
) -> None:
    """What each match says comes next; past the end of the text it reads the path itself."""
    for m in range(n):
        i = match_next[m]
        if i < n_text:
            match_token[m] = text[i]
            continue
        up = node
        for _ in range(depth[node] - (i - n_text + 1)):
            up = parent[up]
        match_token[m] = token[up]


@njit(cache=CACHE, nogil=True)
def _push(heap_p: Array, heap_item: Array, n: int, p: float, token: int, parent: int) -> None:
    """Push onto a binary heap of ``n`` paths, the most probable one on top."""
    i = n
    while i > 0 and heap_p[(i - 1) // 2] < p:
        up = (i - 1) // 2
        heap_p[i] = heap_p[up]
        heap_item[0, i] = heap_item[0, up]
        heap_item[1, i] = heap_item[1, up]
        i = up
    heap_p[i] = p
    heap_item[0, i] = token
    heap_item[1, i] = parent


@njit(cache=CACHE, nogil=True)
def _pop(heap_p: Array, heap_item: Array, n: int) -> None:
    """Take the top off a binary heap of ``n`` paths."""
    last = n - 1
    p, token, parent = heap_p[last], heap_item[0, last], heap_item[1, last]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        if child + 1 < last and heap_p[child + 1] > heap_p[child]:
            child += 1
        if heap_p[child] <= p:
            break
        heap_p[i] = heap_p[child]
        heap_item[0, i] = heap_item[0, child]
        heap_item[1, i] = heap_item[1, child]
        i = child
    heap_p[i] = p
    heap_item[0, i] = token
    heap_item[1, i] = parent


@njit(cache=CACHE, nogil=True)
def grow_tree(
    rows: Array,
    codes: Array,
    pair_keys: Array,
    pair_rows: Array,
    pair_codes: Array,
    calibration: Array,
    text: Array,
    n_text: int,
    root_matches: Array,
    n_root_matches: int,
    match_rate: Array,
    max_nodes: int,
    max_depth: int,
    max_lanes: int,
    seconds: Array,
    price: float,
    margin: float,
    grown: Array,
    grown_p: Array,
    matches: Array,
    heap_p: Array,
    heap_item: Array,
    token: Array,
    parent: Array,
    depth: Array,
    chance: Array,
) -> int:
    """Grow a tree best-first and cut it where one more node costs more than it brings.

    Parameters
    ----------
    rows, codes : int32 and uint8[n_vocab, k], one-token rows and their codes.
    pair_keys, pair_rows, pair_codes : int64[n], int32 and uint8[n, k2], two-token rows;
        n = 0 switches them off.
    calibration : float64[2, N_CELLS]: hits and trials of each cell.
    text, n_text : int32[...], the committed sequence; the root is its last token.
    root_matches, n_root_matches : int32[2, MAX_MATCHES] from ``find_matches``.
    match_rate : float64[1]; share of the longest matches that were right, of late. It rises along
        a path that follows the longest match.
    max_nodes, max_depth, max_lanes : bounds of the tree.
    seconds : float64[>= max_nodes + 1]; cost of a step with that many nodes.
    price : what a second is worth, in tokens; 0 fills the tree up to its bounds.
    margin : tokens that a tree must promise beyond its cost, or nothing is drafted.
    grown, grown_p, matches, heap_p, heap_item : int32[7, size], float32[3, size],
        int32[2, size, MAX_MATCHES], float32[size * MAX_CANDIDATES] and
        int32[2, size * MAX_CANDIDATES]; scratch, size > max_nodes and > MAX_CANDIDATES.
    token, parent, depth : int32[> max_nodes], written in BFS order; node 0 is the root.
    chance : float32[> max_nodes], written: estimated probability of each node's path.

    Returns
    -------
    Number of nodes, root included.
    """
    g_token, g_parent, g_depth, n_children, n_matches = (
        grown[0],
        grown[1],
        grown[2],
        grown[3],
        grown[4],
    )
    match_token, cell = grown[5], grown[6]
    g_chance, p, g_rate = grown_p[0], grown_p[1], grown_p[2]
    cand_token = heap_item[0, heap_item.shape[1] - MAX_CANDIDATES :]
    g_token[0], g_parent[0], g_depth[0], n_children[0] = text[n_text - 1], -1, 0, 0
    g_chance[0], g_rate[0] = 1.0, match_rate[0]
    n_matches[0] = n_root_matches
    matches[:, 0, :n_root_matches] = root_matches[:, :n_root_matches]
    n, n_heap, n_lanes = 1, 0, 1
    best_n, best_value, gained = 1, margin, 0.0
    node = 0
    while True:
        if g_depth[node] < max_depth and g_chance[node] > 1e-4:
            before = text[n_text - 2] if n_text > 1 else -1
            if node > 0:
                before = g_token[g_parent[node]]
            count = n_matches[node]
            _match_tokens(
                text, n_text, matches[0, node], count, node, g_token, g_parent, g_depth, match_token
            )
            n_cand = _gather(
                rows,
                codes,
                pair_keys,
                pair_rows,
                pair_codes,
                before,
                g_token[node],
                match_token,
                matches[1, node],
                count,
                _match_level(g_rate[node]),
                cand_token,
                cell,
            )
            _estimate(cell, n_cand, calibration, p)
            for c in range(n_cand):
                _push(heap_p, heap_item, n_heap, g_chance[node] * p[c], cand_token[c], node)
                n_heap += 1
        # Take the most probable path; one that needs a lane too many is dropped.
        while n_heap > 0 and n_children[heap_item[1, 0]] > 0 and n_lanes == max_lanes:
            _pop(heap_p, heap_item, n_heap)
            n_heap -= 1
        if n > max_nodes or n_heap == 0:
            break
        # Could any larger tree still pay, were every further path as probable as this one?
        hopeful = False
        for m in range(n, max_nodes + 1):
            most = gained + (m - n + 1) * heap_p[0]
            if most - price * (seconds[m] - seconds[0]) > best_value:
                hopeful = True
                break
        if not hopeful:
            break
        up = heap_item[1, 0]
        g_token[n], g_parent[n], g_depth[n] = heap_item[0, 0], up, g_depth[up] + 1
        g_chance[n] = heap_p[0]
        _pop(heap_p, heap_item, n_heap)
        n_heap -= 1
        n_lanes += n_children[up] > 0
        n_children[up] += 1
        n_children[n] = 0
        n_matches[n] = 0
        count = n_matches[up]
        _match_tokens(
            text, n_text, matches[0, up], count, up, g_token, g_parent, g_depth, match_token
        )
        g_rate[n] = g_rate[up]
        if count > 0:
            g_rate[n] = _next_match_rate(g_rate[up], match_token[0] == g_token[n])
        for m in range(count):
            if match_token[m] == g_token[n]:
                matches[0, n, n_matches[n]] = matches[0, up, m] + 1
                matches[1, n, n_matches[n]] = min(32, matches[1, up, m] + 1)
                n_matches[n] += 1
        gained += g_chance[n]
        node = n
        n += 1
        value = gained - price * (seconds[n - 1] - seconds[0])
        if value > best_value:
            best_n, best_value = n, value
    # BFS order: a stable counting sort by depth. ``cell`` and ``match_token`` are free now.
    place, count_at = match_token, n_children
    deepest = 0
    for i in range(best_n):
        deepest = max(deepest, g_depth[i])
    done = 0
    count_at[:best_n] = 0
    for d in range(deepest + 1):
        for i in range(best_n):
            if g_depth[i] == d:
                place[i] = done
                token[done] = g_token[i]
                depth[done] = d
                chance[done] = g_chance[i]
                parent[done] = -1 if i == 0 else place[g_parent[i]]
                done += 1
    return best_n


@njit(cache=CACHE, nogil=True)
def recycle_rows(
    rows: Array,
    codes: Array,
    pair_keys: Array,
    pair_stamps: Array,
    pair_rows: Array,
    pair_codes: Array,
    stamp: int,
    before: Array,
    token: Array,
    slot: Array,
    n: int,
    ids: Array,
    values: Array,
    by_rank: bool,
) -> None:
    """Overwrite the rows of each node's last token and last two tokens.

    Parameters
    ----------
    rows, codes, pair_keys, pair_rows, pair_codes : as in ``grow_tree``, written.
    pair_stamps : int64[n], written: when each two-token row was last written.
    stamp : a number larger than in any call before.
    before : int32[>= n]; token in front of each node, or -1.
    token, slot : int32[>= n], the nodes in BFS order; of repeated ones the last wins.
    ids, values : int32 and float32[>= n, k]; row ``slot[i]`` belongs to node i.
    by_rank : store a code for the rank instead of the probability; to measure what the
        probabilities bring.
    """
    k, k2 = rows.shape[1], pair_rows.shape[1]
    code = np.empty(k, np.uint8)
    for i in range(n):
        s, t = slot[i], token[i]
        total = 0.0
        for j in range(k):
            if ids[s, j] >= 0:
                total += np.exp(values[s, j] - values[s, 0])
        for j in range(k):
            rows[t, j] = ids[s, j]
            share = np.exp(values[s, j] - values[s, 0]) / total if ids[s, j] >= 0 else 0.0
            code[j] = max(2, 8 - 2 * j) if by_rank else _probability_code(share)
            codes[t, j] = code[j]
        if pair_keys.shape[0] > 0 and before[i] >= 0:
            place = _claim_pair(pair_keys, pair_stamps, before[i], t, stamp)
            for j in range(k2):
                pair_rows[place, j] = ids[s, j] if j < k else -1
                pair_codes[place, j] = code[j] if j < k else 0


@njit(cache=CACHE, nogil=True)
def calibrate(
    rows: Array,
    codes: Array,
    pair_keys: Array,
    pair_rows: Array,
    pair_codes: Array,
    calibration: Array,
    rank_counts: Array,
    limit: float,
    text: Array,
    n_text: int,
    root_matches: Array,
    n_root_matches: int,
    match_rate: Array,
    emitted: Array,
    n_emitted: int,
    tokens: Array,
    cells: Array,
) -> None:
    """Count for every candidate on the accepted path whether it was the model's choice.

    Called before the rows of the step are overwritten; whether a candidate was drafted does not
    matter. A cell whose trials pass ``limit`` is halved, so that old counts fade.

    Parameters
    ----------
    rows to match_rate : as in ``grow_tree``; ``calibration`` and ``match_rate`` are written.
    rank_counts : float64[2, N_SOURCES, MAX_MATCHES or more], written: hits and trials of each
        rank of the two-token row, the one-token row and the matches, the longest match first.
    emitted : int32[>= n_emitted], the tokens the step emitted after the root.
    tokens, cells : int32[MAX_CANDIDATES], scratch.
    """
    match_next = root_matches[0].copy()
    match_length = root_matches[1].copy()
    match_token = np.empty(MAX_MATCHES, np.int32)
    n_matches = n_root_matches
    a = text[n_text - 2] if n_text > 1 else -1
    b = text[n_text - 1]
    for e in range(n_emitted):
        for m in range(n_matches):
            i = match_next[m]
            match_token[m] = text[i] if i < n_text else emitted[i - n_text]
        n = _gather(
            rows,
            codes,
            pair_keys,
            pair_rows,
            pair_codes,
            a,
            b,
            match_token,
            match_length,
            n_matches,
            _match_level(match_rate[0]),
            tokens,
            cells,
        )
        chosen = emitted[e]
        if pair_keys.shape[0] > 0 and a >= 0:
            place = _find_pair(pair_keys, a, b)
            if place >= 0:
                _count_ranks(rank_counts, limit, 0, pair_rows[place], chosen)
        _count_ranks(rank_counts, limit, 1, rows[b], chosen)
        _count_ranks(rank_counts, limit, 2, match_token[:n_matches], chosen)
        for i in range(n):
            cell = cells[i]
            calibration[1, cell] += 1.0
            if tokens[i] == chosen:
                calibration[0, cell] += 1.0
            if calibration[1, cell] > limit:
                calibration[0, cell] *= 0.5
                calibration[1, cell] *= 0.5
        if n_matches > 0:
            match_rate[0] = _next_match_rate(match_rate[0], match_token[0] == chosen)
        kept = 0
        for m in range(n_matches):
            if match_token[m] == chosen:
                match_next[kept] = match_next[m] + 1
                match_length[kept] = min(32, match_length[m] + 1)
                kept += 1
        n_matches = kept
        a, b = b, chosen


@njit(cache=CACHE, nogil=True)
def insert_pairs(
    pair_keys: Array,
    pair_stamps: Array,
    pair_rows: Array,
    pair_codes: Array,
    new_keys: Array,
    new_rows: Array,
    new_codes: Array,
) -> None:
    """Enter two-token rows from a file, the first ones being the oldest.

    Parameters
    ----------
    pair_keys, pair_stamps, pair_rows, pair_codes : as in ``recycle_rows``, written.
    new_keys, new_rows, new_codes : int64[n], int32 and uint8[n, k2].
    """
    for i in range(new_keys.shape[0]):
        a, b = new_keys[i] >> 32, new_keys[i] & np.int64(0xFFFFFFFF)
        place = _claim_pair(pair_keys, pair_stamps, a, b, i + 1)
        pair_rows[place] = new_rows[i]
        pair_codes[place] = new_codes[i]


@njit(cache=CACHE, nogil=True)
def learn_step(
    rows: Array,
    codes: Array,
    pair_keys: Array,
    pair_rows: Array,
    pair_codes: Array,
    pair_stamps: Array,
    calibration: Array,
    rank_counts: Array,
    limit: float,
    stamp: int,
    by_rank: bool,
    text: Array,
    n_text: int,
    heads: Array,
    links: Array,
    matches: Array,
    n_matches: int,
    match_rate: Array,
    counting: bool,
    token: Array,
    parent: Array,
    slot: Array,
    n: int,
    ids: Array,
    values: Array,
    emitted: Array,
    tokens: Array,
    cells: Array,
) -> int:
    """All that follows a verify step, in one call: calibrate, recycle, extend the text, match.

    Parameters
    ----------
    All as in ``calibrate``, ``recycle_rows``, ``index_text`` and ``find_matches``; ``text`` and
    ``matches`` are written.
    counting : whether to calibrate.
    token, parent, slot, n : the draft tree of the step, root included, in BFS order.

    Returns
    -------
    Number of matches of the extended text.
    """
    n_emitted = emitted.shape[0]
    if counting:
        calibrate(
            rows,
            codes,
            pair_keys,
            pair_rows,
            pair_codes,
            calibration,
            rank_counts,
            limit,
            text,
            n_text,
            matches,
            n_matches,
            match_rate,
            emitted,
            n_emitted,
            tokens,
            cells,
        )
    before = np.empty(n, np.int32)
    before[0] = text[n_text - 2] if n_text > 1 else -1
    for i in range(1, n):
        before[i] = token[parent[i]]
    recycle_rows(
        rows,
        codes,
        pair_keys,
        pair_stamps,
        pair_rows,
        pair_codes,
        stamp,
        before,
        token,
        slot,
        n,
        ids,
        values,
        by_rank,
    )
    for i in range(n_emitted):
        text[n_text + i] = emitted[i]
    index_text(text, n_text - 1, n_text + n_emitted - 1, heads, links)
    return int(find_matches(text, n_text + n_emitted, heads, links, matches[0], matches[1]))
