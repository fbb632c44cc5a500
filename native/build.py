"""Build llama-cpp-python for this machine, keep the wheel, install it and see that it decodes.

Needs python3 with pip, a C and C++ compiler, and nothing else: CMake and Ninja come from PyPI
where the system has none. ``python3 native/build.py --help`` lists the presets.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from edge_tr.errors import NativeBuildError  # noqa: E402
from edge_tr.files.paths import cache_dir  # noqa: E402
from edge_tr.machine import isa  # noqa: E402
from edge_tr.machine.build_child import WIDTHS  # noqa: E402
from native import vulkan  # noqa: E402
from native.source import PACKAGE, add_kernels, fetch, kernels_identity  # noqa: E402

PRESETS: dict[str, dict[str, Any]] = json.loads((ROOT / "native" / "presets.json").read_text())
MIN_FREE_BYTES = 3 * 2**30
_COMPILER_HELP = (
    "install one (Debian and Ubuntu: apt install build-essential; Fedora: dnf install gcc-c++ make;"
    " macOS: xcode-select --install)"
)


class Plan(NamedTuple):
    """One wheel to build: what, how, and where it will lie."""

    preset: str
    version: str
    flags: tuple[str, ...]
    folder: Path
    """``wheels/<key>`` in the cache directory; the key changes with all that changes the wheel."""
    kernels: bool = True
    """Whether our kernels are compiled in."""

    def wheel(self) -> Path | None:
        """The finished wheel, if there is one."""
        return next(self.folder.glob("*.whl"), None)


def pinned_version() -> str:
    """The version of llama-cpp-python that pyproject.toml asks for."""
    found = re.search(rf'"{PACKAGE}==([\w.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    if not found:
        raise NativeBuildError(f"pyproject.toml pins no {PACKAGE}==VERSION")
    return found[1]


def compilers() -> tuple[str, str]:
    """Commands of the C and the C++ compiler; ``CC`` and ``CXX`` override the search."""
    found = []
    for variable, names in (("CC", ("cc", "gcc", "clang")), ("CXX", ("c++", "g++", "clang++"))):
        wanted = os.environ.get(variable)
        command = shutil.which(wanted.split()[0]) if wanted else None
        command = wanted if command else next(filter(shutil.which, names), None)
        if not command:
            raise NativeBuildError(
                f"no {variable} compiler found ({', '.join(names)}); " + _COMPILER_HELP
            )
        found.append(command)
    return found[0], found[1]


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _accepts(compiler: str, name: str) -> bool:
    """Whether the compiler has an option for the instruction set."""
    option = name.replace("sse42", "sse4.2").replace("amx_", "amx-").replace("_", "")
    option = "avx512f" if option == "avx512" else option
    command = [*compiler.split(), f"-m{option}", "-x", "c", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _set_flags(sets: str, compiler: str | None) -> list[str]:
    if sets == "machine":
        found = isa.probe()
        usable = [name for name, status in found.items() if status.usable]
        return isa.cmake_flags(found, [n for n in usable if not compiler or _accepts(compiler, n)])
    if not isa.is_x86():
        return ["-DGGML_NATIVE=OFF"]
    return isa.cmake_flags({"sse42": isa.SetStatus("sse42", True, True)})


def _cuda_flags(arch: str | None) -> list[str]:
    """``--cuda-arch``, or the GPUs of this machine; none seen: llama.cpp's list of all."""
    if arch is None:
        seen: list[str] = []
        if shutil.which("nvidia-smi"):
            text = _output("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
            seen = sorted(set(re.findall(r"^(\d+\.\d+)$", text, re.MULTILINE)))
        arch = ";".join(capability.replace(".", "") for capability in seen) or "all"
    return [] if arch == "all" else [f"-DCMAKE_CUDA_ARCHITECTURES={arch}"]


def make_plan(preset: str, cuda_arch: str | None = None, published: bool = False) -> Plan:
    """Check what the preset needs and work out its flags and its place in the cache.

    ``published`` leaves our kernels out.
    """
    entry = PRESETS[preset]
    if sys.platform not in entry.get("systems", [sys.platform]):
        raise NativeBuildError(
            f"preset {preset} is for {', '.join(entry['systems'])}, this is {sys.platform}"
        )
    for tool, source in entry.get("tools", {}).items():
        if not shutil.which(tool):
            raise NativeBuildError(f"preset {preset} needs {tool}: install {source}")
    compiler, compiler_version = None, "msvc"
    if sys.platform != "win32":
        compiler, cxx = compilers()
        compiler_version = _output(*cxx.split(), "--version").partition("\n")[0]
    flags = [*_set_flags(entry["sets"], compiler), *entry["flags"]]
    if preset == "cuda":
        flags += _cuda_flags(cuda_arch)
        compiler_version += _output("nvcc", "--version")
    if preset == "vulkan":
        flags += vulkan.flags()
    flags += os.environ.get("CMAKE_ARGS", "").split()
    version = pinned_version()
    kernels = not published and bool(entry.get("kernels", True))
    parts = [version, flags, sysconfig.get_platform(), compiler_version]
    identity = json.dumps([*parts, kernels_identity()] if kernels else parts)
    key = f"{version}-{preset}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    return Plan(preset, version, tuple(flags), cache_dir() / "wheels" / key, kernels)


def build(plan: Plan) -> Path:
    """Build the wheel unless the cache holds it; two builds at once do each other no harm."""
    ready = plan.wheel()
    if ready:
        print(f"{PACKAGE} {plan.version} ({plan.preset}): using {ready}", flush=True)
        return ready
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="build-", dir=plan.folder))
    except OSError as error:
        raise NativeBuildError(
            f"cannot write the cache directory {plan.folder}: {error}; "
            "set EDGE_TR_CACHE_DIR to one that is writable"
        ) from error
    try:
        free = shutil.disk_usage(work).free
        if free < MIN_FREE_BYTES:
            raise NativeBuildError(
                f"{free / 2**30:.1f} GiB free in {plan.folder}, the build needs"
                f" {MIN_FREE_BYTES / 2**30:.0f}: free some, or set EDGE_TR_CACHE_DIR"
            )
        built = _run_pip(plan, work)
        final = plan.folder / built.name
        os.replace(built, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def job_count(preset: str) -> int:
    """Compiler processes at once: one a core, fewer where memory is short."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not hasattr(os, "sysconf"):
        return cores or 1
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return max(1, min(cores or 1, int(memory_gib / (4 if preset == "cuda" else 1))))


def _run_pip(plan: Plan, work: Path) -> Path:
    """``pip wheel`` from PyPI's source with the plan's flags; the log survives a failure."""
    log_path = plan.folder / f"{work.name}.log"
    jobs = str(job_count(plan.preset))
    environment = {
        **os.environ,
        "CMAKE_ARGS": " ".join(plan.flags),
        "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", jobs),
        "PYTHONUNBUFFERED": "1",
    }
    if sys.platform != "win32":  # there the path would grow too long for the compiler
        environment["TMPDIR"] = str(work)
    print(
        f"building {PACKAGE} {plan.version} ({plan.preset}: {PRESETS[plan.preset]['about']});\n"
        f"some minutes, once for this machine; log: {log_path}",
        flush=True,
    )
    start = time.monotonic()

    def run(command: list[str]) -> None:
        if run_logged(command, log_path, environment) != 0:
            raise NativeBuildError(_failure_text(plan, log_path))

    archive = work / "source"
    archive.mkdir()
    folder = fetch(plan.version, archive, run)
    if plan.kernels:
        add_kernels(folder, plan.version)
    pip = [sys.executable, "-m", "pip", "wheel", "-v", "--no-cache-dir", "--no-deps"]
    run([*pip, "--wheel-dir", str(work), str(folder)])
    built = next(work.glob("*.whl"), None)
    if built is None:
        raise NativeBuildError(_failure_text(plan, log_path))
    log_path.replace(plan.folder / "build.log")
    print(f"built in {time.monotonic() - start:.0f} s", flush=True)
    return built


def run_logged(
    command: list[str], log_path: Path, environment: dict[str, str] | None = None
) -> int:
    """Run a command, its output at the end of the log; a line is printed for every tenth of the
    compile steps. Its exit code."""
    with (
        log_path.open("a", encoding="utf-8", errors="replace") as log,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        _follow(process.stdout, log)
    return process.returncode


def _follow(lines: Any, log: Any) -> None:
    shown = 0
    for line in lines:
        log.write(line)
        step = re.match(r"\s*\[\s*(\d+)(?:/(\d+)|%)\]", line)
        if step:
            tenths = 10 * int(step[1]) // int(step[2] or 100)
            if tenths > shown:
                shown = tenths
                print(f"  {10 * tenths} %", flush=True)


def _failure_text(plan: Plan, log_path: Path) -> str:
    text = log_path.read_text("utf-8", errors="replace")
    causes = {
        "No space left on device": "the disk is full",
        "No module named pip": f"{sys.executable} has no pip",
        "No matching distribution": "PyPI could not be reached, or lacks this version",
        "Killed signal": "the system ran out of memory; set CMAKE_BUILD_PARALLEL_LEVEL=1",
    }
    cause = next((words for sign, words in causes.items() if sign in text), "the build failed")
    wrong = [line for line in text.splitlines() if re.search(r"\berror\b|FAILED", line)]
    excerpt = "\n  ".join(line[:300] for line in (wrong[:5] + text.splitlines()[-10:]))
    return (
        f"{PACKAGE} {plan.version} ({plan.preset}) was not built: {cause}.\n  {excerpt}\n"
        f"whole log: {log_path}"
    )


def install(plan: Plan, wheel: Path) -> None:
    """Install the wheel into this Python and decode once with it in a child process."""
    pip = [sys.executable, "-m", "pip", "install", "-qq"]
    for options in (["--force-reinstall", "--no-deps"], []):  # the second adds what it needs
        done = subprocess.run([*pip, *options, str(wheel)], check=False)
        if done.returncode != 0:
            raise NativeBuildError(f"pip could not install {wheel} (see above)")
    child = subprocess.run(
        [sys.executable, "-m", "edge_tr.machine.build_child"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    stages = [json.loads(line) for line in child.stdout.splitlines()]
    if child.returncode == 0 and stages and stages[-1]["stage"] == "done":
        print(f"decoded {', '.join(map(str, WIDTHS))} tokens at once: this build works here")
        return
    reached = stages[-1] if stages else {"stage": "none"}
    reason = reached.get("error") or f"it died with code {child.returncode}"
    wheel.unlink(missing_ok=True)
    raise NativeBuildError(
        f"the {plan.preset} build does not work on this machine: {reason} after stage "
        f"'{reached['stage']}'. It was removed from the cache. Try: make build PRESET=portable\n"
        f"{child.stderr[-1000:]}"
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=f"Build {PACKAGE} for this machine from PyPI's source, and keep the wheel.",
        epilog="presets: " + "; ".join(f"{name} = {p['about']}" for name, p in PRESETS.items()),
    )
    parser.add_argument("--preset", choices=PRESETS, default="cpu")
    parser.add_argument("--cuda-arch", help="'90', '86;89', 'all'; default: the GPUs seen here")
    parser.add_argument("--print", action="store_true", help="show the flags and build nothing")
    parser.add_argument("--wheel-dir", type=Path, help="copy the wheel here")
    parser.add_argument("--install", action="store_true", help="install it into this Python")
    options = parser.parse_args()
    try:
        plan = make_plan(options.preset, options.cuda_arch)
        if options.print:
            print(
                *plan.flags, f"wheel: {plan.wheel() or f'not built yet ({plan.folder})'}", sep="\n"
            )
            return 0
        wheel = build(plan)
        if options.wheel_dir:
            options.wheel_dir.mkdir(parents=True, exist_ok=True)
            print(shutil.copy2(wheel, options.wheel_dir))
        if options.install:
            install(plan, wheel)
    except NativeBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
