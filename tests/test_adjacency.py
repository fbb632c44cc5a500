from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import ConfigError


def row(*candidates: int) -> Any:
    return np.array(candidates, dtype=np.int32)


def test_a_new_matrix_has_no_candidates() -> None:
    matrix = AdjacencyMatrix(10, 4)
    assert matrix.rows.shape == (10, 4)
    assert matrix.rows.dtype == np.int32
    assert (matrix.rows == -1).all()
    assert matrix.n_seen == 0


def test_a_matrix_of_64k_tokens_takes_2_mib() -> None:
    assert AdjacencyMatrix(1 << 16).rows.nbytes == 2 << 20


def test_random_rows_are_tokens_and_depend_on_the_seed() -> None:
    a, b = AdjacencyMatrix.random(50, seed=1), AdjacencyMatrix.random(50, seed=1)
    np.testing.assert_array_equal(a.rows, b.rows)
    assert a.rows.min() >= 0
    assert a.rows.max() < 50
    assert (a.rows != AdjacencyMatrix.random(50, seed=2).rows).any()


def test_setting_a_row_replaces_all_of_it() -> None:
    matrix = AdjacencyMatrix(10, 3)
    matrix.set_row(4, row(1, 2, 3))
    matrix.set_row(4, row(7))
    assert matrix.rows[4].tolist() == [7, -1, -1]
    assert matrix.n_seen == 1


def test_reset_forgets_everything() -> None:
    matrix = AdjacencyMatrix.random(10)
    matrix.reset()
    assert (matrix.rows == -1).all()


@pytest.mark.parametrize(("token", "candidates"), [(-1, (0,)), (10, (0,)), (0, (10,)), (0, (-2,))])
def test_tokens_outside_the_vocabulary_are_refused(token: int, candidates: Any) -> None:
    with pytest.raises(ConfigError, match=r"not in the vocabulary \(0 to 9\)"):
        AdjacencyMatrix(10, 3).set_row(token, row(*candidates))


def test_too_many_candidates_are_refused() -> None:
    with pytest.raises(ConfigError, match="k = 2"):
        AdjacencyMatrix(10, 2).set_row(0, row(1, 2, 3))


@pytest.mark.parametrize(("n_vocab", "k"), [(0, 8), ((1 << 24) + 1, 8), (10, 0), (10, 17)])
def test_sizes_out_of_range_are_refused(n_vocab: int, k: int) -> None:
    with pytest.raises(ConfigError, match="is not allowed"):
        AdjacencyMatrix(n_vocab, k)


def test_a_template_of_higher_ranks_than_the_matrix_is_refused() -> None:
    with pytest.raises(ConfigError, match="rank 7"):
        FixedTreeDrafter(AdjacencyMatrix(10, 4), TreeTemplate.paper())


def test_another_way_of_updating_is_refused() -> None:
    update: Any = "some"
    with pytest.raises(ConfigError, match="some"):
        FixedTreeDrafter(AdjacencyMatrix(10), TreeTemplate([]), update=update)
