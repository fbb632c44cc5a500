from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_target import FakeTarget

from edge_tr.costs.table import CostTable
from edge_tr.measuring import kept_costs
from edge_tr.measuring.kept_costs import (
    cost_key,
    cost_path,
    costs_of,
    forget_costs,
    load_costs,
    save_costs,
)
from edge_tr.measuring.lock import measuring_alone

KEY = {"model": ["a.gguf", 3], "n_ctx": 512}
TABLE = CostTable((1, 2), (0, 100), ((1.0, 2.0), (3.0, 4.0)), 0.5, 0.25)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class KnownFake(FakeTarget):
    def cost_key(self) -> dict[str, Any]:
        return {"model": "fake", "n_ctx": self.n_ctx}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each measurement was asked for; none takes any time."""
    asked: list[dict[str, Any]] = []

    def measure(target: Any, **options: Any) -> CostTable:
        asked.append(options)
        return TABLE

    monkeypatch.setattr(kept_costs, "measure_costs", measure)
    return asked


def test_costs_are_kept() -> None:
    assert save_costs(KEY, TABLE)
    assert load_costs(KEY) == TABLE


def test_another_key_has_other_costs() -> None:
    save_costs(KEY, TABLE)
    assert load_costs(KEY | {"n_ctx": 1024}) is None


def test_forgotten_costs_are_gone() -> None:
    save_costs(KEY, TABLE)
    forget_costs(KEY)
    forget_costs(KEY)
    assert load_costs(KEY) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: json.dumps(json.loads(text) | {"format": 1}),
        lambda text: json.dumps(json.loads(text) | {"costs": {}}),
        lambda text: json.dumps({"format": json.loads(text)["format"]}),
    ],
)
def test_a_damaged_file_counts_as_none(change: Callable[[str], str]) -> None:
    save_costs(KEY, TABLE)
    path = cost_path(KEY)
    path.write_text(change(path.read_text()))
    assert load_costs(KEY) is None


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path) -> None:
    cache.write_text("a file, not a directory")
    assert not save_costs(KEY, TABLE)
    assert load_costs(KEY) is None


def test_saving_leaves_no_other_file(cache: Path) -> None:
    save_costs(KEY, TABLE)
    save_costs(KEY, TABLE)
    assert [path.name for path in (cache / "costs").iterdir()] == [cost_path(KEY).name]


def test_costs_are_measured_once(measured: list[dict[str, Any]]) -> None:
    for _ in range(3):
        assert costs_of(KnownFake(n_ctx=600, n_batch=50), k=8, n_threads=1) == TABLE
    assert [options["max_width"] for options in measured] == [50]


def test_costs_are_measured_for_each_setting(measured: list[dict[str, Any]]) -> None:
    for n_ctx, k, n_threads in ((600, 8, 1), (300, 8, 1), (600, 4, 1), (600, 8, 2)):
        costs_of(KnownFake(n_ctx=n_ctx, n_batch=200), k=k, n_threads=n_threads)
    assert [options["max_width"] for options in measured] == [81, 75, 81, 81]


def test_costs_measured_anew_replace_the_old_ones(
    measured: list[dict[str, Any]], cache: Path
) -> None:
    target = KnownFake(n_ctx=600)
    key = target.cost_key() | {"k": 8, "topk_threads": 1}
    save_costs(key, CostTable((1,), (0,), ((9.0,),)))
    costs_of(target, k=8, n_threads=1, anew=True)
    assert load_costs(key) == TABLE
    shutil.rmtree(cache)
    assert len(measured) == 1


def test_costs_of_a_busy_machine_are_measured_once_more(
    measured: list[dict[str, Any]], cache: Path
) -> None:
    target = KnownFake(n_ctx=600)
    save_costs(cost_key(target, 8, 1), replace(TABLE, steady=False))
    for _ in range(3):
        assert costs_of(target, k=8, n_threads=1) == TABLE
    assert len(measured) == 1


def test_costs_measured_while_another_measures_are_measured_again(
    measured: list[dict[str, Any]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = KnownFake(n_ctx=600)
    monkeypatch.setattr(kept_costs, "measuring_alone", partial(measuring_alone, 0.0))
    with measuring_alone():
        assert not costs_of(target, k=8, n_threads=1).steady
        assert not costs_of(target, k=8, n_threads=1).steady
    assert costs_of(target, k=8, n_threads=1) == TABLE
    assert costs_of(target, k=8, n_threads=1) == TABLE
    assert len(measured) == 3


def test_a_slower_second_measurement_is_not_believed(
    measured: list[dict[str, Any]], cache: Path
) -> None:
    target = KnownFake(n_ctx=600)
    seconds = tuple(tuple(s / 2 for s in row) for row in TABLE.seconds)
    known = replace(TABLE, seconds=seconds, steady=False)
    save_costs(cost_key(target, 8, 1), known)
    for _ in range(2):
        assert costs_of(target, k=8, n_threads=1) == replace(known, steady=True)
    assert len(measured) == 1


class CrowdedFake(KnownFake):
    """Its threads are ours to choose."""

    may_change_threads = True
    n_threads = 4

    def set_threads(self, n: int) -> None:
        self.n_threads = n


@pytest.mark.parametrize("crowded", [False, True])
def test_beside_other_programs_costs_are_measured_with_half_of_the_threads_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, cache: Path, crowded: bool
) -> None:
    target, used = CrowdedFake(n_ctx=600), []

    def measure(target: CrowdedFake, **options: Any) -> CostTable:
        used.append(target.n_threads)
        return TABLE

    monkeypatch.setattr(kept_costs, "measure_costs", measure)
    monkeypatch.setattr(kept_costs, "is_crowded", lambda *_: crowded)
    assert costs_of(target, k=8, n_threads=1).steady is not crowded
    assert used == [2 if crowded else 4]
    assert target.n_threads == 4
    assert (load_costs(cost_key(target, 8, 1)) is None) is crowded
