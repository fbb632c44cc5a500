"""The doctor, and the check of a build in a child process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

import edge_tr
from edge_tr.doctor import findings as doctor
from edge_tr.doctor import text as text_of
from edge_tr.errors import NativeBuildError
from edge_tr.llama import kernels
from edge_tr.machine import build_check, child_process, facts, isa
from edge_tr.machine.build_check import BuildCheck
from edge_tr.machine.build_child import write_zero_model
from edge_tr.machine.isa import SetStatus

DIE = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
NO_DRIVER = "raise RuntimeError('libcuda.so.1: cannot open shared object file')\n"
NO_CUDA = "raise OSError('libcudart.so.13: cannot open shared object file')\n"
CPU = {"name": "CPU", "description": "cpu", "type": "cpu", "free_bytes": 1, "total_bytes": 1}
GPU = {**CPU, "name": "CUDA0", "type": "gpu"}
NVIDIA = {"name": "NVIDIA RTX 4090", "vendor": "NVIDIA"}
INTEL = {"name": "Intel GPU", "vendor": "Intel"}
APPLE = {"name": "Apple GPU", "vendor": "Apple"}


@pytest.fixture
def fake_llama_cpp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """``fake_llama_cpp(source)``: the llama_cpp that child processes import."""

    def write(source: str) -> None:
        (tmp_path / "llama_cpp.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    return write


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, str]]]:
    """``findings(...)``: the problems reported for a made-up machine and build."""

    def problems(
        *,
        backends: tuple[str, ...] = ("CPU",),
        devices: tuple[dict[str, Any], ...] = (CPU,),
        features: str = "AVX2 = 1",
        gpus: tuple[dict[str, str], ...] = (),
        error: str = "",
        death: str = "",
        sets: tuple[SetStatus, ...] = (SetStatus("avx2", True, True),),
        quota: float | None = None,
        layers: dict[str, int] | None = None,
        gpu_error: str = "",
    ) -> list[dict[str, str]]:
        build = {
            "folder": "lib",
            "system_info": f"CPU : {features} | ",
            "backends": list(backends),
            "devices": list(devices),
            "gpu_error": gpu_error,
        }
        stages: dict[str, dict[str, Any]] = {"import": build, "load": {"layers": layers or {}}}
        stages |= {} if error else {"done": {}}
        monkeypatch.setattr(doctor, "check_build", lambda: BuildCheck(stages, error, death))
        monkeypatch.setattr(isa, "probe", lambda: {status.name: status for status in sets})
        monkeypatch.setattr(facts, "gpus", lambda: list(gpus))
        monkeypatch.setattr(facts, "cpu_quota", lambda: quota)
        found = doctor.report()
        text = text_of.render(found)
        assert all(p["what"] in text and p["do"] in text for p in found["problems"])
        return list(found["problems"])

    return problems


def test_the_zero_model_is_a_gguf_of_every_common_type(tmp_path: Path) -> None:
    write_zero_model(tmp_path / "zero.gguf")
    tensors = gguf.GGUFReader(tmp_path / "zero.gguf").tensors
    types = {tensor.tensor_type.name for tensor in tensors}
    assert types >= {"F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}


def test_this_build_decodes() -> None:
    check = build_check.check_build()
    assert (check.works, check.error, check.death) == (True, "", "")
    assert "CPU" in check.build["backends"]


def test_the_build_tells_of_its_kernels() -> None:
    own = kernels.info()
    expected = {**own, "active": kernels.active()} if own else None
    assert build_check.check_build().build["kernels"] == expected


@pytest.mark.parametrize(
    ("isa", "active", "variable", "words"),
    [
        ("avx2", 7, "", "quantised weights, F16, BF16, F32, flash attention (avx2)"),
        ("avx2", 0, "0", "none (avx2); EDGE_TR_KERNELS switches off quantised weights, F16"),
        ("avx512vnni", 6, "", "own for quantised weights, with AMX (EDGE_TR_KERNELS=7 for ours)"),
        ("", 0, "", "llama.cpp's own: ours need AVX2"),
    ],
)
def test_kernels_that_do_not_run_have_a_reason(
    monkeypatch: pytest.MonkeyPatch, isa: str, active: int, variable: str, words: str
) -> None:
    monkeypatch.setenv("EDGE_TR_KERNELS", variable)
    assert words in text_of.kernels_text({"kernels": {"isa": isa, "active": active}})


def test_a_build_of_others_has_no_kernels_of_ours() -> None:
    assert "made without ours" in text_of.kernels_text({"kernels": None})


def test_a_build_that_dies_is_survived(fake_llama_cpp: Callable[[str], None]) -> None:
    fake_llama_cpp(DIE)
    check = build_check.check_build()
    assert (check.works, check.death) == (False, "SIGILL")
    assert check.error == "importing llama_cpp ended with an illegal instruction"


def test_a_hung_build_is_ended(fake_llama_cpp: Callable[[str], None]) -> None:
    fake_llama_cpp("import threading\nthreading.Event().wait()\n")
    assert build_check.check_build(timeout_s=0.5).error == "no answer within 0 s"


def test_a_missing_library_gets_its_own_advice(fake_llama_cpp: Callable[[str], None]) -> None:
    fake_llama_cpp(NO_CUDA)
    check = build_check.check_build()
    assert "libcudart.so.13" in check.error
    assert "LD_LIBRARY_PATH" in build_check.advice(check)


def test_a_build_that_cannot_be_loaded_is_an_error_of_ours(
    fake_llama_cpp: Callable[[str], None],
) -> None:
    fake_llama_cpp(NO_DRIVER)
    command = [sys.executable, "-c", "import edge_tr\nedge_tr.Session"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("edge_tr.errors.NativeBuildError: llama.cpp cannot be loaded: ")
    assert "The NVIDIA driver is missing: install it, or run: make build PRESET=cpu" in last


def test_the_doctor_runs_where_llama_cpp_cannot_be_loaded(
    fake_llama_cpp: Callable[[str], None],
) -> None:
    fake_llama_cpp(NO_DRIVER)
    command = [sys.executable, "-m", "edge_tr.cli", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    problem = json.loads(done.stdout)["problems"][0]
    assert "libcuda.so.1" in problem["what"]
    assert "The NVIDIA driver is missing" in problem["do"]


def test_a_missing_driver_gets_its_own_advice() -> None:
    check = BuildCheck({}, "OSError: libcuda.so.1: cannot open shared object file", "")
    assert "driver is missing" in build_check.advice(check)


def test_a_working_build_is_checked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[int] = []

    def check() -> BuildCheck:
        calls.append(1)
        return BuildCheck({"done": {}}, "", "")

    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build_check, "check_build", check)
    build_check.require_working_build()
    build_check.require_working_build()
    assert len(calls) == 1


def test_a_build_that_would_crash_is_refused(fake_llama_cpp: Callable[[str], None]) -> None:
    fake_llama_cpp(DIE)
    with pytest.raises(NativeBuildError, match=r"illegal instruction.*make build PRESET=cpu"):
        build_check.require_working_build()


def test_outside_a_clone_the_advice_is_a_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_tr, "__file__", "/nowhere/edge_tr/__init__.py")
    command = build_check.rebuild_command("cuda")
    assert "-DGGML_CUDA=ON" in command
    assert command.endswith(f"--no-cache-dir {build_check.LLAMA_CPP_PYTHON}")


def test_a_sound_machine_has_no_problems(findings: Callable[..., list[dict[str, str]]]) -> None:
    assert findings() == []


@pytest.mark.parametrize(
    ("facts", "words", "command"),
    [
        ({"gpus": (NVIDIA,)}, "RTX 4090.* no CUDA back end", "PRESET=cuda"),
        ({"gpus": (INTEL, NVIDIA)}, "RTX 4090.* no CUDA back end", "PRESET=cuda"),
        ({"gpus": (INTEL,)}, "Intel GPU.* no Vulkan back end", "PRESET=vulkan"),
        ({"gpus": (APPLE,)}, "Apple GPU.* no Metal back end", "PRESET=metal"),
        ({"backends": ("MTL", "CPU")}, "Metal back end but sees no GPU", "the Mac itself"),
        (
            {"gpus": (NVIDIA,), "backends": ("CUDA", "CPU")},
            "CUDA back end but sees no GPU, so",
            "driver",
        ),
        (
            {"backends": ("CUDA", "CPU"), "gpu_error": "driver too old"},
            r"CUDA back end but sees no GPU \(driver too old\), so",
            "driver",
        ),
        (
            {"sets": (SetStatus("amx_int8", True, False),)},
            "advertises amx_int8 and traps",
            "PRESET=cpu",
        ),
        (
            {"sets": (SetStatus("amx_int8", True, False),), "features": "AMX_INT8 = 1"},
            "build contains amx_int8, which this machine cannot execute",
            "PRESET=cpu",
        ),
        (
            {"sets": (SetStatus("avx512", True, True),)},
            "build leaves out avx512",
            "PRESET=cpu",
        ),
        ({"quota": 0.5}, "may use 0.5 cores", "--threads 1"),
        (
            {"error": "the first decode ended with an illegal instruction", "death": "SIGILL"},
            "does not work here: the first decode ended",
            "PRESET=cpu",
        ),
    ],
)
def test_a_problem_is_put_in_words_and_has_a_remedy(
    findings: Callable[..., list[dict[str, str]]], facts: dict[str, Any], words: str, command: str
) -> None:
    first = findings(**facts)[0]
    assert re.search(words, first["what"])
    assert command in first["do"]


def test_a_gpu_that_is_used_is_no_problem(findings: Callable[..., list[dict[str, str]]]) -> None:
    assert findings(gpus=(NVIDIA,), backends=("CUDA", "CPU"), devices=(GPU, CPU)) == []


def test_layers_of_a_model_are_counted(tiny_model: Callable[[str], Path]) -> None:
    model = doctor.report(tiny_model("llama"))["model"]
    assert sum(model["layers"].values()) == 3  # two layers and the output


def test_a_model_that_does_not_load_is_a_problem(tmp_path: Path) -> None:
    found = doctor.report(tmp_path / "missing.gguf")
    assert "missing.gguf does not exist" in found["problems"][0]["what"]


def test_layers_left_on_the_cpu_are_reported(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: dict[str, dict[str, Any]] = {
        "import": {"devices": [GPU, CPU]},
        "load": {"layers": {"CUDA0": 3, "CPU": 2}, "buffers_bytes": {}},
        "done": {},
    }
    monkeypatch.setattr(doctor, "check_build", lambda *a, **k: BuildCheck(stages, "", ""))
    system = {"system": {"memory_available_bytes": 0}}
    _, problems = doctor._place(tiny_model("llama"), 3, system)
    assert problems[0]["what"] == "2 of 5 layers of the model are placed on the CPU."


def test_layers_of_the_check_left_on_the_cpu_are_reported(
    findings: Callable[..., list[dict[str, str]]],
) -> None:
    (problem,) = findings(
        gpus=(NVIDIA,),
        backends=("CUDA", "CPU"),
        devices=(GPU, CPU),
        layers={"CUDA0": 1, "CPU": 9},
    )
    assert problem["what"].startswith("9 of 10 layers of the small model of this check")


def test_a_metal_gpu_that_is_used_is_no_problem(
    findings: Callable[..., list[dict[str, str]]],
) -> None:
    device = {**GPU, "name": "MTL0"}
    backends = ("MTL", "BLAS", "CPU")
    layers = {"MTL0": 10}
    assert findings(gpus=(APPLE,), backends=backends, devices=(device, CPU), layers=layers) == []


def test_why_a_set_was_not_tried_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    status = SetStatus("avx2", True, None, "executable memory is refused")
    monkeypatch.setattr(isa, "probe", lambda: {"avx2": status})
    assert "executable memory is refused" in text_of.render(doctor.report())


def test_the_report_is_json() -> None:
    found = doctor.report()
    assert json.loads(json.dumps(found)) == found


VULKAN = """
import json, os, sys
def emit(stage, **facts): print(json.dumps({"stage": stage, **facts}), flush=True)
device = {"name": "Vulkan0", "description": "llvmpipe (LLVM 15)", "driver": "llvmpipe",
          "type": "gpu"}
