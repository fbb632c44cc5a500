"""native/peers.py with stand-ins for pip and CMake."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_tr.errors import NativeBuildError
from native import peers
from native.build import Plan

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")

CMAKE = """
if [ "$1" = --build ]; then
  mkdir -p "$2/bin"
  for program in llama-server llama-lookahead llama-lookup; do touch "$2/bin/$program"; done
else
  echo "$@"; find "$2" -name edge_tr
fi
"""
Script = Callable[[str, str], None]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan("cpu", "0", ("-DGGML_NATIVE=OFF",), tmp_path / "cache" / "wheels" / "0-cpu-key")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """``script(name, text)``: a shell script that stands in for a command."""
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    return write


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A source archive as PyPI has it."""
    source = tmp_path / "llama_cpp_python-0" / "vendor" / "llama.cpp"
    source.mkdir(parents=True)
    (tmp_path / "llama_cpp_python-0" / "pyproject.toml").touch()
    file = tmp_path / "llama_cpp_python-0.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        tar.add(tmp_path / "llama_cpp_python-0", "llama_cpp_python-0")
    return file


def download(archive: Path) -> str:
    return f'while [ "$1" != -d ]; do shift; done; cp {archive} "$2"'


def test_the_programs_lie_under_the_key_of_the_wheel(
    plan: Plan, script: Script, archive: Path
) -> None:
    script("python", download(archive))
    script("cmake", CMAKE)
    folder = peers.build(plan)
    assert folder.name == plan.folder.name
    assert {file.name for file in folder.iterdir()} == {*peers.PROGRAMS, "peers.json", "build.log"}


def test_the_flags_are_those_of_the_preset_and_offline(
    plan: Plan, script: Script, archive: Path
) -> None:
    script("python", download(archive))
    script("cmake", CMAKE)
    log = (peers.build(plan) / "build.log").read_text()
    for flag in ("-DGGML_NATIVE=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"):
        assert flag in log


def test_peers_are_llama_cpp_as_it_is_published(
    plan: Plan, script: Script, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("python", download(archive))
    script("cmake", CMAKE)
    assert "edge_tr\n" not in (peers.build(plan) / "build.log").read_text()
    asked: list[Plan] = []
    monkeypatch.setattr(peers, "build", asked.append)
    monkeypatch.setattr(sys, "argv", ["peers.py"])
    assert peers.main() == 0
    assert asked[0].kernels is False


def test_what_was_built_is_used_again(plan: Plan, script: Script) -> None:
    folder = peers.folder_of(plan)
    script("python", "exit 1")
    folder.mkdir(parents=True)
    (folder / "peers.json").write_text(json.dumps({"version": "0"}))
    assert peers.build(plan) == folder


def test_a_failed_build_is_quoted_and_leaves_its_log(
    plan: Plan, script: Script, archive: Path
) -> None:
    script("python", download(archive))
    script("cmake", "echo no such compiler; exit 1")
    with pytest.raises(NativeBuildError, match="no such compiler"):
        peers.build(plan)
    assert [file.suffix for file in peers.folder_of(plan).iterdir()] == [".log"]


def test_a_source_that_cannot_be_fetched_is_quoted(plan: Plan, script: Script) -> None:
    script("python", "echo No matching distribution; exit 1")
    with pytest.raises(NativeBuildError, match="No matching distribution"):
        peers.build(plan)
