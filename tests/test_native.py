"""native/build.py with a stand-in for pip, and what the wheel of edge_tr holds."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edge_tr.errors import NativeBuildError
from edge_tr.machine import build_check, isa
from native import source

ROOT = Path(__file__).resolve().parent.parent
posix = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module, with a cache directory of its own and no flags from outside."""
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "native" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fake_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """``fake_python(script)``: what runs in place of the Python that would run pip."""

    def write(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return write


PIP = """
if [ "$3" = download ]; then
  while [ "$1" != -d ]; do shift; done
  cp "{archive}" "$2"
else
  while [ "$1" != --wheel-dir ]; do shift; done
  echo "[1/2] cc"; echo "[2/2] cc $CMAKE_ARGS"
  cat "$3/llama_cpp/__init__.py" "$3/{cmake}" > "$2/llama_cpp_python-0-py3-none-any.whl"
fi
"""
CMAKE_LISTS = source.HOOKS[0].file


BUILD_WHEEL = """
import sys
from setuptools.build_meta import build_wheel
build_wheel(sys.argv[1])
"""


@pytest.fixture
def plan(build: ModuleType, tmp_path: Path) -> Any:
    return build.Plan("cpu", "0", ("-DGGML_NATIVE=OFF",), tmp_path / "cache" / "wheels" / "key")


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """What our kernels touch in the source archive of llama-cpp-python."""
    folder = tmp_path / "llama_cpp_python-0"
    texts = {"pyproject.toml": "", "llama_cpp/__init__.py": '__version__ = "0"\n'}
    for hook in source.HOOKS:
        texts[hook.file] = texts.get(hook.file, "") + f"before\n{hook.anchor}behind\n"
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def pip(unpacked: Path, tmp_path: Path, fake_python: Callable[[str], None]) -> None:
    """A stand-in for pip: brings the archive, and puts two of its files into the wheel."""
    archive = tmp_path / "llama_cpp_python-0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(unpacked, unpacked.name)
    fake_python(PIP.format(archive=archive, cmake=CMAKE_LISTS))


def test_stock_differs_from_cpu_by_our_kernels_alone(build: ModuleType) -> None:
    cpu, stock = build.make_plan("cpu"), build.make_plan("stock")
    assert (cpu.flags, cpu.kernels) == (stock.flags, True)
    assert not stock.kernels
    assert cpu.folder != stock.folder


def test_our_kernels_enter_the_archive(unpacked: Path) -> None:
    source.add_kernels(unpacked, "0")
    for hook in source.HOOKS:
        assert hook.anchor + hook.text in (unpacked / hook.file).read_text()
    folder = (unpacked / CMAKE_LISTS).parent / "edge_tr"
    own = {file.name for file in source.KERNELS.iterdir() if file.suffix in (".h", ".cpp")}
    assert {file.name for file in folder.iterdir()} == own
    assert (unpacked / "llama_cpp/__init__.py").read_text() == '__version__ = "0+edge.tr.1"\n'


@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize("hook", source.HOOKS, ids=lambda hook: Path(hook.file).name)
def test_a_hook_that_does_not_fit_names_its_file(
    unpacked: Path, hook: source.Hook, times: int
) -> None:
    path = unpacked / hook.file
    path.write_text(path.read_text().replace(hook.anchor, hook.anchor * times))
    words = f"do not fit its {hook.file}, where this text stands {times} times, not once"
    with pytest.raises(NativeBuildError, match=words):
        source.add_kernels(unpacked, "0")


@posix
def test_a_hook_that_does_not_fit_stops_the_build(
    build: ModuleType, plan: Any, unpacked: Path, request: pytest.FixtureRequest
) -> None:
    (unpacked / CMAKE_LISTS).unlink()
    request.getfixturevalue("pip")
    with pytest.raises(NativeBuildError, match=f"fit its {CMAKE_LISTS}.*Use --preset stock"):
        build.build(plan)
    assert plan.wheel() is None


@posix
@pytest.mark.usefixtures("pip")
@pytest.mark.parametrize("ours", [True, False])
def test_a_wheel_says_whether_it_has_our_kernels(build: ModuleType, plan: Any, ours: bool) -> None:
    made = build.build(plan._replace(kernels=ours)).read_text()
    assert ("+edge.tr.1" in made) is ours
    assert ("EDGE_TR_SOURCES" in made) is ours


def test_the_key_changes_with_a_kernel(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = {preset: build.make_plan(preset).folder for preset in ("cpu", "stock")}
    changed = shutil.copytree(source.KERNELS, tmp_path / "kernels")
    with (changed / "simd.h").open("a") as file:
        file.write("// another line\n")
    monkeypatch.setattr(source, "KERNELS", changed)
    assert build.make_plan("cpu").folder != before["cpu"]
    assert build.make_plan("stock").folder == before["stock"]


@pytest.mark.skipif(not isa.is_x86(), reason="x86-64 sets")
def test_portable_leaves_the_sets_to_one_library_for_each(build: ModuleType) -> None:
    plan = build.make_plan("portable")
    assert "-DGGML_NATIVE=OFF" in plan.flags
    assert not [flag for flag in plan.flags if flag.startswith(("-DGGML_AVX", "-DGGML_SSE"))]
    assert build.CPU_VARIANTS.startswith("sse42;haswell;")
    assert plan.variants
    assert not build.make_plan("cpu").variants


def test_the_key_changes_with_flags_from_outside(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build.make_plan("cpu").folder
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_OPENMP=OFF")
    assert build.make_plan("cpu").folder != before


@posix
def test_a_missing_compiler_is_named(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(NativeBuildError, match=r"no CC compiler found \(cc, gcc, clang\).*apt"):
        build.make_plan("cpu")


def test_a_missing_tool_of_a_preset_is_named(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(NativeBuildError, match="cuda needs nvcc: install the CUDA toolkit"):
        build.make_plan("cuda")


@pytest.mark.skipif(sys.platform == "darwin", reason="metal can be built there")
def test_metal_is_for_macos(build: ModuleType) -> None:
    with pytest.raises(NativeBuildError, match="metal is for darwin"):
        build.make_plan("metal")


@pytest.mark.parametrize(
    ("arch", "flags"), [("90", ["-DCMAKE_CUDA_ARCHITECTURES=90"]), ("all", [])]
)
def test_cuda_architectures_can_be_given(build: ModuleType, arch: str, flags: list[str]) -> None:
    assert build._cuda_flags(arch) == flags


def test_cuda_architectures_come_from_the_gpus_seen(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: name)
    monkeypatch.setattr(build, "_output", lambda *command: "8.9\n8.9\n12.0\n")
    assert build._cuda_flags(None) == ["-DCMAKE_CUDA_ARCHITECTURES=120;89"]


def test_a_cached_wheel_is_used(build: ModuleType, plan: Any) -> None:
    plan.folder.mkdir(parents=True)
    wheel = plan.folder / "llama_cpp_python-0-py3-none-any.whl"
    wheel.touch()
    assert build.build(plan) == wheel


@posix
@pytest.mark.usefixtures("pip")
def test_a_build_leaves_the_wheel_and_its_log_alone(build: ModuleType, plan: Any) -> None:
    wheel = build.build(plan)
    assert sorted(path.name for path in plan.folder.iterdir()) == ["build.log", wheel.name]
    assert "cc -DGGML_NATIVE=OFF" in (plan.folder / "build.log").read_text()


@posix
@pytest.mark.usefixtures("pip")
def test_two_builds_at_once_give_one_wheel(build: ModuleType, plan: Any) -> None:
    wheels: list[Path] = []
    threads = [threading.Thread(target=lambda: wheels.append(build.build(plan))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wheels) == 2
    assert wheels[0] == wheels[1]
    assert "+edge.tr.1" in wheels[0].read_text()


@posix
@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("fatal error: No space left on device", "the disk is full"),
        ("ERROR: No matching distribution found", "PyPI could not be reached"),
        ("x.c:1: error: unknown type", "the build failed"),
    ],
)
def test_a_failed_build_says_why_and_keeps_its_log(
    build: ModuleType, plan: Any, fake_python: Callable[[str], None], said: str, cause: str
) -> None:
    fake_python(f"echo '{said}'; exit 1")
    with pytest.raises(NativeBuildError, match=cause) as caught:
        build.build(plan)
    log = Path(str(caught.value).rpartition("whole log: ")[2])
    assert said in log.read_text()
    assert [path for path in plan.folder.iterdir() if path.is_dir()] == []


def test_too_little_disk_is_said_before_building(
    build: ModuleType, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(Path.cwd())._replace(free=2**30)
    monkeypatch.setattr(build.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(NativeBuildError, match=r"1\.0 GiB free .* needs 3"):
        build.build(plan)


def test_an_unwritable_cache_directory_is_named(
    build: ModuleType, plan: Any, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    with pytest.raises(NativeBuildError, match="set EDGE_TR_CACHE_DIR"):
        build.build(plan)


@posix
def test_a_build_that_crashes_is_refused_and_forgotten(
    build: ModuleType, plan: Any, fake_python: Callable[[str], None]
) -> None:
    fake_python('[ "$2" = pip ] && exit 0; echo \'{"stage": "load"}\'; kill -ILL $$')
    plan.folder.mkdir(parents=True)
    wheel = plan.folder / "llama_cpp_python-0-py3-none-any.whl"
    wheel.touch()
    with pytest.raises(NativeBuildError, match="died with code -4 after stage 'load'"):
        build.install(plan, wheel)
    assert plan.wheel() is None


def test_one_version_of_llama_cpp_python_is_named_everywhere(build: ModuleType) -> None:
    assert f"llama-cpp-python=={build.pinned_version()}" == build_check.LLAMA_CPP_PYTHON


def test_the_wheel_holds_edge_tr_and_nothing_beside_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "*.gguf"),
    )
    subprocess.run(
        [sys.executable, "-c", BUILD_WHEEL, str(tmp_path)],
        cwd=source,
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"edge_tr", next(top for top in tops if top.endswith(".dist-info"))}
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "edge_tr").rglob("*.py")}
    assert wanted <= set(names)
