"""A CUDA build on a machine without an NVIDIA GPU: it loads or says why not, and names no device.

``native/build.py --preset cuda`` must have been run before with the nvcc on ``PATH``. Where there
is a driver these tests skip: those marked ``gpu`` are for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_tr.files.paths import cache_dir
from native import beside
from native.build import Plan, compilers, pinned_version

pytestmark = pytest.mark.slow

Environment = dict[str, str]

_SESSION = """
import sys
from edge_tr import ContextConfig, DraftConfig, Session

context = ContextConfig(n_ctx=256, n_threads=1, n_threads_batch=1)
draft = DraftConfig(speculative="off")
with Session(sys.argv[1], context=context, draft=draft, n_gpu_layers=-1) as session:
    text = "".join(session.stream(session.prompt_tokens("the people"), max_tokens=10))
    print(*session.notices, sep="\\n")
    print(len(text) > 0)
"""


@pytest.fixture(scope="module")
def toolkit() -> Path:
    """The folder of the CUDA toolkit."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    said = subprocess.run(
        [nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True
    )
    found = re.search(r"^#\$ TOP=(.+)$", said.stderr, re.MULTILINE)
    assert found, said.stderr
    return Path(found[1])


@pytest.fixture(scope="module")
def without_driver(toolkit: Path) -> Environment:
    """Environment of the build and its toolkit's libraries."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has NVIDIA's driver")
    version = pinned_version()
    wheel = next((cache_dir() / "wheels").glob(f"{version}-cuda-*/*.whl"), None)
    if wheel is None:
        pytest.skip("no CUDA build was kept: native/build.py --preset cuda")
    folder = beside.unpack(Plan("cuda", version, (), wheel.parent))
    libraries = os.pathsep.join([str(toolkit / "lib64"), os.environ.get("LD_LIBRARY_PATH", "")])
    return beside.environment_of(folder) | {"LD_LIBRARY_PATH": libraries}


@pytest.fixture(scope="module")
def without_device(
    without_driver: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """The same with a driver of ours in which every call says that there is no device."""
    folder = tmp_path_factory.mktemp("driver")
    lib = Path(without_driver["PYTHONPATH"].split(os.pathsep)[0]) / "llama_cpp" / "lib"
    cuda = next(lib.glob("libggml-cuda.so*"))
    asked = subprocess.check_output(["nm", "-D", "--undefined-only", str(cuda)], text=True)
    names = sorted(set(re.findall(r"U (cu[A-Z]\w+)$", asked, re.MULTILINE)))
    source = "".join(f"int {name}(void) {{ return 100; }}\n" for name in ["cuInit", *names])
    flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-"]
    command = [*compilers()[0].split(), *flags, "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, input=source, text=True, check=True)
    libraries = os.pathsep.join([str(folder), without_driver["LD_LIBRARY_PATH"]])
    return without_driver | {"LD_LIBRARY_PATH": libraries}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    def call(environment: Environment, *command: str) -> subprocess.CompletedProcess[str]:
        environment = environment | {"EDGE_TR_CACHE_DIR": str(tmp_path)}
        return subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
        )

    return call


def doctor(run: Callable[..., Any], environment: Environment) -> dict[str, Any]:
    found = run(environment, "-m", "edge_tr.cli", "doctor", "--json")
    report: dict[str, Any] = json.loads(found.stdout)
    return report


def test_without_a_driver_the_doctor_says_that_it_is_missing(
    run: Callable[..., Any], without_driver: Environment
) -> None:
    problem = doctor(run, without_driver)["problems"][0]
    assert "libcuda.so.1" in problem["what"]
    assert "The NVIDIA driver is missing" in problem["do"]


def test_without_a_driver_a_model_is_not_opened_with_the_same_words(
    run: Callable[..., Any], without_driver: Environment, tiny_model: Callable[[str], Path]
) -> None:
    done = run(without_driver, "-c", _SESSION, str(tiny_model("llama")))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("edge_tr.errors.NativeBuildError: llama.cpp cannot be loaded: ")
    assert "The NVIDIA driver is missing" in last


def test_without_a_device_the_doctor_says_that_none_is_seen(
    run: Callable[..., Any], without_device: Environment
) -> None:
    found = doctor(run, without_device)
    assert "CUDA" in found["build"]["backends"]
    assert found["decode"]["works"]
    problem = next(p for p in found["problems"] if "CUDA" in p["what"])
    assert f"sees no GPU ({found['build']['gpu_error']}), so" in problem["what"]
    assert "driver" in problem["do"]


def test_without_a_device_a_model_runs_on_the_cpu_and_says_so(
    run: Callable[..., Any], without_device: Environment, tiny_model: Callable[[str], Path]
) -> None:
    done = run(without_device, "-c", _SESSION, str(tiny_model("llama")))
    notice, has_text = done.stdout.splitlines()
    assert notice.startswith(
        "this build's CUDA back end sees no GPU, so everything runs on the CPU"
    )
    assert has_text == "True"
