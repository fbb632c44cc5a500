"""The candidate kernels against plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import naive_candidates as naive
import numpy as np
import pytest

from edge_tr.kernels import candidates as kernels
from edge_tr.kernels import matches as match_kernels

Array = np.ndarray[Any, Any]
SEEDS = range(12)
PAIR_K = 4


class Learned:
    """The same knowledge as naive sources and as arrays."""

    def __init__(
        self, sources: naive.Sources, calibration: Array, *, n_vocab: int, k: int, n_pairs: int
    ) -> None:
        self.naive = sources
        self.calibration: list[list[float]] = calibration.tolist()
        self.sources = kernels.Sources(
            rows=np.full((n_vocab, k), -1, dtype=np.int32),
            codes=np.zeros((n_vocab, k), dtype=np.uint8),
            pair_keys=np.full(n_pairs, -1, dtype=np.int64),
            pair_rows=np.full((n_pairs, PAIR_K), -1, dtype=np.int32),
            pair_codes=np.zeros((n_pairs, PAIR_K), dtype=np.uint8),
            pair_stamps=np.zeros(n_pairs, dtype=np.int64),
            calibration=calibration.copy(),
            rank_counts=np.zeros((2, kernels.N_SOURCES, 16)),
        )

    @property
    def arrays(self) -> tuple[Array, ...]:
        return tuple(self.sources)

    def insert(self, pairs: dict[tuple[int, int], naive.Row]) -> None:
        """Enter two-token rows as from a file."""
        kernels.insert_pairs(self.arrays, *pair_arrays(pairs))

    def pairs(self) -> dict[tuple[int, int], naive.Row]:
        """The two-token rows in the arrays."""
        known = self.sources
        return {
            (int(key) >> 32, int(key) & 0xFFFFFFFF): [
                (int(t), int(c)) for t, c in zip(row, code, strict=True) if t >= 0
            ]
            for key, row, code in zip(
                known.pair_keys, known.pair_rows, known.pair_codes, strict=True
            )
            if key >= 0
        }


def nothing(*, n_vocab: int = 6, k: int = 4, n_pairs: int = 0) -> Learned:
    """No row at all, and a calibration of ones."""
    ones = np.ones((2, kernels.N_CELLS))
    return Learned(naive.Sources(), ones, n_vocab=n_vocab, k=k, n_pairs=n_pairs)


def random_row(rng: np.random.Generator, n_vocab: int, k: int) -> naive.Row:
    n = int(rng.integers(1, min(k, n_vocab) + 1))
    tokens = rng.permutation(n_vocab)[:n].tolist()
    return [(token, int(rng.integers(2, naive.N_CODES))) for token in tokens]


def learn(seed: int, *, n_vocab: int = 6, k: int = 4, pairs: bool = True) -> Learned:
    """Random rows for most tokens and for many pairs, and a random calibration."""
    rng = np.random.default_rng(seed)
    sources = naive.Sources()
    for token in range(n_vocab):
        if rng.random() < 0.8:
            sources.single[token] = random_row(rng, n_vocab, k)
    for a, b in product(range(n_vocab), repeat=2):
        if pairs and rng.random() < 0.4:
            sources.pair[a, b] = random_row(rng, n_vocab, PAIR_K)
    trials = rng.uniform(4, 20, kernels.N_CELLS)
    calibration = np.stack((trials * rng.uniform(0, 0.6, kernels.N_CELLS), trials))
    sources.rates = rng.uniform(0.2, 1), rng.uniform(0.2, 1)
    sources.history = random_history(seed, n_vocab)
    return as_arrays(sources, calibration, n_vocab, k)


def random_history(seed: int, n_vocab: int) -> list[int]:
    """Three earlier texts; parts of them stand in ``random_text`` too."""
    texts = random_text(seed)[5:35], random_text(seed)[20:50], random_text(seed + 99)
    return [t for text in texts for t in [*(text % n_vocab).tolist(), -1]]


def as_arrays(sources: naive.Sources, calibration: Array, n_vocab: int, k: int) -> Learned:
    n_pairs = 1 << 10 if sources.pair else 0
    learned = Learned(sources, calibration, n_vocab=n_vocab, k=k, n_pairs=n_pairs)
    rows, codes = learned.sources.rows, learned.sources.codes
    for token, row in sources.single.items():
        rows[token, : len(row)], codes[token, : len(row)] = zip(*row, strict=True)
    if n_pairs:
        learned.insert(sources.pair)
        n_found = (learned.sources.pair_keys >= 0).sum()
        assert n_found == len(sources.pair), "a row found no place"
    return learned


def pair_arrays(pairs: dict[tuple[int, int], naive.Row]) -> tuple[Array, Array, Array]:
    """Rows as a file holds them."""
    rows = np.full((len(pairs), PAIR_K), -1, dtype=np.int32)
    codes = np.zeros((len(pairs), PAIR_K), dtype=np.uint8)
    for i, row in enumerate(pairs.values()):
        rows[i, : len(row)], codes[i, : len(row)] = zip(*row, strict=True)
    return np.array([(a << 32) | b for a, b in pairs], dtype=np.int64), rows, codes


class Index:
    """The match index of a text that grows, beside a history."""

    def __init__(self, n_ctx: int, history: list[int]) -> None:
        self.history = np.array([*history, -1], dtype=np.int32)
        self.index = match_kernels.Index(
            heads=np.full(1 << 14, -1, dtype=np.int32),
            links=np.full(n_ctx, -1, dtype=np.int32),
            history_heads=np.full(1 << 4, -1, dtype=np.int32),
            history_links=np.full(len(history), -1, dtype=np.int32),
        )
        heads, links = self.index.history_heads, self.index.history_links
        match_kernels.index_history(self.history, 0, len(history), heads, links)
        self.n = 0

    def matches(self, text: Array) -> list[naive.Match]:
        """Those of a text that begins with the one before."""
        n = self.extend(text.copy(), text[self.n :])
        return [(int(i), int(length)) for i, length in self.found[:, :n].T]

    def extend(self, tokens: Array, new: Array) -> int:
        n, self.n = self.n, self.n + len(new)
        self.found = np.zeros((2, match_kernels.MAX_MATCHES), dtype=np.int32)
        index = tuple(self.index)
        return int(match_kernels.extend(tokens, n, new, index, self.history, self.found))


def match_array(matches: list[naive.Match]) -> Array:
    array = np.zeros((2, match_kernels.MAX_MATCHES), dtype=np.int32)
    if matches:
        array[:, : len(matches)] = np.array(matches, dtype=np.int32).T
    return array


def committed(text: Array, matches: list[naive.Match], sources: naive.Sources) -> kernels.Committed:
    history = np.array([*sources.history, -1], dtype=np.int32)
    return kernels.Committed(
        text, len(text), match_array(matches), len(matches), np.array(sources.rates), history
    )


@dataclass
class Grown:
    token: list[int]
    parent: list[int]
    depth: list[int]
    chance: list[float]

    @property
    def n_nodes(self) -> int:
        return len(self.token) - 1

    @property
    def n_leaves(self) -> int:
        return len(set(range(len(self.token))) - set(self.parent))

    def path(self, node: int) -> tuple[int, ...]:
        tokens: tuple[int, ...] = ()
        while node > 0:
            tokens = (self.token[node], *tokens)
            node = self.parent[node]
        return tokens


def grow(
    learned: Learned,
    text: Array,
    matches: list[naive.Match],
    *,
    max_nodes: int = 12,
    max_depth: int = 4,
    max_lanes: int = 64,
    seconds: Array | None = None,
    price: float = 0.0,
) -> Grown:
    token, parent, depth = np.full((3, max_nodes + 1), -9, dtype=np.int32)
    chance = np.zeros(max_nodes + 1, dtype=np.float32)
    n = kernels.grow_tree(
        learned.arrays,
        tuple(committed(text, matches, learned.naive)),
        (max_nodes, max_depth, max_lanes),
        (np.zeros(max_nodes + 1) if seconds is None else seconds, price),
        kernels.make_scratch(max_nodes),
        (token, parent, depth, chance),
    )
    return Grown(*(array[:n].tolist() for array in (token, parent, depth, chance)))


def random_text(seed: int, n: int = 60, n_vocab: int = 6) -> Array:
    """A text that repeats itself, so that there are matches."""
    rng = np.random.default_rng(seed)
    text: list[int] = rng.integers(0, n_vocab, 8).tolist()
    while len(text) < n:
        if rng.random() < 0.5:
            start = int(rng.integers(0, len(text)))
            text += text[start : start + int(rng.integers(1, 9))]
        else:
            text.append(int(rng.integers(0, n_vocab)))
    return np.array(text[:n], dtype=np.int32)


def known_chances(
    learned: Learned, text: Array, matches: list[naive.Match], tree: Grown
) -> dict[tuple[int, ...], float]:
    """The naive probability of every child of every node of the tree."""
    known: dict[tuple[int, ...], float] = {(): 1.0}
    for node in range(len(tree.token)):
        path = tree.path(node)
        for child in naive.children(
            learned.naive, learned.calibration, text.tolist(), matches, path, known[path]
        ):
            known[child.path] = child.chance
    return known


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_grow_tree_takes_the_most_probable_paths(seed: int, pairs: bool) -> None:
    learned = learn(seed, pairs=pairs)
    text = random_text(seed)
    matches = naive.find_all(text.tolist(), learned.naive.history)
    for max_nodes, max_depth in ((0, 4), (1, 4), (5, 1), (12, 3), (30, 5)):
        tree = grow(learned, text, matches, max_nodes=max_nodes, max_depth=max_depth)
        best = naive.grow_tree(
            learned.naive, learned.calibration, text.tolist(), matches, max_nodes, max_depth
        )
        # Paths as probable as the last one may be swapped, so that chances are compared.
        assert sorted(tree.chance[1:], reverse=True) == pytest.approx(
            [candidate.chance for candidate in best], abs=1e-6
        )
        known = known_chances(learned, text, matches, tree)
        for node in range(len(tree.token)):
            assert tree.chance[node] == pytest.approx(known[tree.path(node)], abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_grown_tree_is_in_bfs_order_and_has_no_twins(seed: int) -> None:
    learned = learn(seed)
    text = random_text(seed)
    tree = grow(
        learned,
        text,
        naive.find_all(text.tolist(), learned.naive.history),
        max_nodes=40,
        max_depth=6,
    )
    assert tree.token[0] == text[-1]
    assert tree.parent[0] == -1
    assert all(parent < node for node, parent in enumerate(tree.parent))
    assert tree.depth == [len(tree.path(node)) for node in range(len(tree.token))]
    assert tree.depth == sorted(tree.depth)
    paths = [tree.path(node) for node in range(len(tree.token))]
    assert len(set(paths)) == len(paths)
    siblings = [
        (a, b) for a, b in pairwise(range(1, len(paths))) if tree.parent[a] == tree.parent[b]
    ]
    assert all(tree.chance[a] >= tree.chance[b] for a, b in siblings)


@pytest.mark.parametrize("max_lanes", [1, 2, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_grown_tree_keeps_to_its_lanes(seed: int, max_lanes: int) -> None:
    learned = learn(seed)
    text = random_text(seed)
    tree = grow(learned, text, [], max_nodes=30, max_depth=8, max_lanes=max_lanes)
    assert tree.n_leaves <= max_lanes


def test_one_lane_is_the_chain_of_best_children() -> None:
    learned = learn(6)
    text = random_text(6)
    tree = grow(learned, text, [], max_nodes=5, max_depth=5, max_lanes=1)
    path: tuple[int, ...] = ()
    for node in range(1, len(tree.token)):
        best = naive.children(learned.naive, learned.calibration, text.tolist(), [], path)
        path = max(best, key=lambda candidate: candidate.chance).path
        assert tree.path(node) == path
    assert tree.n_nodes > 1


@pytest.mark.parametrize("price", [0.0, 0.01, 0.05, 0.2, 2.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_grow_tree_cuts_where_a_node_costs_more_than_it_brings(seed: int, price: float) -> None:
    rng = np.random.default_rng(seed)
    learned = learn(seed)
    text = random_text(seed)
    matches = naive.find_all(text.tolist(), learned.naive.history)
    seconds = np.cumsum(rng.choice([0.0, 0.5, 3.0], 25))  # a staircase
    tree = grow(learned, text, matches, max_nodes=24, seconds=seconds, price=price)
    whole = grow(learned, text, matches, max_nodes=24)
    chances = sorted(whole.chance[1:], reverse=True)
    assert tree.n_nodes == naive.best_cut(chances, seconds.tolist(), price)
    assert sorted(tree.chance[1:], reverse=True) == chances[: tree.n_nodes]


def test_nothing_known_grows_nothing() -> None:
    learned = nothing()
    assert grow(learned, random_text(0), []).token == [random_text(0)[-1]]


def test_a_match_past_the_end_of_the_text_reads_the_path_itself() -> None:
    # After "1 2 1 2" the match goes on with "1 2", and then with what it drafted itself.
    learned = nothing(n_vocab=3, k=2)
    text = np.array([1, 2, 1, 2], dtype=np.int32)
    tree = grow(learned, text, [(2, 2)], max_nodes=6, max_depth=6)
    assert tree.path(6) == (1, 2, 1, 2, 1, 2)


def test_a_token_that_stands_twice_in_a_row_is_one_candidate() -> None:
    sources = naive.Sources(single={0: [(1, 9), (1, 9), (1, 9)]})
    hits = np.arange(kernels.N_CELLS, dtype=np.float64)
    learned = as_arrays(sources, np.stack((hits, np.full_like(hits, 1000.0))), 3, 3)
    tree = grow(learned, np.array([0], dtype=np.int32), [], max_depth=1)
    assert tree.path(1) == (1,)
    assert tree.n_nodes == 1
    assert tree.chance[1] == pytest.approx(0.009)


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_find_matches(seed: int, earlier: bool) -> None:
    text = random_text(seed, 300, 3)
    history = random_history(seed, 3) if earlier else []
    index = Index(300, history)
    for n in range(1, 300):
        assert index.matches(text[:n]) == naive.find_all(text[:n].tolist(), history)


def test_matches_agree_in_32_tokens_at_most() -> None:
    text = np.tile(np.arange(2, dtype=np.int32), 60)
    assert Index(120, []).matches(text) == [
        (118 - 2 * i, 32) for i in range(match_kernels.MAX_MATCHES)
    ]


def random_nodes(seed: int, k: int, n: int = 7, n_vocab: int = 6) -> kernels.Nodes:
    rng = np.random.default_rng(seed)
    logits = np.sort(rng.normal(0, 3, (n, n_vocab)).astype(np.float32))[:, ::-1]
    ids = np.argsort(rng.random((n, n_vocab)))[:, :k].astype(np.int32)
    values = np.ascontiguousarray(logits[:, :k])
    short = rng.random(n) < 0.3  # rows with fewer finite logits than k
    ids[short, k // 2 :], values[short, k // 2 :] = -1, -np.inf
    return kernels.Nodes(
        before=rng.integers(-1, n_vocab, n).astype(np.int32),
        token=rng.integers(0, n_vocab, n).astype(np.int32),
        slot=rng.permutation(n).astype(np.int32),
        n=n,
        ids=ids,
        values=values,
    )


@pytest.mark.parametrize("by_rank", [False, True])
@pytest.mark.parametrize("k", [2, 4, 6])
@pytest.mark.parametrize("seed", SEEDS)
def test_recycle_rows(seed: int, k: int, by_rank: bool) -> None:
    learned = nothing(k=k, n_pairs=4)
    single: dict[int, naive.Row] = {}
    table = naive.PairTable()
    for stamp in range(1, 5):
        new = random_nodes(100 * seed + stamp, k)
        kernels.recycle_rows(learned.arrays, tuple(new), stamp, by_rank)
        for i in range(7):
            ids, values = new.ids[new.slot[i]], new.values[new.slot[i]]
            coded = naive.codes_of(values.tolist(), by_rank=by_rank)
            row = [(int(t), c) for t, c in zip(ids, coded, strict=True) if t >= 0]
            single[int(new.token[i])] = row
            if new.before[i] >= 0:
                pair = (int(new.before[i]), int(new.token[i]))
                table.write(pair, row[:PAIR_K], stamp)
    known = learned.sources
    found = {
        token: [(int(t), int(c)) for t, c in zip(*row, strict=True) if t >= 0]
        for token, row in enumerate(zip(known.rows, known.codes, strict=True))
    }
    assert {token: row for token, row in found.items() if row} == single
    assert learned.pairs() == table.contents()


def test_recycle_rows_without_two_token_rows() -> None:
    learned, new = nothing(), random_nodes(0, 4)
    kernels.recycle_rows(learned.arrays, tuple(new), 1, False)
    assert set(np.flatnonzero(learned.sources.rows[:, 0] >= 0)) == set(new.token.tolist())


@pytest.mark.parametrize("seed", SEEDS)
def test_insert_pairs_keeps_the_newest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = {
        (int(a), int(b)): random_row(rng, 9, PAIR_K) for a, b in rng.integers(0, 1 << 16, (9, 2))
    }
    learned = nothing(n_pairs=4)
    learned.insert(pairs)
    table = naive.PairTable()
    for stamp, (pair, row) in enumerate(pairs.items()):
        table.write(pair, row, stamp + 1)
    assert learned.pairs() == table.contents() == dict(list(pairs.items())[-4:])


def test_two_token_rows_spread_over_the_table() -> None:
    rng = np.random.default_rng(0)
    pairs = {(int(a), int(b)): [(0, 5)] for a, b in rng.zipf(1.2, (1 << 12, 2)) % 50_000}
    learned = nothing(n_pairs=1 << 14)
    learned.insert(pairs)
    assert (learned.sources.pair_keys >= 0).sum() > 0.99 * len(pairs)


@pytest.mark.parametrize("first_rate", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_calibrate(seed: int, pairs: bool, first_rate: float) -> None:
    learned = learn(seed, pairs=pairs)
    learned.naive.rates = first_rate, 1 - first_rate
    calibration, ranks = learned.sources.calibration, learned.sources.rank_counts
    expected, expected_ranks = calibration.tolist(), ranks.tolist()
    text = random_text(seed, 80)
    rates = np.array(learned.naive.rates)
    for n in range(1, 70, 5):
        matches = naive.find_all(text[:n].tolist(), learned.naive.history)
        emitted = text[n : n + 5]
        line = committed(text, matches, learned.naive)._replace(n=n, match_rate=rates)
        kernels.calibrate(learned.sources, line, emitted, 15.0)
        learned.naive.rates = naive.calibrate(
            learned.naive,
            expected,
            15.0,
            text[:n].tolist(),
            matches,
            emitted.tolist(),
            expected_ranks,
        )
    np.testing.assert_allclose(calibration, expected)
    np.testing.assert_allclose(ranks, expected_ranks)
    assert (ranks[1, 1:].sum(axis=-1) > 0).all()
    assert rates.tolist() == pytest.approx(learned.naive.rates)
    assert (calibration != np.array(learned.calibration)).any()


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ([0.0], [9]),
        ([0.0, 0.0], [6, 6]),
        ([5.0, 0.0, 0.0, -np.inf], [9, 2, 2, 2]),
        ([1.0, 0.0, 0.0, 0.0], [6, 4, 4, 4]),
    ],
)
def test_stored_probabilities(values: list[float], codes: list[int]) -> None:
    k = len(values)
    learned = nothing(k=k)
    zero = np.zeros(1, dtype=np.int32)
    ids, logits = np.arange(k, dtype=np.int32)[None], np.array([values], dtype=np.float32)
    nodes = kernels.Nodes(zero, zero, zero - 1, 1, ids, logits)
    kernels.recycle_rows(learned.arrays, tuple(nodes), 1, False)
    assert learned.sources.codes[0].tolist() == codes == naive.codes_of(values)


@pytest.mark.parametrize("counting", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_learning_from_a_step_is_its_two_parts(seed: int, counting: bool) -> None:
    rng = np.random.default_rng(seed)
    text = np.zeros(90, dtype=np.int32)
    text[:60] = random_text(seed)
    emitted = rng.integers(0, 6, 3).astype(np.int32)
    token = np.array([text[59], *rng.integers(0, 6, 4)], dtype=np.int32)
    parent = np.array([-1, 0, 0, 1, 3], dtype=np.int32)
    before = np.array([text[58], *token[parent[1:]]], dtype=np.int32)
    slot = rng.permutation(5).astype(np.int32)
    results = []
    for in_one in (True, False):
        learned = learn(seed)
        k = learned.sources.rows.shape[1]
        ids = np.arange(5 * k, dtype=np.int32).reshape(5, k) % 6
        values = -np.arange(5 * k, dtype=np.float32).reshape(5, k)
        nodes = kernels.Nodes(token, slot, parent if in_one else before, 5, ids, values)
        found = naive.find_all(text[:60].tolist(), learned.naive.history)
        line = committed(text, found, learned.naive)._replace(n=60)
        if in_one:
            how = (1, False, counting, 50.0)
            kernels.learn_step(learned.arrays, tuple(line), tuple(nodes), emitted, how)
        else:
            if counting:
                kernels.calibrate(learned.sources, line, emitted, 50.0)
            kernels.recycle_rows(learned.arrays, tuple(nodes), 1, False)
        results.append([*learned.arrays, line.match_rate])
    for one, parts in zip(*results, strict=True):
        np.testing.assert_array_equal(one, parts)


def test_both_files_of_kernels_have_the_same_constants() -> None:
    for name in ("MAX_MATCHES", "EARLIER", "LONGEST_MATCH"):
        assert getattr(kernels, name) == getattr(match_kernels, name)
