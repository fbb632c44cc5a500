"""What ``edge-tr doctor --report`` writes: measured parts, and nothing personal."""

from __future__ import annotations

import getpass
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_tr import models
from edge_tr.cli import main
from edge_tr.doctor import findings, machine_report
from edge_tr.machine import facts


@pytest.fixture(scope="module")
def found(tiny_model: Callable[[str], Path]) -> dict[str, Any]:
    """A report of a tiny model on this machine, measured hastily."""
    return machine_report.gather(tiny_model("llama"), n_gpu_layers=0, quick=True)


def test_every_part_is_measured(found: dict[str, Any]) -> None:
    measured = found["measured"]
    parts = {"opened", "costs", "widths", "other_widths", "keep_or_redo", "texts", "error"}
    assert measured.keys() == parts
    assert measured["error"] == ""


def test_costs_are_a_table(found: dict[str, Any]) -> None:
    costs = found["measured"]["costs"]
    assert costs["widths"][:4] == [1, 2, 3, 4]
    assert all(len(row) == len(costs["widths"]) for row in costs["seconds"])


def test_both_ways_to_go_on_have_a_price(found: dict[str, Any]) -> None:
    prices = found["measured"]["keep_or_redo"]
    assert prices["keep_s"] > 0
    assert prices["redo_s"] > 0
    assert prices["n_accepted"] > 0


def test_texts_are_compared(found: dict[str, Any]) -> None:
    texts = found["measured"]["texts"]
    assert len(texts["plain"]) == len(texts["tree"]) == len(texts["auto"]) == 3
    for name in ("tree_against_plain", "auto_against_plain"):
        assert texts[name]["n_texts"] == 3
        assert texts[name]["violations"] == 0


def test_the_machine_and_the_build_are_told(found: dict[str, Any]) -> None:
    assert found["system"]["processor"] == facts.processor()
    assert "CPU" in found["build"]["backends"]
    assert found["versions"]["llama-cpp-python"]
    assert found["model"]["layers"]


def test_nothing_is_personal(found: dict[str, Any], tiny_model: Callable[[str], Path]) -> None:
    text = json.dumps(found)
    for name in (str(Path.home()), str(tiny_model("llama").parent), sys.prefix):
        assert name not in text
    assert found["model"]["path"] == "llama.gguf"
    assert "paths" not in found


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("cannot open /usr/lib/x86/libcuda.so.1: no", "cannot open libcuda.so.1: no"),
        ("load '/opt/a b' failed", "load 'a b' failed"),
        (r"cannot open C:\Users\Jo Doe\model.gguf", "cannot open model.gguf"),
        ("12 tok/s and/or 3 GiB", "12 tok/s and/or 3 GiB"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("jodoe has jobox, jodoes", "(name) has (name), jodoes"),
        ("/home/Jo Doe/models/m.gguf of /home/Jo Doe", "m.gguf of ~"),
    ],
)
def test_names_and_folders_are_left_out(
    said: str, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "jodoe")
    monkeypatch.setattr(platform, "node", lambda: "jobox.example.org")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/Jo Doe"))
    assert machine_report.anonymous({"folder": "x", "list": [said]}) == {"list": [sent]}


def test_a_model_that_does_not_load_is_not_measured(tmp_path: Path) -> None:
    found = machine_report.gather(tmp_path / "missing.gguf")
    assert found["measured"] is None
    assert "missing.gguf does not exist" in found["model"]["error"]


def test_a_child_that_dies_leaves_what_it_found(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = tmp_path / "python"
    child.write_text(
        '#!/bin/sh\necho \'{"stage": "costs", "widths": [1]}\'\necho oh >&2\nkill $$\n'
    )
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    monkeypatch.setattr(
        findings,
        "report",
        lambda *a, **k: {"decode": {"works": True}, "model": {"error": ""}},
    )
    measured = machine_report.gather(tiny_model("llama"))["measured"]
    assert measured == {"costs": {"widths": [1]}, "error": "exit code -15: oh"}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """The models that ``gather`` is called with; it measures nothing."""
    calls: list[Path | None] = []

    def gather(model: Path | None, **options: Any) -> dict[str, Any]:
        calls.append(model)
        return {"decode": {"works": True}, "model": None, "measured": {"error": ""}}

    monkeypatch.setattr(machine_report, "gather", gather)
    return calls


def test_the_default_model_is_measured(
    told: list[Path | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "path", lambda name, progress: Path(f"{name}.gguf"))
    assert main(["doctor", "--report"]) == 0
    assert told == [Path(f"{models.DEFAULT}.gguf")]
    assert json.loads(capsys.readouterr().out)["decode"] == {"works": True}


def test_the_report_goes_to_a_file(
    told: list[Path | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    assert main(["doctor", "--report", str(file), "-m", "any.gguf"]) == 0
    assert json.loads(file.read_text())["measured"] == {"error": ""}
    assert capsys.readouterr().out == ""


def test_a_report_that_cannot_be_written_measures_nothing(
    told: list[Path | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--report", str(tmp_path / "missing" / "report.json")]) == 2
    assert "report.json cannot be written" in capsys.readouterr().err
    assert told == []


def test_without_a_model_the_machine_is_still_told(
    told: list[Path | None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--report", "-m", "no-such"]) == 0
    assert told == [None]
    assert "nothing is measured" in capsys.readouterr().err
