from __future__ import annotations

import numpy as np
import pytest

from edge_tr.llama.kept_rows import RecentRows, RowsView
from edge_tr.target import Float32


def rows_of(*positions: int) -> Float32:
    return np.array([[p, p + 0.5] for p in positions], dtype=np.float32)


@pytest.fixture
def view() -> RowsView:
    """Room for four rows; of positions 0 to 5 the last four are kept."""
    kept = RecentRows(2, 4)
    kept.put(0, rows_of(0, 1, 2))
    kept.put(3, rows_of(3, 4, 5))
    return RowsView(kept, 6)


@pytest.mark.parametrize("key", [5, -1, (2, slice(None)), (-3, 1), slice(2, 5), (slice(3, 6), 0)])
def test_rows_are_found_as_in_an_array(view: RowsView, key: object) -> None:
    whole = rows_of(0, 1, 2, 3, 4, 5)
    assert np.array_equal(view[key], whole[key])  # type: ignore[call-overload]


@pytest.mark.parametrize("key", [0, (1, slice(None)), slice(0, 3), slice(None)])
def test_rows_that_are_gone_say_so(view: RowsView, key: object) -> None:
    with pytest.raises(IndexError, match="are not kept"):
        view[key]


def test_a_position_outside_is_an_index_error(view: RowsView) -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        view[6]


def test_a_block_longer_than_the_room_keeps_its_end() -> None:
    kept = RecentRows(2, 2)
    kept.put(0, rows_of(0, 1, 2, 3, 4))
    assert np.array_equal(RowsView(kept, 5)[3:], rows_of(3, 4))


def test_a_copy_stands_for_rows_that_are_gone(view: RowsView) -> None:
    assert view.copy().tolist() == [[0.0, 0.0]]
    assert view.first(0).copy().shape == (0, 2)


def test_the_room_ends_at_256_mib() -> None:
    assert RecentRows(100, 50).capacity == 50
    assert RecentRows(1 << 20, 1 << 15).capacity == 64


def test_an_array_of_it(view: RowsView) -> None:
    kept = view.kept
    assert np.array_equal(np.asarray(RowsView(kept, 6)[2:]), rows_of(2, 3, 4, 5))
    with pytest.raises(IndexError):
        np.asarray(view)
