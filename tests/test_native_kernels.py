"""native/kernels against naive twins: tests/native/check.cpp, compiled for each instruction set."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from edge_tr.machine import isa

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs g++ or clang++")

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "native" / "kernels"
SOURCES = [ROOT / "tests/native/check.cpp"]
SOURCES += [KERNELS / f"{name}.cpp" for name in ("quantized", "dense", "attention")]
SEED = "1"
_AVX2 = "-mavx2 -mfma -mf16c"
_AVX512 = f"{_AVX2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni"
_CHECKED = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"


class Set(NamedTuple):
    """An instruction set to compile for."""

    flags: str
    says: str
    """What the program calls it."""
    needs: tuple[str, ...] = ()
    """Names in ``edge_tr.machine.isa``."""
    arm: bool = False


SETS = {
    "sanitized": Set(f"{_AVX2} {_CHECKED}", "avx2", ("avx2", "fma", "f16c")),
    "neon dotprod": Set("-march=armv8.2-a+dotprod -static", "neon dotprod", arm=True),
    "neon i8mm": Set("-march=armv8.2-a+dotprod+i8mm -static", "neon dotprod", arm=True),
    "avx512 vnni": Set(_AVX512, "avx512vnni", ("avx512", "avx512_vnni")),
    "avx2 avxvnni": Set(f"{_AVX2} -mavxvnni", "avx2 avxvnni", ("avx2", "fma", "f16c", "avx_vnni")),
    "avx2": Set(_AVX2, "avx2", ("avx2", "fma", "f16c")),
    "sse4.2": Set("-msse4.2", "no kernels", ("sse42",)),
}
"""Those that take longest come first."""


def compiler(entry: Set) -> str:
    """The command that compiles for this machine, or for 64-bit ARM."""
    cross = entry.arm and not isa.is_arm()
    wanted = ["aarch64-linux-gnu-g++"] if cross else [os.environ.get("CXX", "c++"), "g++"]
    found = next(filter(shutil.which, wanted), None)
    if found is None:
        pytest.skip(f"there is no {wanted[0]}")
    return found


def runner(entry: Set) -> list[str]:
    """What a program for the set is run with."""
    if not entry.arm or isa.is_arm():
        return []
    if not shutil.which("qemu-aarch64"):
        pytest.skip("there is no qemu-aarch64")
    return ["qemu-aarch64"]


def skip_where_it_cannot_run(entry: Set) -> None:
    if not entry.arm and not isa.is_x86():
        pytest.skip("this is no x86-64 machine")
    usable = {name for name, status in isa.probe().items() if status.usable}
    lacking = set(entry.needs) - usable
    if lacking:
        pytest.skip(f"this machine does not run {', '.join(sorted(lacking))}")


def compile_for(entry: Set, target: Path) -> Path:
    command = [compiler(entry), "-std=c++17", "-O1", "-ffp-contract=off", f"-I{KERNELS}"]
    command += [*entry.flags.split(), *map(str, SOURCES), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find -lasan" in done.stderr or "cannot find -lubsan" in done.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert done.returncode == 0, done.stderr[-3000:]
    return target


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """``program(name)``: the check compiled for a set; all are compiled at once, two at a time."""
    folder = tmp_path_factory.mktemp("kernels")

    def make(name: str) -> Path:
        skip_where_it_cannot_run(SETS[name])
        runner(SETS[name])
        return compile_for(SETS[name], folder / name.replace(" ", "-"))

    with ThreadPoolExecutor(max_workers=2) as pool:
        made: dict[str, Future[Path]] = {name: pool.submit(make, name) for name in SETS}
        yield lambda name: made[name].result()
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", list(SETS)[::-1])
def test_the_kernels_agree_with_naive_twins(program: Callable[[str], Path], name: str) -> None:
    """Also: no width, thread, padding or hidden cell changes a bit, and a NaN stays local."""
    command = [*runner(SETS[name]), str(program(name)), SEED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    says, _, counts = done.stdout.rpartition("\n")[0].rpartition("\n")[2].partition(": ")
    assert says == SETS[name].says
    assert int(counts.split()[0]) > (60 if says == "no kernels" else 50_000)
