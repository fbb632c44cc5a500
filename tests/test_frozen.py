"""A frozen application: children of ours do not start it again, and PyInstaller needs no flags."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_tr import models
from edge_tr.errors import ConfigError, ModelFileError
from edge_tr.llama.quantize import quantize
from edge_tr.machine import build_check, child_process, isa
from edge_tr.models.catalog import entries

APPLICATION = """
import sys
from edge_tr import Llama

print("started")
llm = Llama(sys.argv[1], n_ctx=512, verbose=False)
stream = llm.create_completion("Copper is used", max_tokens=16, temperature=0.0, stream=True)
for chunk in stream:
    print(chunk["choices"][0]["text"], end="", flush=True)
print()
"""


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that looks frozen, without our hook, and must not start anything."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a child process was started")

    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.mark.usefixtures("frozen")
def test_without_our_hook_nothing_is_started(tmp_path: Path) -> None:
    assert not child_process.can_run()
    build_check.require_working_build()
    assert "frozen" in build_check.check_build().error
    with pytest.raises(ConfigError, match="frozen"):
        quantize(tmp_path / "a", tmp_path / "b", "q4_0")


@pytest.mark.usefixtures("frozen")
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.skipif(not isa.is_x86(), reason="x86-64 sets")
def test_instruction_sets_are_tried_in_forks() -> None:
    assert isa.probe()["sse42"].executes


@pytest.mark.usefixtures("frozen")
def test_no_model_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    name = next(entry.name for entry in entries() if entry.kind == "shipped")
    with pytest.raises(ModelFileError, match="frozen application"):
        models.get(name)


def test_with_our_hook_the_command_names_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "_edge_tr_children", True, raising=False)
    expected = [sys.executable, "-m", "edge_tr.machine.build_child", "x"]
    assert child_process.command("edge_tr.machine.build_child", "x") == expected


@pytest.mark.slow
@pytest.mark.parametrize("form", ["--onedir", "--onefile"])
def test_pyinstaller_needs_no_flags(
    form: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    freeze = [sys.executable, "-m", "PyInstaller", "--log-level", "ERROR", form, "app.py"]
    subprocess.run(freeze, cwd=tmp_path, check=True)
    place = tmp_path / "dist" / "app"
    application = place / "app" if form == "--onedir" else place
    done = subprocess.run(
        [application, tiny_model("llama")], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("started") == 1
    child = subprocess.run(
        [application, "-m", "edge_tr.machine.build_child"], capture_output=True, text=True
    )
    assert "started\n" not in child.stdout
    assert json.loads(child.stdout.splitlines()[-1]) == {"stage": "done"}
