from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_tr.costs.expected import (
    PUBLIC_TABLES,
    RecordedRun,
    Recording,
    RelativeCosts,
    expect,
    read_costs,
    read_recording,
    relative_costs,
)
from edge_tr.costs.table import CostTable
from edge_tr.errors import ConfigError


def run_of(max_nodes: int, hits: list[tuple[int, ...]], p: float = 0.4) -> RecordedRun:
    """A run whose drafter expected each node to be accepted with probability ``p``."""
    curve = p * np.arange(max_nodes + 1, dtype=np.float64)
    return RecordedRun(max_nodes, tuple(hits), np.tile(curve, (len(hits), 1)))


RECORDING = Recording(
    "two sizes", (run_of(2, [(1,), (), (1, 2), ()]), run_of(4, [(1, 2, 3, 4), (), (2,), (1, 4)]))
)
FLAT = RelativeCosts("flat", (1, 5), (1.0, 1.0))


def steep(slope: float) -> RelativeCosts:
    return RelativeCosts("steep", (1, 5), (1.0, 1 + 4 * slope))


def test_the_mat_of_a_recorded_size_is_that_of_its_run() -> None:
    mat_of = expect(RECORDING, FLAT).mat_of
    assert mat_of[0] == 1
    assert mat_of[2] == 1 + 3 / 4
    assert mat_of[4] == 1 + 7 / 4


def test_between_the_recorded_sizes_mat_is_on_a_straight_line() -> None:
    mat_of = expect(RECORDING, FLAT).mat_of
    assert mat_of[1] == pytest.approx((mat_of[0] + mat_of[2]) / 2)
    assert mat_of[3] == pytest.approx((mat_of[2] + mat_of[4]) / 2)


def test_speed_is_mat_over_the_cost_of_the_step() -> None:
    expectation = expect(RECORDING, steep(0.5))
    for n, (mat, speedup) in enumerate(
        zip(expectation.mat_of, expectation.speedup_of, strict=True)
    ):
        assert speedup == pytest.approx(mat / (1 + 0.5 * n))


def test_nodes_that_cost_nothing_are_all_drafted() -> None:
    expectation = expect(RECORDING, FLAT)
    assert expectation.best_nodes == 4
    assert expectation.mean_nodes == 4
    assert expectation.speedup == pytest.approx(1 + 7 / 4)


def test_nodes_that_cost_a_step_each_are_not_drafted() -> None:
    expectation = expect(RECORDING, steep(1.0))
    assert expectation.best_nodes == 0
    assert expectation.mean_nodes == 0
    assert expectation.speedup == expectation.mat == 1


def test_steps_are_drafted_where_they_are_expected_to_pay() -> None:
    # Two kinds of steps: one that is sure of its first node, and one that is not.
    sure, unsure = [0.0, 0.95, 0.95], [0.0, 0.05, 0.05]
    run = RecordedRun(2, ((1,), ()) * 20, np.array([sure, unsure] * 20))
    expectation = expect(Recording("mixed", (run,)), RelativeCosts("x", (1, 2, 3), (1, 1.5, 2)))
    assert expectation.mean_nodes == 0.5
    assert expectation.mat == 1.5
    assert expectation.speedup == pytest.approx(1.5 / 1.25)


def test_no_tree_is_wider_than_the_costs_are_known() -> None:
    expectation = expect(RECORDING, RelativeCosts("narrow", (1, 2, 3), (1.0, 1.0, 1.0)))
    assert len(expectation.mat_of) == 3
    assert expectation.mean_nodes <= 2


def test_one_width_means_no_drafting() -> None:
    expectation = expect(RECORDING, RelativeCosts("one", (1,), (1.0,)))
    assert expectation.speedup == 1
    assert expectation.best_nodes == 0


def test_a_recording_survives_json() -> None:
    again = Recording.from_dict(json.loads(json.dumps(RECORDING.to_dict())))
    assert again.about == RECORDING.about
    for before, after in zip(RECORDING.runs, again.runs, strict=True):
        assert before.hits == after.hits
        np.testing.assert_allclose(before.expected, after.expected, atol=0.005)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 7}, "format 7 is unknown"),
        ({"runs": []}, "must rise"),
        ({"runs": None}, "recording"),
        ({"about": None, "runs": [{}]}, "recording"),
    ],
)
def test_what_is_no_recording_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Recording.from_dict(RECORDING.to_dict() | change)


