"""Candidates of several sources, and the draft tree that is best for them.

Sources of a node whose last two tokens are ``(a, b)``: the two-token row of ``(a, b)``, the
one-token row of ``b``, and the matches: places in the text so far, or in the history of earlier
texts, that follow the same tokens.
Each candidate falls into a cell of the calibration by what the sources say of it::

    cell = (match class * N_CODES + two-token code) * N_CODES + one-token code

The code of a row is 0 = there is no row, 1 = the row lacks the candidate, 2 to 9 = the stored
probability, low to high. The match class is 0 = no match; 1 to 20 = the first match (the longest,
of equal ones the newest) goes on with it: 5 classes of its length at each of 4 levels of how often
matches were right of late; 21 and 22 = only other matches go on with it; 23 to 25 = every match
goes on with something else, at level 0 or 1, 2, and 3. Where the first match lies in an earlier
text, 26 to 45 and 46 to 48 stand for 1 to 20 and 23 to 25.

A stored probability is a softmax over the k candidates of a row only, kept as such a code.

Many arrays go together. Python hands them over as plain tuples, which Numba takes at the cost of
their members; inside they have names (``Sources``, ``Committed``, ``Nodes``, ``Growing``). None is
assigned whole: Numba would compile its error's text too, for seconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from edge_tr.kernels import CACHE

Array = np.ndarray[Any, Any]

N_CODES = 10
N_CLASSES = 49
N_CELLS = N_CLASSES * N_CODES * N_CODES
N_OWN_CELLS = 26 * N_CODES * N_CODES
"""Cells of the classes that know of no history; they come first."""

MAX_CANDIDATES = 32
"""Room for the candidates of one node: two rows and the matches."""

MAX_MATCHES = 8
N_SOURCES = 3
EARLIER = 1 << 30
_WAYS = 4

LONGEST_MATCH = 32
"""These three are those of ``matches``; a constant of another file would get stale in the cache."""

_LEAST_CHANCE = 1e-4
"""A path less probable is not followed further."""


class Sources(NamedTuple):
    """What was learned.

    Attributes
    ----------
    rows, codes : int32 and uint8[n_vocab, k], one-token rows and their codes.
    pair_keys, pair_rows, pair_codes : int64[n], int32 and uint8[n, k2], two-token rows; n = 0
        switches them off.
    pair_stamps : int64[n]; when each two-token row was last written.
    calibration : float64[2, N_CELLS]: hits and trials of each cell.
    rank_counts : float64[2, N_SOURCES, MAX_MATCHES or more]: hits and trials of each rank of the
        two-token row, the one-token row and the matches, the longest match first.
    """

    rows: Array
    codes: Array
    pair_keys: Array
    pair_rows: Array
    pair_codes: Array
    pair_stamps: Array
    calibration: Array
    rank_counts: Array


class Committed(NamedTuple):
    """The committed sequence, and the earlier places that end with the same tokens.

    Attributes
    ----------
    tokens, n : int32[>= n]; the last of them is the root.
    matches, n_matches : int32[2, MAX_MATCHES] from ``matches.extend``: the place after each match,
        ``EARLIER`` added where it lies in the history, and how many tokens agree.
    match_rate : float64[2]; share of the longest matches that were right, of late, in the text
        itself and in the history. It rises along a path that follows such a match.
    history : int32[> m], earlier texts; -1 stands behind each.
    """

    tokens: Array
    n: int
    matches: Array
    n_matches: int
    match_rate: Array
    history: Array


class Nodes(NamedTuple):
    """The nodes of a decoded tree, or the tokens of a prompt.

    Attributes
    ----------
    token, slot : int32[>= n] in BFS order; row ``slot[i]`` belongs to node i.
    before : int32[>= n]; the token in front of each node or -1; in ``learn_step`` its parent.
    n : number of nodes, the root included.
    ids, values : int32 and float32[>= n, k]; the best tokens after each node and their logits.
    """

    token: Array
    slot: Array
    before: Array
    n: int
    ids: Array
    values: Array


class Growing(NamedTuple):
    """A tree while it grows; see ``make_scratch``. Nodes stand in the order they were taken in.

    Attributes
    ----------
    token, parent, depth, n_children : int32[size] of each node.
    chance : float32[size]; estimated probability of the path to it.
    matches, n_matches : int32[2, size, MAX_MATCHES] and int32[size]; matches that go on through it.
    rate : float32[2, size]; ``match_rate`` behind it.
    heap_p, heap_item : float32 and int32[2, size * MAX_CANDIDATES]; paths that may come next, as a
        heap by probability: the token and the parent of each.
    next_token, cell, probability : int32, int32 and float32[MAX_CANDIDATES]; of one node.
    match_token : int32[MAX_MATCHES]; what each match of one node says comes next.
    """

    token: Array
    parent: Array
    depth: Array
    n_children: Array
    chance: Array
    matches: Array
    n_matches: Array
    rate: Array
    heap_p: Array
    heap_item: Array
    next_token: Array
    cell: Array
    probability: Array
    match_token: Array


def make_scratch(max_nodes: int) -> tuple[Array, ...]:
    """Arrays in which ``grow_tree`` grows a tree of at most ``max_nodes`` nodes below the root."""
    size = max_nodes + 1
    n_heap = size * MAX_CANDIDATES  # each node is expanded once
    token, parent, depth, n_children, n_matches = np.zeros((5, size), dtype=np.int32)
    chance = np.zeros(size, dtype=np.float32)
    next_token, cell = np.zeros((2, MAX_CANDIDATES), dtype=np.int32)
    scratch = Growing(
        token=token,
        parent=parent,
        depth=depth,
        n_children=n_children,
        chance=chance,
        matches=np.zeros((2, size, MAX_MATCHES), dtype=np.int32),
        n_matches=n_matches,
        rate=np.zeros((2, size), dtype=np.float32),
        heap_p=np.zeros(n_heap, dtype=np.float32),
        heap_item=np.zeros((2, n_heap), dtype=np.int32),
        next_token=next_token,
        cell=cell,
        probability=np.zeros(MAX_CANDIDATES, dtype=np.float32),
        match_token=np.zeros(MAX_MATCHES, dtype=np.int32),
    )
    return tuple(scratch)


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
def _match_class(length: int, says_other: bool, level: int, earlier: bool) -> int:
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
    return 5 * level + by_length + (25 if earlier else 0)


@njit(cache=CACHE, nogil=True)
def _match_level(rate: float) -> int:
    """0 to 3, low to high; 3 is a text that is being copied."""
    if rate < 0.35:
        return 0
    if rate < 0.8:
        return 1
    return 2 if rate < 0.95 else 3


@njit(cache=CACHE, nogil=True, forceinline=True)
def _follow_rates(rates: Array, place: Array, token: Array, n: int, chosen: int) -> None:
    """Take note of whether the longest match of each kind was right."""
    seen_own, seen_earlier = False, False
    for m in range(n):
        kind = 1 if place[m] >= EARLIER else 0
        if (kind == 0 and not seen_own) or (kind == 1 and not seen_earlier):
            rates[kind] += 0.2 * ((1.0 if token[m] == chosen else 0.0) - rates[kind])
        seen_own = seen_own or kind == 0
        seen_earlier = seen_earlier or kind == 1


@njit(cache=CACHE, nogil=True, forceinline=True)
def _follow_matches(
    line: Committed, place: Array, length: Array, token: Array, n: int, chosen: int,
    new_place: Array, new_length: Array,
) -> int:  # fmt: skip
    """Write the matches that go on with a token, one token further; how many they are. A match
    ends with its text. The new arrays may be the old ones."""
    kept = 0
    for m in range(n):
        if token[m] != chosen:
            continue
        i = place[m] + 1
        if i >= EARLIER and line.history[i - EARLIER] < 0:
            continue
        new_place[kept] = i
        new_length[kept] = min(LONGEST_MATCH, length[m] + 1)
        kept += 1
    return kept


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


@njit(cache=CACHE, nogil=True, forceinline=True)
def _gather(
    sources: Sources,
    a: int,
    b: int,
    match_token: Array,
    match: Array,
    n_matches: int,
    rates: Array,
    tokens: Array,
    cells: Array,
) -> int:
    """Candidates after ``(a, b)`` from every source, each token once."""
    rows, codes = sources.rows, sources.codes
    pair_keys, pair_rows, pair_codes = sources.pair_keys, sources.pair_rows, sources.pair_codes
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
    earlier = n_matches > 0 and match[0, 0] >= EARLIER
    match_level = _match_level(rates[1 if earlier else 0])
    for m in range(n_matches):
        t = match_token[m]
        match_class = _match_class(match[1, m], t != match_token[0], match_level, earlier)
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
        other_class = (45 if earlier else 22) + max(1, match_level)
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


@njit(cache=CACHE, nogil=True, forceinline=True)
def _match_tokens(line: Committed, growing: Growing, node: int) -> int:
    """Write what each match of a node says comes next; past the end of the sequence it reads the
    path itself. How many there are."""
    n = growing.n_matches[node]
    for m in range(n):
        i = growing.matches[0, node, m]
        if i >= EARLIER:
            growing.match_token[m] = line.history[i - EARLIER]
            continue
        if i < line.n:
            growing.match_token[m] = line.tokens[i]
            continue
        up = node
        for _ in range(growing.depth[node] - (i - line.n + 1)):
            up = growing.parent[up]
        growing.match_token[m] = growing.token[up]
    return int(n)


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


@njit(cache=CACHE, nogil=True, forceinline=True)
def _plant(line: Committed, growing: Growing) -> None:
    """Make the last committed token the root."""
    growing.token[0], growing.parent[0], growing.depth[0] = line.tokens[line.n - 1], -1, 0
    growing.n_children[0], growing.chance[0], growing.n_matches[0] = 0, 1.0, line.n_matches
    for i in range(2):
        growing.rate[i, 0] = line.match_rate[i]
        for j in range(line.n_matches):
            growing.matches[i, 0, j] = line.matches[i, j]


@njit(cache=CACHE, nogil=True, forceinline=True)
def _push_children(
    sources: Sources, line: Committed, growing: Growing, node: int, n_heap: int
) -> int:
    """Put the paths to all candidates of a node on the heap; its new length."""
    before = line.tokens[line.n - 2] if line.n > 1 else -1
    if node > 0:
        before = growing.token[growing.parent[node]]
    n_matches = _match_tokens(line, growing, node)
    n = _gather(
        sources,
        before,
        growing.token[node],
        growing.match_token,
        growing.matches[:, node],
        n_matches,
        growing.rate[:, node],
        growing.next_token,
        growing.cell,
    )
    _estimate(growing.cell, n, sources.calibration, growing.probability)
    for c in range(n):
        chance = growing.chance[node] * growing.probability[c]
        _push(growing.heap_p, growing.heap_item, n_heap, chance, growing.next_token[c], node)
        n_heap += 1
    return n_heap


@njit(cache=CACHE, nogil=True)
def _may_pay(
    n: int, max_nodes: int, gained: float, chance: float, best_value: float,
    seconds: Array, price: float,
) -> bool:  # fmt: skip
    """Whether any larger tree could still pay, were every further path as probable as this one."""
    for m in range(n, max_nodes + 1):
        most = gained + (m - n + 1) * chance
        if most - price * (seconds[m] - seconds[0]) > best_value:
            return True
    return False


@njit(cache=CACHE, nogil=True, forceinline=True)
def _take_top(line: Committed, growing: Growing, n: int, n_heap: int) -> None:
    """Make the most probable path of the heap node ``n``, with the matches that agree."""
    token, up = growing.heap_item[0, 0], growing.heap_item[1, 0]
    growing.token[n], growing.parent[n] = token, up
    growing.depth[n], growing.chance[n] = growing.depth[up] + 1, growing.heap_p[0]
    _pop(growing.heap_p, growing.heap_item, n_heap)
    growing.n_children[up] += 1
    growing.n_children[n] = 0
    for i in range(2):
        growing.rate[i, n] = growing.rate[i, up]
    n_matches = _match_tokens(line, growing, up)
    place, length = growing.matches[0], growing.matches[1]
    _follow_rates(growing.rate[:, n], place[up], growing.match_token, n_matches, token)
    growing.n_matches[n] = _follow_matches(
        line, place[up], length[up], growing.match_token, n_matches, token, place[n], length[n]
    )


@njit(cache=CACHE, nogil=True, forceinline=True)
def _write_by_depth(
    growing: Growing, n: int, token: Array, parent: Array, depth: Array, chance: Array
) -> None:
    """Write the first ``n`` nodes in BFS order, one pass for each depth; of equal depth the one
    taken first stands first. Uses up ``n_children``."""
    place = growing.n_children
    deepest = 0
    for i in range(n):
        deepest = max(deepest, growing.depth[i])
    done = 0
    for d in range(deepest + 1):
        for i in range(n):
            if growing.depth[i] == d:
                place[i] = done
                token[done] = growing.token[i]
                depth[done] = d
                chance[done] = growing.chance[i]
                parent[done] = -1 if i == 0 else place[growing.parent[i]]
                done += 1


@njit(cache=CACHE, nogil=True)
def grow_tree(sources: Any, line: Any, bounds: Any, worth: Any, scratch: Any, tree: Any) -> int:
    """Grow a tree best-first and cut it where one more node costs more than it brings.

    Parameters
    ----------
    sources, line : a tuple with the members of ``Sources``, and one of ``Committed``.
    bounds : most nodes below the root, most depth, most lanes.
    worth : float64[> most nodes], seconds of a step with that many nodes; what a second is worth,
        in tokens (0 fills the tree up to its bounds).
    scratch : of ``make_scratch``, for as many nodes.
    tree : written: token, parent, depth, int32[> most nodes] in BFS order, node 0 is the root; and
        float32[> most nodes], the estimated probability of each node's path.

    Returns
    -------
    Number of nodes, root included.
    """
    known, committed, growing = Sources(*sources), Committed(*line), Growing(*scratch)
    max_nodes, max_depth, max_lanes = bounds
    seconds, price = worth
    _plant(committed, growing)
    node, n_heap = np.int64(0), np.int64(0)  # plain constants have what they call compiled twice
    n, n_lanes, best_n = np.int64(1), 1, np.int64(1)
    best_value, gained = 0.0, 0.0
    while True:
        if growing.depth[node] < max_depth and growing.chance[node] > _LEAST_CHANCE:
            n_heap = _push_children(known, committed, growing, node, n_heap)
        # A path that needs a lane too many is dropped.
        while n_heap > 0 and n_lanes == max_lanes and growing.n_children[growing.heap_item[1, 0]]:
            _pop(growing.heap_p, growing.heap_item, n_heap)
            n_heap -= 1
        if n > max_nodes or n_heap == 0:
            break
        if not _may_pay(n, max_nodes, gained, growing.heap_p[0], best_value, seconds, price):
            break
        n_lanes += growing.n_children[growing.heap_item[1, 0]] > 0
        _take_top(committed, growing, n, n_heap)
        n_heap -= 1
        gained += growing.chance[n]
        value = gained - price * (seconds[n] - seconds[0])
        node = n
        n += 1
        if value > best_value:
            best_n, best_value = n, value
    _write_by_depth(growing, best_n, tree[0], tree[1], tree[2], tree[3])
    return int(best_n)


@njit(cache=CACHE, nogil=True, forceinline=True)
def _write_rows(sources: Sources, nodes: Nodes, stamp: int, by_rank: bool) -> None:
    """See ``recycle_rows``."""
    k, k2 = sources.rows.shape[1], sources.pair_rows.shape[1]
    code = np.empty(k, np.uint8)
    ids, values = nodes.ids, nodes.values
    for i in range(nodes.n):
        s, t = nodes.slot[i], nodes.token[i]
        total = 0.0
        for j in range(k):
            if ids[s, j] >= 0:
                total += np.exp(values[s, j] - values[s, 0])
        for j in range(k):
            sources.rows[t, j] = ids[s, j]
            share = np.exp(values[s, j] - values[s, 0]) / total if ids[s, j] >= 0 else 0.0
            code[j] = max(2, 8 - 2 * j) if by_rank else _probability_code(share)
            sources.codes[t, j] = code[j]
        if sources.pair_keys.shape[0] > 0 and nodes.before[i] >= 0:
            place = _claim_pair(sources.pair_keys, sources.pair_stamps, nodes.before[i], t, stamp)
            for j in range(k2):
                sources.pair_rows[place, j] = ids[s, j] if j < k else -1
                sources.pair_codes[place, j] = code[j] if j < k else 0


@njit(cache=CACHE, nogil=True)
def recycle_rows(sources: Any, nodes: Any, stamp: int, by_rank: bool) -> None:
    """Overwrite the rows of each node's last token and last two tokens.

    Parameters
    ----------
    sources, nodes : a tuple with the members of ``Sources``, whose rows are written, and one of
        ``Nodes``; of repeated tokens the last node wins.
    stamp : a number larger than in any call before.
    by_rank : store a code for the rank instead of the probability; to measure what the
        probabilities bring.
    """
    _write_rows(Sources(*sources), Nodes(*nodes), stamp, by_rank)


@njit(cache=CACHE, nogil=True, forceinline=True)
def _count_cells(
    sources: Sources, tokens: Array, cells: Array, n: int, chosen: int, limit: float
) -> None:
    """Count for each candidate of one place whether it was the choice; old counts fade."""
    calibration = sources.calibration
    for i in range(n):
        cell = cells[i]
        calibration[1, cell] += 1.0
        if tokens[i] == chosen:
            calibration[0, cell] += 1.0
        if calibration[1, cell] > limit:
            calibration[0, cell] *= 0.5
            calibration[1, cell] *= 0.5


@njit(cache=CACHE, nogil=True)
def calibrate(sources: Sources, line: Committed, emitted: Array, limit: float) -> None:
    """Count for every candidate on the accepted path whether it was the model's choice.

    Called before the rows of the step are overwritten; whether a candidate was drafted does not
    matter. A cell whose trials pass ``limit`` is halved, so that old counts fade.

    Parameters
    ----------
    sources : ``calibration`` and ``rank_counts`` are written.
    line : ``match_rate`` is written.
    emitted : int32[n], the tokens that the step emitted after the root.
    """
    match = line.matches.copy()
    match_token = np.empty(MAX_MATCHES, np.int32)
    tokens, cells = np.empty(MAX_CANDIDATES, np.int32), np.empty(MAX_CANDIDATES, np.int32)
    n_matches, rates = line.n_matches, line.match_rate
    a = line.tokens[line.n - 2] if line.n > 1 else -1
    b = line.tokens[line.n - 1]
    for e in range(emitted.shape[0]):
        for m in range(n_matches):
            i = match[0, m]
            if i >= EARLIER:
                match_token[m] = line.history[i - EARLIER]
            else:
                match_token[m] = line.tokens[i] if i < line.n else emitted[i - line.n]
        n = _gather(sources, a, b, match_token, match, n_matches, rates, tokens, cells)
        chosen = emitted[e]
        if sources.pair_keys.shape[0] > 0 and a >= 0:
            place = _find_pair(sources.pair_keys, a, b)
            if place >= 0:
                _count_ranks(sources.rank_counts, limit, 0, sources.pair_rows[place], chosen)
        _count_ranks(sources.rank_counts, limit, 1, sources.rows[b], chosen)
        _count_ranks(sources.rank_counts, limit, 2, match_token[:n_matches], chosen)
        _count_cells(sources, tokens, cells, n, chosen, limit)
        _follow_rates(rates, match[0], match_token, n_matches, chosen)
        n_matches = _follow_matches(
            line, match[0], match[1], match_token, n_matches, chosen, match[0], match[1]
        )
        a, b = b, chosen


@njit(cache=CACHE, nogil=True)
def insert_pairs(sources: Any, new_keys: Array, new_rows: Array, new_codes: Array) -> None:
    """Enter two-token rows from a file, the first ones being the oldest.

    Parameters
    ----------
    sources : a tuple with the members of ``Sources``; those of two-token rows are written.
    new_keys, new_rows, new_codes : int64[n], int32 and uint8[n, k2].
    """
    known = Sources(*sources)
    for i in range(new_keys.shape[0]):
        a, b = new_keys[i] >> 32, new_keys[i] & np.int64(0xFFFFFFFF)
        place = _claim_pair(known.pair_keys, known.pair_stamps, a, b, i + 1)
        for j in range(new_rows.shape[1]):
            known.pair_rows[place, j], known.pair_codes[place, j] = new_rows[i, j], new_codes[i, j]


@njit(cache=CACHE, nogil=True)
def learn_step(sources: Any, line: Any, nodes: Any, emitted: Array, how: Any) -> None:
    """What is learned from a verify step, in one call: calibrate, and recycle.

    Parameters
    ----------
    sources, line, nodes : tuples with the members of ``Sources``, ``Committed`` (before the step;
        its ``match_rate`` is written) and ``Nodes`` (``before`` holds the parent of each node).
    emitted : int32[n], the tokens that the step emitted after the root.
    how : the stamp and ``by_rank`` of ``recycle_rows``; whether to calibrate, and the ``limit`` of
        ``calibrate``.
    """
    known, committed, tree = Sources(*sources), Committed(*line), Nodes(*nodes)
    stamp, by_rank, counting, limit = how
    if counting:
        calibrate(known, committed, emitted, limit)
    before = np.empty(tree.n, np.int32)
    before[0] = committed.tokens[committed.n - 2] if committed.n > 1 else -1
    for i in range(1, tree.n):
        before[i] = tree.token[tree.before[i]]
    after = Nodes(tree.token, tree.slot, before, tree.n, tree.ids, tree.values)
    _write_rows(known, after, stamp, by_rank)
