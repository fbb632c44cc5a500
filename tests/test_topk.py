from __future__ import annotations

import numpy as np
import pytest

from edge_tr.decode.topk import TopK
from edge_tr.errors import ConfigError


@pytest.mark.parametrize("n_threads", [2, 3, 8])
@pytest.mark.parametrize("n_rows", [1, 2, 7, 20])
def test_more_threads_give_the_same_result(n_threads: int, n_rows: int) -> None:
    logits = np.random.default_rng(n_rows).standard_normal((n_rows, 1 << 18), dtype=np.float32)
    ids, values = TopK(8, n_threads)(logits)
    expected_ids, expected_values = TopK(8)(logits)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(values, expected_values)


def test_buffers_grow_with_the_rows_and_not_with_the_calls() -> None:
    best = TopK(4)
    first, _ = best(np.zeros((3, 20), dtype=np.float32))
    second, _ = best(np.zeros((2, 20), dtype=np.float32))
    assert np.shares_memory(first, second)
    assert first.shape == (3, 4)
    assert second.shape == (2, 4)


def test_no_rows() -> None:
    ids, values = TopK(2)(np.zeros((0, 10), dtype=np.float32))
    assert ids.shape == values.shape == (0, 2)


@pytest.mark.parametrize(("k", "n_threads"), [(0, 1), (-1, 1), (1, 0)])
def test_numbers_below_one_are_refused(k: int, n_threads: int) -> None:
    with pytest.raises(ConfigError, match="must be 1 or more"):
        TopK(k, n_threads)