@pytest.mark.parametrize(
    "change",
    [
        {"hits": [[5], [], [], []]},
        {"hits": [[0], [], [], []]},
        {"hits": []},
        {"hits": [[1]]},
        {"sizes": [2, 1]},
        {"sizes": []},
        {"expected": [[1]]},
        {"expected": "a"},
    ],
)
def test_a_damaged_run_is_refused(change: dict[str, Any]) -> None:
    data = RECORDING.to_dict()
    data["runs"][1] |= change
    with pytest.raises(ConfigError, match="this is not a recording of acceptance"):
        Recording.from_dict(data)


def test_sizes_must_rise() -> None:
    with pytest.raises(ConfigError, match=r"sizes \[4, 2\]"):
        Recording("x", RECORDING.runs[::-1])


@pytest.mark.parametrize(
    ("widths", "ratio"),
    [
        ((), ()),
        ((2, 3), (1.0, 1.2)),
        ((1, 1), (1.0, 1.2)),
        ((1, 2), (1.0,)),
        ((1, 2), (2.0, 3.0)),
        ((1, 2), (1.0, 0.0)),
        ((1, 2), (1.0, float("nan"))),
    ],
)
def test_what_is_no_table_is_refused(widths: Any, ratio: Any) -> None:
    with pytest.raises(ConfigError, match="table"):
        RelativeCosts("this table", widths, ratio)


def test_a_measured_table_gives_one_for_each_context() -> None:
    table = CostTable((1, 2), (64, 512), ((0.01, 0.02), (0.04, 0.05)))
    short, long = relative_costs("laptop", table)
    assert (short.name, short.ratio) == ("laptop, 64 past tokens", (1.0, 2.0))
    assert (long.name, long.ratio) == ("laptop, 512 past tokens", (1.0, 1.25))


def written(directory: Path, data: Any) -> Path:
    path = directory / "laptop.json"
    path.write_text(json.dumps(data))
    return path


RATIO = {"widths": [1, 2], "ratio": [1, 1.5]}
SECONDS = {"widths": [1, 2], "contexts": [64], "seconds": [[0.1, 0.2]]}


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (RATIO, ["laptop"]),
        (RATIO | {"name": "mine", "source": "a clock"}, ["mine"]),
        ([RATIO, RATIO | {"name": "other"}], ["laptop 1", "other"]),
        ({"tables": [RATIO]}, ["laptop 1"]),
        (SECONDS, ["laptop, 64 past tokens"]),
        ({"name": "a.gguf", "costs": SECONDS}, ["a.gguf, 64 past tokens"]),
        ({"format": 2, "key": {}, "costs": SECONDS}, ["laptop, 64 past tokens"]),
    ],
)
def test_tables_are_read_from_every_form(tmp_path: Path, data: Any, names: list[str]) -> None:
    assert [costs.name for costs in read_costs(written(tmp_path, data))] == names


@pytest.mark.parametrize(
    "data",
    [
        1,
        {},
        {"widths": [1]},
        {"widths": [1], "ratio": ["a"]},
        {"widths": 1, "ratio": 1},
        {"seconds": 3},
        [RATIO, None],
        {"costs": None},
    ],
)
def test_a_file_without_tables_is_refused(tmp_path: Path, data: Any) -> None:
    with pytest.raises(ConfigError, match="cost table"):
        read_costs(written(tmp_path, data))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json cannot be read"):
        read_costs(tmp_path / "none.json")


def test_every_public_table_has_its_source() -> None:
    tables = read_costs(PUBLIC_TABLES)
    assert len({costs.name for costs in tables}) == len(tables) >= 15
    for costs in tables:
        assert costs.source.startswith(("https://", "measured for this project"))
        assert costs.note


def test_the_recording_that_comes_with_the_package_can_be_used() -> None:
    recording = read_recording()
    assert recording.runs[-1].max_nodes == 80
    free = expect(recording, RelativeCosts("free", (1, 81), (1.0, 1.0)))
    assert free.mat_of == tuple(sorted(free.mat_of))
    assert 2 < free.mat < 6
