"""Candidates and the drafter that grows trees from them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from fake_target import FakeTarget, HashModel
from samplers import TemperatureSampler

from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import CostTable
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.draft import Draft
from edge_tr.drafts.grown_tree import GrownTreeDrafter, first_reach
from edge_tr.drafts.prior import prior
from edge_tr.errors import ConfigError
from edge_tr.kernels import candidates as kernels

N_VOCAB = 30
PROMPT = [3, 7, 9, 3, 7, 9, 3, 7]


def used(seed: int = 0, **options: Any) -> Candidates:
    """Candidates that have learned from a text."""
    candidates = Candidates(AdjacencyMatrix(N_VOCAB, 4), **options)
    target = FakeTarget(HashModel(N_VOCAB, seed=seed), n_ctx=150, n_lanes=16)
    recycler = GrownTreeDrafter(candidates, n_ctx=150, max_nodes=10, max_lanes=16)
    list(Decoder(target, recycler).generate(PROMPT, max_tokens=120))
    return candidates


def stored(candidates: Candidates) -> dict[str, Any]:
    """``to_arrays`` through a file."""
    file = io.BytesIO()
    np.savez(file, **candidates.to_arrays())
    file.seek(0)
    with np.load(file) as arrays:
        return dict(arrays)


def flat_costs(max_width: int, step: float) -> StepCosts:
    """A step of n tokens costs 1 + step * (n - 1) seconds."""
    widths = tuple(range(1, max_width + 1))
    seconds = tuple(1 + step * (n - 1) for n in widths)
    return StepCosts(CostTable(widths, (0,), (seconds,)), max_width)


@pytest.mark.parametrize("n_pairs", [1, 2, 3, 6, 1 << 19, -4])
def test_a_number_of_pairs_that_is_not_allowed(n_pairs: int) -> None:
    with pytest.raises(ConfigError, match=f"n_pairs {n_pairs} is not allowed"):
        Candidates(AdjacencyMatrix(5), n_pairs=n_pairs)


def test_candidates_take_at_most_16_mib_beside_the_matrix() -> None:
    assert Candidates(AdjacencyMatrix(262_144, 16)).n_bytes <= 16 << 20


@pytest.mark.parametrize("n_pairs", [0, 16, 1 << 10])
def test_what_was_learned_survives_a_file(n_pairs: int) -> None:
    before = used(n_pairs=n_pairs)
    after = Candidates(before.matrix, n_pairs=n_pairs)
    after.load_arrays(stored(before))
    np.testing.assert_array_equal(before.codes, after.codes)
    np.testing.assert_array_equal(before.calibrations, after.calibrations)
    np.testing.assert_array_equal(before.rank_counts, after.rank_counts)
    for name in ("pair_keys", "pair_rows", "pair_codes"):
        np.testing.assert_array_equal(before.to_arrays()[name], after.to_arrays()[name])


def test_a_file_from_before_there_was_a_history() -> None:
    before = used()
    arrays = stored(before)
    del arrays["calibration_drawn"]
    n_own = kernels.N_OWN_CELLS
    arrays["calibration"] = arrays["calibration"][:, :n_own]
    after = Candidates(before.matrix)
    after.load_arrays(arrays)
    np.testing.assert_array_equal(after.calibration[:, :n_own], arrays["calibration"])
    np.testing.assert_array_equal(after.calibration[:, n_own:], prior()[:, n_own:])
    np.testing.assert_array_equal(after.calibrations[1], prior())


def test_drawn_texts_are_counted_apart() -> None:
    candidates = used()
    greedy = candidates.calibrations[0].copy()
    for temperature, changed in ((0.5, 1), (0.7, 1), (0.8, 2), (0.0, 0)):
        others = [i for i in range(3) if i != changed]
        before = candidates.calibrations.copy()
        recycler = GrownTreeDrafter(candidates, n_ctx=150, max_nodes=10, max_lanes=16)
        sampler = TemperatureSampler(temperature, 1) if temperature else None
        decoder = Decoder(FakeTarget(HashModel(N_VOCAB), n_ctx=150, n_lanes=16), recycler)
        list(decoder.generate(PROMPT, max_tokens=60, sampler=sampler))
        assert (candidates.calibrations[changed] != before[changed]).any()
        np.testing.assert_array_equal(candidates.calibrations[others], before[others])
    assert (candidates.calibrations[0] != greedy).any()


def test_a_smaller_table_keeps_the_newest_pairs() -> None:
    before = used(n_pairs=1 << 10)
    after = Candidates(before.matrix, n_pairs=4)
    after.load_arrays(stored(before))
    newest = before.to_arrays()["pair_keys"][-4:]
    assert sorted(after.pair_keys) == sorted(newest)


def test_what_is_learned_after_loading_is_newer() -> None:
    before = used(n_pairs=4)
    after = Candidates(before.matrix, n_pairs=4)
    after.load_arrays(stored(before))
    one = np.ones(1, dtype=np.int32)
    after.recycle(one, one, one[:, None].repeat(4, 1), np.zeros((1, 4), np.float32))
    assert set(after.to_arrays()["pair_keys"][:-1]) < set(before.pair_keys)
    assert after.to_arrays()["pair_keys"][-1] == (1 << 32) | 1


@pytest.mark.parametrize(
    "name", ["codes", "pair_keys", "pair_rows", "pair_codes", "calibration", "rank_counts"]
)
def test_a_missing_array_is_refused(name: str) -> None:
    candidates = used()
    arrays = stored(candidates)
    del arrays[name]
    with pytest.raises(ConfigError, match="saved array"):
        Candidates(candidates.matrix).load_arrays(arrays)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("codes", 10, "codes holds an unknown code"),
        ("pair_codes", 255, "pair_codes holds an unknown code"),
        ("pair_rows", N_VOCAB, f"candidate {N_VOCAB} is not in the vocabulary"),
        ("pair_rows", -2, "candidate -2 is not in the vocabulary"),
        ("pair_keys", (N_VOCAB << 32) | 1, f"candidate {N_VOCAB} is not in the vocabulary"),
        ("pair_keys", N_VOCAB, f"candidate {N_VOCAB} is not in the vocabulary"),
        ("pair_keys", -1, "candidate"),
        ("calibration", 0.0, "counts that are not allowed"),
        ("calibration", np.nan, "counts that are not allowed"),
        ("rank_counts", -1.0, "counts that are not allowed"),
    ],
)
def test_a_damaged_array_is_refused(name: str, value: float, told: str) -> None:
    candidates = used()
    arrays = stored(candidates)
    arrays[name].flat[0 if name != "calibration" else -1] = value
    fresh = Candidates(candidates.matrix)
    with pytest.raises(ConfigError, match=told):
        fresh.load_arrays(arrays)
    assert (fresh.pair_keys == -1).all()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_nodes": -1}, "max_nodes -1 is not allowed; it must be 0 to 1024"),
        ({"max_nodes": 8, "costs": flat_costs(8, 0.1)}, "it must be 0 to 7"),
        ({"max_lanes": 0}, "max_lanes 0 is not allowed; it must be 1 to 256"),
        ({"max_lanes": 257}, "max_lanes 257 is not allowed; it must be 1 to 256"),
    ],
)
def test_bounds_that_are_not_allowed(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        GrownTreeDrafter(Candidates(AdjacencyMatrix(5)), n_ctx=10, **options)


def drafted(step: float | None, *, n_tokens: int = 200) -> list[int]:
    """Nodes of each step of a text that repeats itself, where a token costs ``step`` steps."""
    costs = None if step is None else flat_costs(33, step)
    recycler = GrownTreeDrafter(
        Candidates(AdjacencyMatrix(N_VOCAB, 4)), n_ctx=1200, costs=costs, max_nodes=20, max_lanes=16
    )
    draft = Draft(20)
    text = np.tile(np.arange(10, dtype=np.int32), n_tokens // 10 + 2)
    recycler.begin(text[:10])
    sizes = []
    for i in range(10, n_tokens):
        draft.reset(int(text[i - 1]), n_past=i - 1)
        recycler.propose(draft, max_nodes=20, max_depth=20)
        sizes.append(draft.n - 1)
        draft.plan()
        ids = (draft.token[: draft.n, None] + 1 + np.arange(4)) % 10  # the next token is known
        values = np.tile(-3 * np.arange(4, dtype=np.float32), (draft.n, 1))
        by_slot = np.empty((draft.n, 4), dtype=np.int32)
        by_slot[draft.slot[: draft.n]] = ids
        recycler.learn(draft, by_slot, values, np.zeros(0, dtype=np.int32), [int(text[i])])
        if costs is not None:
            costs.observe(draft.n, i, 1 + (step or 0) * (draft.n - 1), 1)
    return sizes


def test_without_costs_the_tree_is_as_large_as_allowed() -> None:
    assert drafted(None)[-1] == 20


def test_free_tokens_fill_the_tree_but_for_a_plain_step_now_and_then() -> None:
    sizes = drafted(0.0, n_tokens=400)[60:]
    assert set(sizes) == {0, 20}
    assert sizes.count(0) <= 2 * (len(sizes) / 48 + 1)


def test_the_first_steps_are_plain() -> None:
    sizes = drafted(0.0)
    assert sizes[:3] == [0, 0, 0]
    assert sizes[3] > 0


def test_tokens_as_dear_as_a_step_are_not_drafted_but_to_probe() -> None:
    sizes = drafted(1.1, n_tokens=1000)[100:]
    extra = sum(1.1 * n for n in sizes)
    assert 0 < extra <= 0.011 * (len(sizes) + extra)


def test_a_text_that_repeats_itself_is_drafted_in_one_piece() -> None:
    recycler = GrownTreeDrafter(Candidates(AdjacencyMatrix(N_VOCAB, 4)), n_ctx=100, max_nodes=6)
    text = np.arange(12, dtype=np.int32)
    recycler.begin(np.concatenate((text, text[:4])))
    draft = Draft(6)
    draft.reset(3, n_past=15)
    recycler.propose(draft, max_nodes=6, max_depth=6)
    assert draft.token[: draft.n].tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert draft.parent[: draft.n].tolist() == [-1, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("step", "depths"), [(0.0, [20, 20]), (0.11, [4, 12]), (0.15, [3, 9])])
def test_drafts_begin_shallow_where_nodes_are_dear(step: float, depths: list[int]) -> None:
    costs = flat_costs(33, step)
    recycler = GrownTreeDrafter(
        Candidates(AdjacencyMatrix(100, 4)), n_ctx=200, costs=costs, max_nodes=20
    )
    passage = np.arange(60, dtype=np.int32)
    text = np.concatenate((passage, passage[:20]))
    recycler.begin(text)
    for _ in range(3):
        costs.observe(1, 80, 1.0, 1)
    draft = Draft(20)
    found = []
    for _ in depths:
        draft.reset(int(text[-1]), n_past=len(text) - 1)
        recycler.propose(draft, max_nodes=20, max_depth=20)
        n = draft.n - 1
        found.append(n)
        draft.plan()
        emitted = [*draft.token[1 : n + 1].tolist(), int(text[-1]) + n + 1]
        ids = np.array([[e, 97, 98, 99] for e in emitted], dtype=np.int32)
        values = np.tile(np.array([0, -9, -9, -9], dtype=np.float32), (n + 1, 1))
        recycler.learn(draft, ids, values, np.arange(1, n + 1, dtype=np.int32), emitted)
        text = np.concatenate((text, np.array(emitted, dtype=np.int32)))
    assert found == depths


def test_matches_can_be_switched_off() -> None:
    recycler = GrownTreeDrafter(
        Candidates(AdjacencyMatrix(N_VOCAB, 4)), n_ctx=100, max_nodes=6, use_matches=False
    )
    recycler.begin(np.tile(np.arange(12, dtype=np.int32), 2))
    draft = Draft(6)
    draft.reset(11, n_past=23)
    recycler.propose(draft, max_nodes=6, max_depth=6)
    assert draft.n == 1


@pytest.mark.parametrize(
    ("first_rows_s", "row_s", "n_rows"),
    [(0.0, 0.0, 96), (0.2, 0.05, 24), (0.7, 0.05, 8), (1.1, 0.05, 0)],
)
def test_rows_of_the_prompt_for_a_hundredth_of_an_answer(
    first_rows_s: float, row_s: float, n_rows: int
) -> None:
    table = CostTable((1, 2), (0,), ((1.0, 2.0),), first_rows_s, row_s)
    candidates = Candidates(AdjacencyMatrix(5))
    recycler = GrownTreeDrafter(candidates, n_ctx=100, max_nodes=1, costs=StepCosts(table, 2))
    assert recycler.harvest == n_rows


@pytest.mark.parametrize(
    ("ratio", "depth"),
    [
        ((1.0, 1.1, 1.2, 1.4, 1.8), 3),  # deep enough at once
        ((1.0, 2.1, 2.5, 2.85, 4.3, 4.8, 5.0, 3.6, 3.9), 7),  # the next cheap step
        ((1.0, 1.01, 1.02, 1.03, 1.04, 1.05), 5),  # nearly free
        ((1.0, 1.9, 2.7, 3.4, 4.1), 4),  # never fast: where it is fastest
    ],
)
def test_first_drafts_reach_the_next_cheap_step(ratio: tuple[float, ...], depth: int) -> None:
    assert first_reach(np.array(ratio)) == depth


def test_the_prompt_fills_rows_of_tokens_and_of_pairs() -> None:
    candidates = Candidates(AdjacencyMatrix(N_VOCAB, 2))
    recycler = GrownTreeDrafter(candidates, n_ctx=100)
    ids = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.int32)
    recycler.learn_prompt(np.array([7, 8, 7], dtype=np.int32), ids, np.zeros((3, 2), np.float32))
    assert candidates.matrix.rows[[7, 8]].tolist() == [[5, 6], [3, 4]]
    assert sorted(candidates.pair_keys[candidates.pair_keys >= 0]) == [
        (7 << 32) | 8,
        (8 << 32) | 7,
    ]


def test_texts_that_disappoint_do_not_keep_later_ones_from_being_drafted() -> None:
    recycler = GrownTreeDrafter(used(), n_ctx=500, max_nodes=8)
    draft, rng = Draft(8), np.random.default_rng(0)
    recycler.begin(np.array(PROMPT, dtype=np.int32))

    def step(*, drafted: bool) -> None:
        draft.reset(PROMPT[-1], n_past=7)
        if drafted:
            recycler.propose(draft, max_nodes=8, max_depth=8)
        draft.plan()
        ids = rng.integers(0, N_VOCAB, (9, 4)).astype(np.int32)
        none = np.zeros(0, dtype=np.int32)
        recycler.learn(draft, ids, -np.arange(36, dtype=np.float32).reshape(9, 4), none, [1])

    first = recycler.trust
    for _ in range(30):
        step(drafted=True)
    disappointed = recycler.trust
    for _ in range(200):
        step(drafted=False)
    assert disappointed < 0.5 * first
    assert recycler.trust == pytest.approx(first, rel=0.1)
