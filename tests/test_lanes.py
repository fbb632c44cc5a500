"""The lane protocol alone, on cells that are checked as llama.cpp checks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_target import FakeTarget, HashModel
from tree_bench import TreeBench

INF = float("inf")


class Bench(TreeBench):
    """On a fake target; what is committed is checked."""

    target: FakeTarget

    def __init__(self, *, n_lanes: int = 8, **options: Any) -> None:
        model = HashModel(50, memory=None)
        super().__init__(FakeTarget(model, n_ctx=300, n_lanes=n_lanes, **options))

    def commit(self, accepted: Sequence[int], token_s: float, front: Sequence[int] = ()) -> int:
        kept = super().commit(accepted, token_s, front)
        assert self.target.assert_only_committed(self.tokens) == len(self.tokens)
        return kept


# The most probable path is 1, 3, 5; 2 and 4 are decoys and 6 a second leaf below 2.
TREE = [(1, 0), (2, 0), (3, 1), (4, 2), (5, 3), (6, 2)]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.read([7, 8, 9])
    bench.plant(*TREE, root=49)
    bench.decode()
    return bench


def test_each_row_sees_its_own_path_only() -> None:
    bench = Bench()
    bench.read([7, 8, 9])
    bench.plant(*TREE, root=10)
    rows = bench.decode([20, 21])
    before = [7, 8, 9, 20, 21, 10]
    for node, path in enumerate(([], [1], [2], [1, 3], [2, 4], [1, 3, 5], [2, 6])):
        np.testing.assert_array_equal(rows[node], bench.target.model.logits(before + path))


@pytest.mark.parametrize("n_accepted", [0, 1, 2, 3])
def test_a_path_in_front_of_the_batch_is_kept(bench: Bench, n_accepted: int) -> None:
    assert bench.commit([1, 3, 5][:n_accepted], INF) == n_accepted


@pytest.mark.parametrize("n_accepted", [0, 1, 2, 3])
def test_nothing_is_kept_where_decoding_again_is_free(bench: Bench, n_accepted: int) -> None:
    assert bench.commit([1, 3, 5][:n_accepted], 0.0) == 0


def test_a_chain_is_kept_even_then_since_no_lane_leaves_it() -> None:
    bench = Bench()
    bench.read([1])
    bench.plant((2, 0), (3, 1), (4, 2), root=49)
    bench.decode()
    assert bench.commit([1, 2], 0.0) == 2


@pytest.mark.parametrize("token_s", [0.0, INF])
def test_a_path_behind_another_one_is_decoded_again(bench: Bench, token_s: float) -> None:
    assert bench.commit([2, 6], token_s) == 0


def test_a_path_is_kept_up_to_where_it_leaves_the_front() -> None:
    bench = Bench()
    bench.read([1])
    bench.plant((1, 0), (2, 1), (3, 1), (4, 3), root=49)
    bench.decode()
    assert bench.commit([1, 3, 4], INF) == 1


def test_lanes_follow_after_steps_without_a_tree(bench: Bench) -> None:
    bench.commit([1], INF)
    for token in (30, 31, 32):
        bench.plant(root=token)
        bench.decode()
        bench.commit([], INF)
    bench.plant(*TREE, root=49)
    bench.decode()
    assert bench.commit([1, 3], INF) == 2


def test_rewinding_drops_cells_of_every_lane(bench: Bench) -> None:
    bench.commit([1, 3, 5], INF)
    bench.rewind(4)
    assert bench.target.assert_only_committed(bench.tokens) == 4
    bench.plant(*TREE, root=49)
    bench.decode()
    assert bench.commit([1, 3, 5], INF) == 3


def test_recovery_in_the_middle_of_a_step(bench: Bench) -> None:
    bench.lanes.recover(3)
    assert bench.target.assert_only_committed([7, 8, 9]) == 3
    bench.plant(*TREE, root=49)
    bench.decode()
    assert bench.commit([1, 3, 5], INF) == 3


def test_a_state_that_cannot_rewind_is_dropped_whole() -> None:
    bench = Bench(n_lanes=1, can_rewind=False)
    bench.read([1, 2, 3])
    assert bench.lanes.rewind(2) == 0
    assert bench.target.assert_only_committed([]) == 0


def test_a_state_that_cannot_rewind_goes_on_where_it_ended() -> None:
    bench = Bench(n_lanes=1, can_rewind=False)
    bench.read([1, 2, 3])
    assert bench.lanes.rewind(3) == 3
    assert bench.target.assert_only_committed([1, 2, 3]) == 3


def test_an_error_drops_a_state_that_cannot_rewind() -> None:
    bench = Bench(n_lanes=1, can_rewind=False)
    bench.read([1, 2, 3])
    bench.lanes.recover(3)
    assert bench.lanes.n_past == 0
    assert bench.target.assert_only_committed([]) == 0


def test_a_state_gives_up_the_tokens_it_can_once() -> None:
    bench = Bench(n_lanes=1, can_rewind=False, n_rewind=2)
    bench.read([1, 2, 3, 4])
    assert bench.lanes.rewind(2) == 2
    assert bench.target.assert_only_committed([1, 2]) == 2
    assert bench.lanes.rewind(1) == 0
    assert bench.target.assert_only_committed([]) == 0


def test_a_state_does_not_give_up_more_tokens_than_it_can() -> None:
    bench = Bench(n_lanes=1, can_rewind=False, n_rewind=2)
    bench.read([1, 2, 3, 4])
    assert bench.lanes.rewind(1) == 0


@pytest.mark.parametrize(("n_rewind", "n_left"), [(0, 7), (2, 5), (9, 4)])
def test_undoing_a_batch_keeps_what_cannot_be_given_up(n_rewind: int, n_left: int) -> None:
    bench = Bench(n_lanes=1, can_rewind=False, n_rewind=n_rewind)
    bench.read([1, 2, 3])
    bench.plant((5, 0), (6, 1), (7, 2), root=4)
    bench.decode()
    bench.lanes.undo(4)
    assert bench.target.assert_only_committed([1, 2, 3, 4, 5, 6, 7]) == n_left


@pytest.mark.parametrize("n_accepted", range(4))
def test_a_chain_is_kept_as_far_as_it_was_accepted(n_accepted: int) -> None:
    bench = Bench(n_lanes=1, can_rewind=False, n_rewind=3)
    bench.read([1, 2, 3])
    for _ in range(2):
        bench.plant((5, 0), (6, 1), (7, 2), root=4)
        bench.decode()
        assert bench.commit([1, 2, 3][:n_accepted], 0.0) == n_accepted


@pytest.mark.parametrize("seed", range(25))
def test_random_trees_and_paths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bench = Bench(n_lanes=20)
    bench.read([5])
    front: list[int] = []
    while len(bench.tokens) < 150:
        bench.plant_random(rng, int(rng.integers(0, 20)), 50)
        bench.decode(front)
        draft = bench.draft
        parents = draft.parent[1 : draft.n].tolist()
        path: list[int] = []
        below = [i for i, p in enumerate(parents, 1) if p == 0]
        while below and rng.random() < 0.8:
            path.append(int(rng.choice(below)))
            below = [i for i, p in enumerate(parents, 1) if p == path[-1]]
        token_s = float(rng.choice([0.0, 1e-6, 1e-4, INF]))
        kept = bench.commit(path, token_s, front)
        slots = draft.slot[path].tolist()
        n_in_front = sum(slots[: i + 1] == list(range(1, i + 2)) for i in range(len(path)))
        assert kept <= n_in_front
        assert kept == n_in_front or token_s < INF
        front = draft.token[path[kept:]].tolist()
