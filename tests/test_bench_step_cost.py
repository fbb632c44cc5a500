"""bench.step_cost: from times to plain steps, and a run with the build at hand as both builds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import step_cost
from bench.step_cost import AVX2_TARGETS, TARGETS, Times, conclude, missed, table
from edge_tr.llama import kernels

OURS: Times = {1: [0.010, 0.010, 0.5], 2: [0.011, 0.011, 0.011]}
STOCK: Times = {1: [0.020] * 3, 2: [0.030] * 3}


def test_steps_are_told_in_ours_own_plain_steps() -> None:
    found = conclude({(300, False): {"ours": OURS, "stock": STOCK}})
    assert (found["t1_over_stock"], found["t"]) == (0.5, {"2": 1.1})
    assert found["stock_ms"] == {"1": 20.0, "2": 30.0}


def test_each_past_and_attention_has_its_keys() -> None:
    both = {"ours": OURS, "stock": STOCK}
    times = {(n_past, flash): both for n_past in (300, 4000) for flash in (False, True)}
    found = conclude(times)
    assert {key for key in found if key.startswith("t_") or key == "t"} == {
        "t",
        "t_far",
        "t_flash",
        "t_far_flash",
    }


def test_what_misses_its_target_is_listed() -> None:
    found = {
        "shape-1b-q4_0": {
            "t1_over_stock": 0.91,
            "t": {"2": 1.12, "8": 1.91},
            "t_far": {"4": 1.75, "8": 2.4},
        }
    }
    assert missed(found, TARGETS) == [
        ["shape-1b-q4_0", "t1_over_stock", 1, 0.91, 0.9],
        ["shape-1b-q4_0", "t", 8, 1.91, 1.9],
        ["shape-1b-q4_0", "t_far", 8, 2.4, 2.375],
    ]


def test_a_model_without_targets_misses_none() -> None:
    assert missed({"smollm2-q4_0": {"t": {"8": 9.0}}}, AVX2_TARGETS) == []


def test_the_table_names_every_situation() -> None:
    both = {"ours": OURS, "stock": STOCK}
    lines = table("a", conclude({(300, False): both, (4000, True): both}))
    assert lines[0] == "a"
    assert [line.split(" ours")[0].strip() for line in lines[1:]] == ["near", "far flash"]


@pytest.fixture
def one_build(monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[[str], Path]) -> None:
    """The build at hand takes the place of the stock one."""
    if not kernels.active():
        pytest.skip("this build has no kernels of ours for this processor")
    monkeypatch.setattr("edge_tr.models.path", lambda *_: tiny_model("llama"))
    monkeypatch.setattr("bench.builds.stock", lambda flags: None)


@pytest.mark.usefixtures("one_build")
def test_a_build_with_kernels_is_no_stock_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert step_cost.main(["--models", "tiny", "--past", "16", "--threads", "1"]) == 1
    assert "the build stock has kernels of ours" in capsys.readouterr().err


@pytest.mark.usefixtures("one_build")
def test_a_short_run_tells_every_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_cost, "HAS_KERNELS", {"ours": True, "stock": True})
    sizes = ["--models", "tiny", "--past", "16", "40", "--widths", "2", "4", "--rounds", "2"]
    assert step_cost.main([*sizes, "--steps", "1", "--threads", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["models"]["tiny"]
    for ending in ("", "_far", "_flash", "_far_flash"):
        assert set(told[f"t{ending}"]) == {"2", "4"}
