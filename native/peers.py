"""Build llama.cpp's own speculative programs, the peers that ``edge-tr bench`` measures.

The source is the archive of llama-cpp-python that the library is built from, as it is published:
the peers have llama.cpp's own kernels and the flags of the same preset (``native/build.py``). Built
once per machine; the programs lie in ``peers/<key>`` of the cache directory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from edge_tr.errors import NativeBuildError  # noqa: E402
from edge_tr.files.paths import cache_dir  # noqa: E402
from native.build import PRESETS, Plan, job_count, make_plan  # noqa: E402
from native.logged import run_logged  # noqa: E402
from native.source import fetch  # noqa: E402

PROGRAMS = ("llama-server", "llama-lookahead", "llama-lookup")
ABOUT = "peers.json"
_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def folder_of(plan: Plan) -> Path:
    """Where the programs of a plan lie; the key is that of its wheel."""
    return cache_dir() / "peers" / plan.folder.name


def build(plan: Plan) -> Path:
    """Build the programs unless the cache holds them.

    Returns
    -------
    Their folder.

    Raises
    ------
    NativeBuildError : the source could not be fetched, or it does not compile.
    """
    folder = folder_of(plan)
    if (folder / ABOUT).exists():
        print(f"peers of llama.cpp ({plan.version}, {plan.preset}): using {folder}", flush=True)
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=folder))
    log = folder / f"{work.name}.log"
    started = time.monotonic()
    print(f"building {', '.join(PROGRAMS)}; some minutes, once for this machine; log: {log}")
    try:
        source = fetch(plan.version, work, lambda command: _run(command, log))
        built = _compile(plan, source / "vendor" / "llama.cpp", work, log)
        for program in PROGRAMS:
            os.replace(built / _executable(program), folder / _executable(program))
        about = {"version": plan.version, "preset": plan.preset, "flags": plan.flags}
        (folder / ABOUT).write_text(json.dumps(about) + "\n", encoding="utf-8")
        log.replace(folder / "build.log")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"built in {time.monotonic() - started:.0f} s: {folder}", flush=True)
    return folder


def _executable(program: str) -> str:
    return program + (".exe" if sys.platform == "win32" else "")


def _compile(plan: Plan, source: Path, work: Path, log: Path) -> Path:
    """Configure and compile; the folder that holds the programs."""
    environment, target = dict(os.environ), work / "build"
    if not shutil.which("cmake"):
        tools = work / "tools"
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--target", str(tools)]
        _run([*pip, "cmake", "ninja"], log)
        environment["PATH"] = os.pathsep.join((str(tools / "bin"), environment["PATH"]))
        environment["PYTHONPATH"] = str(tools)
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=environment["PATH"]) else []
    flags = [*_FLAGS, *plan.flags]
    _run(["cmake", "-S", str(source), "-B", str(target), *generator, *flags], log, environment)
    level = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(job_count(plan.preset)))
    command = ["cmake", "--build", str(target), "--config", "Release", "--parallel", level]
    _run([*command, "--target", *PROGRAMS], log, environment)
    found = next(target.rglob(_executable(PROGRAMS[0])), None)
    if found is None:
        raise NativeBuildError(f"the build made no {PROGRAMS[0]}; see {log}")
    return found.parent


def _run(command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
    if run_logged(command, log, environment) != 0:
        tail = "\n  ".join(log.read_text("utf-8", errors="replace").splitlines()[-10:])
        raise NativeBuildError(f"{command[0]} failed.\n  {tail}\nwhole log: {log}")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="cpu")
    parser.add_argument("--cuda-arch", help="as for native/build.py")
    options = parser.parse_args()
    try:
        build(make_plan(options.preset, options.cuda_arch, published=True))
    except NativeBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
