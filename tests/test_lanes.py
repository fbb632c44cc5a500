"""The lane protocol alone, on cells that are checked as llama.cpp checks them."""

from __future__ import annotations

import numpy as np
import pytest
from drafters import add_node
from fake_target import FakeTarget, HashModel

from edge_tr.draft import Draft
from edge_tr.kernels import tree as kernels
from edge_tr.lanes import LaneCache
from edge_tr.target import Batch, Float32, Int32

INF = float("inf")


class Bench:
    """A target whose committed sequence is ``tokens``, and one draft tree at a time."""

    def __init__(self, *, n_ctx: int = 300, n_lanes: int = 8, can_rewind: bool = True) -> None:
        model = HashModel(50, memory=None)
        self.target = FakeTarget(model, n_ctx=n_ctx, n_lanes=n_lanes, can_rewind=can_rewind)
        self.lanes = LaneCache(self.target)
        self.draft = Draft(30)
        self.batch = Batch(64, n_lanes)
        self.tokens: list[int] = []

    def prefill(self, tokens: list[int]) -> None:
        self.batch.set_chain(np.array(tokens, dtype=np.int32), self.lanes.n_past, want_rows=1)
        self.target.decode(self.batch)
        self.lanes.extend(len(tokens))
        self.tokens += tokens

    def plant(self, *nodes: tuple[int, int], root: int = 49) -> None:
        """Make ``nodes``, pairs of token and parent, the tree below the root."""
        self.draft.reset(root)
        for token, parent in nodes:
            add_node(self.draft, token, parent)
        self.draft.plan()

    def decode(self, front: list[int] | None = None) -> Float32:
        """Decode the chain ``front`` and the tree; rows by node."""
        front = front or []
        draft, batch = self.draft, self.batch
        self.lanes.sync(draft.n_lanes)
        batch.n = len(front) + draft.n
        kernels.fill_batch(
            np.array([*front, -1], dtype=np.int32),
            len(front),
            self.lanes.n_past,
            draft.token,
            draft.depth,
            draft.slot,
            draft.lane_first,
            draft.lane_last,
            draft.n,
            batch.lane_ids_address,
            batch.token,
            batch.pos,
            batch.n_lanes,
            batch.lanes,
            batch.logits,
        )
        return self.target.decode(batch)[draft.slot[: draft.n]]

    def commit(self, accepted: list[int], token_s: float, front: list[int] | None = None) -> int:
        """Commit and check; how many accepted nodes were kept."""
        front = front or []
        kept = self.lanes.commit(len(front) + 1, self.draft, nodes(accepted), token_s)
        self.tokens += [*front, *self.draft.token[[0, *accepted[:kept]]].tolist()]
        assert self.target.assert_only_committed(self.tokens) == len(self.tokens)
        assert self.lanes.n_past == len(self.tokens)
        return kept


def nodes(numbers: list[int]) -> Int32:
    return np.array(numbers, dtype=np.int32)


# The most probable path is 1, 3, 5; 2 and 4 are decoys and 6 a second leaf below 2.
TREE = [(1, 0), (2, 0), (3, 1), (4, 2), (5, 3), (6, 2)]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.prefill([7, 8, 9])
    bench.plant(*TREE)
    bench.decode()
    return bench


def test_each_row_sees_its_own_path_only() -> None:
    bench = Bench()
    bench.prefill([7, 8, 9])
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
    bench.prefill([1])
    bench.plant((2, 0), (3, 1), (4, 2))
    bench.decode()
    assert bench.commit([1, 2], 0.0) == 2


@pytest.mark.parametrize("token_s", [0.0, INF])
def test_a_path_behind_another_one_is_decoded_again(bench: Bench, token_s: float) -> None:
    assert bench.commit([2, 6], token_s) == 0


def test_a_path_is_kept_up_to_where_it_leaves_the_front() -> None:
    bench = Bench()
    bench.prefill([1])
    bench.plant((1, 0), (2, 1), (3, 1), (4, 3))
    bench.decode()
    assert bench.commit([1, 3, 4], INF) == 1


def test_lanes_follow_after_steps_without_a_tree(bench: Bench) -> None:
    bench.commit([1], INF)
    for token in (30, 31, 32):
        bench.plant(root=token)
        bench.decode()
        bench.commit([], INF)
    bench.plant(*TREE)
    bench.decode()
    assert bench.commit([1, 3], INF) == 2


def test_rewinding_drops_cells_of_every_lane(bench: Bench) -> None:
    bench.commit([1, 3, 5], INF)
    assert bench.lanes.rewind(4) == 4
    del bench.tokens[4:]
    assert bench.target.assert_only_committed(bench.tokens) == 4
    bench.plant(*TREE)
    bench.decode()
    assert bench.commit([1, 3, 5], INF) == 3


def test_recovery_in_the_middle_of_a_step(bench: Bench) -> None:
    bench.lanes.recover(3)
    assert bench.target.assert_only_committed([7, 8, 9]) == 3
    bench.plant(*TREE)
    bench.decode()
    assert bench.commit([1, 3, 5], INF) == 3


def test_a_state_that_cannot_rewind_is_dropped_whole() -> None:
    bench = Bench(n_lanes=1, can_rewind=False)
    bench.prefill([1, 2, 3])
    assert bench.lanes.rewind(2) == 0
    assert bench.target.assert_only_committed([]) == 0


def test_a_state_that_cannot_rewind_goes_on_where_it_ended() -> None:
    bench = Bench(n_lanes=1, can_rewind=False)
    bench.prefill([1, 2, 3])
    assert bench.lanes.rewind(3) == 3
    assert bench.target.assert_only_committed([1, 2, 3]) == 3


def test_an_error_drops_a_state_that_cannot_rewind() -> None:
    bench = Bench(n_lanes=1, can_rewind=False)
    bench.prefill([1, 2, 3])
    bench.lanes.recover(3)
    assert bench.lanes.n_past == 0
    assert bench.target.assert_only_committed([]) == 0


@pytest.mark.parametrize("seed", range(25))
def test_random_trees_and_paths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bench = Bench(n_lanes=20)
    bench.prefill([5])
    front: list[int] = []
    while len(bench.tokens) < 150:
        parents = sorted(int(rng.integers(0, i + 1)) for i in range(int(rng.integers(0, 20))))
        bench.plant(*[(int(rng.integers(50)), parent) for parent in parents])
        bench.decode(front)
        draft = bench.draft
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
