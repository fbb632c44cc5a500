"""bench.builds: objects in child processes, and wheels unpacked beside each other."""

from __future__ import annotations

import os
import zipfile
from contextlib import closing
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from bench import builds
from edge_tr.errors import EdgeTRError
from native.build import Plan


class Adder:
    """Served by a child process in these tests."""

    def __init__(self, start: int) -> None:
        self.total = start

    def add(self, numbers: list[int]) -> int:
        """Prints, as libraries do; that must not end up among the answers."""
        print("adding")
        self.total += sum(numbers)
        return self.total

    def fail(self) -> None:
        raise RuntimeError("on purpose")


def remote(**arguments: Any) -> closing[builds.Remote]:
    return closing(builds.Remote(None, f"{__name__}:Adder", **arguments))


@pytest.fixture(autouse=True)
def tests_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def test_an_object_in_a_child_keeps_its_state() -> None:
    with remote(start=1) as adder:
        assert adder.call("add", numbers=[2, 3]) == 6
        assert adder.call("add", numbers=[4]) == 10


def test_a_child_that_waits_uses_no_processor() -> None:
    with remote(start=0) as adder:
        sleep(0.3)
        adder.call("add", numbers=[])
        adder.call("add", numbers=[])
        assert adder.waiting_share < 0.1


def test_a_child_that_fails_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    with remote(start=0) as adder, pytest.raises(EdgeTRError, match="ended with 1"):
        adder.call("fail")
    assert "on purpose" in capfd.readouterr().err


def test_a_wheel_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    asked: list[str] = []

    def make_plan(preset: str) -> Plan:
        asked.append(os.environ["CMAKE_ARGS"])
        return Plan(preset, "1", (), tmp_path / "wheels" / f"1-{preset}")

    def build(plan: Plan) -> Path:
        wheel = tmp_path / "a.whl"
        with zipfile.ZipFile(wheel, "x") as archive:
            archive.writestr("llama_cpp/__init__.py", "")
        return wheel

    monkeypatch.setattr(builds, "make_plan", make_plan)
    monkeypatch.setattr(builds, "build", build)
    monkeypatch.setenv("CMAKE_ARGS", "-DA=1")
    folders = {builds.stock(("-DB=0",)) for _ in range(2)}
    assert folders == {tmp_path / "builds" / "1-stock"}
    assert (tmp_path / "builds" / "1-stock" / "llama_cpp" / "__init__.py").exists()
    assert asked == ["-DA=1 -DB=0"] * 2
    assert os.environ["CMAKE_ARGS"] == "-DA=1"


def test_without_flags_ours_is_the_build_that_runs() -> None:
    assert builds.ours() is None
