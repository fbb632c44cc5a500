from __future__ import annotations

import numpy as np
import pytest
from naive import topk

from edge_tr.decode.topk import TopK
from edge_tr.kernels.topk import topk_rows
from edge_tr.target import Float32


def assert_matches_naive(logits: Float32, k: int) -> None:
    ids, values = TopK(k)(logits)
    expected = [topk(row, k) for row in logits.tolist()]
    assert ids.tolist() == [[i for i, _ in row] for row in expected]
    assert values.tolist() == [[x for _, x in row] for row in expected]


@pytest.mark.parametrize("n_vocab", [1, 2, 7, 255, 256, 257, 511, 512, 1023, 1500, 2048])
@pytest.mark.parametrize("k", [1, 3, 8, 16])
def test_random_rows(n_vocab: int, k: int) -> None:
    rng = np.random.default_rng(n_vocab * 100 + k)
    assert_matches_naive(rng.standard_normal((3, n_vocab), dtype=np.float32), k)


@pytest.mark.parametrize("n_vocab", [5, 512, 1300])
@pytest.mark.parametrize("levels", [1, 2, 5])
def test_ties_take_the_lower_id(n_vocab: int, levels: int) -> None:
    rng = np.random.default_rng(levels)
    assert_matches_naive(rng.integers(0, levels, (4, n_vocab)).astype(np.float32), 8)


def test_ascending_and_descending_rows() -> None:
    row = np.arange(1300, dtype=np.float32)
    assert_matches_naive(np.stack((row, row[::-1])), 8)


@pytest.mark.parametrize("place", [0, 255, 256, 1023, 1024, 1279])
def test_one_high_logit_at_the_edge_of_a_block(place: int) -> None:
    logits = np.zeros((1, 1280), dtype=np.float32)
    logits[0, place] = 1
    assert_matches_naive(logits, 2)


@pytest.mark.parametrize("special", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.999, 1.0])
def test_rows_with_special_values(special: float, share: float) -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((3, 1100), dtype=np.float32)
    logits[rng.random(logits.shape) < share] = special
    assert_matches_naive(logits, 8)


def test_zeros_of_both_signs_are_ties() -> None:
    assert TopK(3)(np.array([[-0.0, 0.0, -0.0]], dtype=np.float32))[0].tolist() == [[0, 1, 2]]


def test_a_negative_zero_in_a_block_of_its_own_is_a_tie_too() -> None:
    logits = np.full((1, 2000), -1, dtype=np.float32)
    logits[0, [3, 300, 600, 900]] = [-0.0, 0.0, 0.0, 0.0]
    assert TopK(2)(logits)[0].tolist() == [[3, 300]]


def test_fewer_tokens_than_k_leave_no_candidates() -> None:
    ids, values = TopK(4)(np.array([[1.0, 2.0]], dtype=np.float32))
    assert ids.tolist() == [[1, 0, -1, -1]]
    assert values.tolist() == [[2.0, 1.0, -np.inf, -np.inf]]


def test_old_results_do_not_leak_into_a_narrower_call() -> None:
    best = TopK(2)
    best(np.ones((5, 600), dtype=np.float32))
    assert best(np.full((1, 600), np.nan, dtype=np.float32))[0].tolist() == [[-1, -1]]


def test_only_the_given_rows_are_written() -> None:
    ids = np.full((4, 2), 77, dtype=np.int32)
    values = np.full((4, 2), 7, dtype=np.float32)
    topk_rows(np.ones((4, 10), dtype=np.float32), 1, 3, ids, values)
    assert ids.tolist() == [[77, 77], [0, 1], [0, 1], [77, 77]]