emit("import", backends=["Vulkan"], devices=[device])
emit("load", layers={"Vulkan0": 10})
if os.environ.get("GGML_VK_DISABLE_FUSION", "") not in WORKS_WITH:
    os.kill(os.getpid(), 11)
emit("done")
"""
"""A child process whose first decode dies unless the variable has one of some values."""


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """``child(works_with)``: what runs in place of the child process."""
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(build_check.NO_FUSION, "")
    monkeypatch.delenv(build_check.NO_FUSION)

    def write(works_with: str) -> None:
        script = tmp_path / "child.py"
        script.write_text(VULKAN.replace("WORKS_WITH", works_with))
        monkeypatch.setattr(child_process, "command", lambda *_: [sys.executable, str(script)])

    return write


DIED = "the first decode on Vulkan0 (llvmpipe (LLVM 15), driver llvmpipe) ended with a memory fault"


def test_a_driver_that_dies_of_fused_kernels_works_without(child: Callable[[str], None]) -> None:
    child("['1']")
    check = build_check.check_build()
    assert (check.works, check.fused_error) == (True, DIED)
    assert check.summary == "works with GGML_VK_DISABLE_FUSION=1"
    assert "set GGML_VK_DISABLE_FUSION=1" in build_check.advice(check)


def test_a_driver_that_dies_all_the_same_is_named(child: Callable[[str], None]) -> None:
    child("[]")
    check = build_check.check_build()
    assert (check.works, check.death) == (False, "SIGSEGV")
    assert check.error == f"{DIED}; with GGML_VK_DISABLE_FUSION=1 too"


def test_fused_kernels_stay_on_where_they_work(child: Callable[[str], None]) -> None:
    child("['']")
    build_check.require_working_build()
    assert build_check.NO_FUSION not in os.environ


def test_fused_kernels_are_switched_off_for_this_process(child: Callable[[str], None]) -> None:
    child("['1']")
    build_check.require_working_build()
    assert os.environ.pop(build_check.NO_FUSION) == "1"
    child("[]")  # it is not asked again
    build_check.require_working_build()
    assert os.environ[build_check.NO_FUSION] == "1"


def test_a_driver_that_dies_is_a_problem_with_a_remedy(
    child: Callable[[str], None],
) -> None:
    child("['1']")
    check = build_check.check_build()
    (problem,) = doctor._build_problems(check, [])
    assert problem["what"].startswith(
        "llama.cpp's fused Vulkan kernels do not work here: the first"
    )
    assert problem["do"].startswith("Update the driver.")
