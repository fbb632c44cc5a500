"""The drafter's kernels on disk, and the process that compiles them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from edge_tr.drafts import compiled
from edge_tr.machine import child_process


class Child:
    """Compiles until it is told to end."""

    def __init__(self, command: list[str], **options: object) -> None:
        self.command = command
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Child]:
    """Nothing is compiled; the processes that were started."""
    started: list[Child] = []

    def start(command: list[str], **options: object) -> Child:
        started.append(Child(command))
        return started[-1]

    monkeypatch.setattr(compiled, "_ready", False)
    monkeypatch.setattr(compiled, "_child", None)
    monkeypatch.setattr(compiled, "_mark", lambda: tmp_path / "mark")
    monkeypatch.setattr(subprocess, "Popen", start)
    return started


def test_another_process_compiles_once_and_is_waited_for(cold: list[Child]) -> None:
    assert compiled.compile_beside()
    assert compiled.compile_beside()
    assert [child.command[-1] for child in cold] == ["edge_tr.drafts.compiled"]
    assert not compiled.is_ready()
    cold[0].code = 0
    assert compiled.is_ready()
    assert not compiled.compile_beside()


def test_what_is_on_disk_needs_no_process(
    cold: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.compile_now()
    monkeypatch.setattr(compiled, "_ready", False)
    assert not compiled.compile_beside()
    assert cold == []


def test_what_another_program_compiled_meanwhile_is_taken(
    cold: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.compile_beside()
    compiled.compile_now()
    monkeypatch.setattr(compiled, "_ready", False)
    assert compiled.is_ready()


def test_a_process_that_failed_leaves_it_to_this_one(cold: list[Child]) -> None:
    compiled.compile_beside()
    cold[0].code = -9
    assert compiled.is_ready()


@pytest.mark.parametrize("what", ["no children", "no cache"])
def test_where_no_process_can_help_all_is_compiled_at_once(
    cold: list[Child], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "no children":
        monkeypatch.setattr(child_process, "can_run", lambda: False)
    else:
        monkeypatch.setattr(compiled, "_mark", lambda: None)
    assert not compiled.compile_beside()
    assert cold == []
    assert compiled.is_ready()


def test_another_version_of_a_kernel_is_not_taken_for_compiled(
    cold: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.compile_now()
    monkeypatch.setattr(compiled, "_ready", False)
    monkeypatch.setattr(compiled, "_stamp", lambda: "another")
    assert compiled.compile_beside()
