"""Whether the installed llama.cpp build decodes on this machine, found out without dying.

``check_build`` runs ``edge_tr.machine.build_child`` in a process of its own and says how
far it came, without llama.cpp's fused Vulkan kernels where a driver dies of them;
``require_working_build`` does so once per build and machine and raises where it fails.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import edge_tr
from edge_tr.errors import NativeBuildError
from edge_tr.files.paths import cache_dir
from edge_tr.machine import isa

LLAMA_CPP_PYTHON = "llama-cpp-python==0.3.36"
_WINDOWS_DEATHS = {0xC000001D: "SIGILL", 0xC0000005: "SIGSEGV", 0xC0000409: "SIGABRT"}
_DEATHS = {
    "SIGILL": "an illegal instruction",
    "SIGSEGV": "a memory fault",
    "SIGABRT": "an assertion of llama.cpp",
    "SIGKILL": "being killed, most often for lack of memory",
}
NO_FUSION = "GGML_VK_DISABLE_FUSION"
"""Variable that has llama.cpp's Vulkan back end run each operation as a kernel of its own."""
_COMMAND = (sys.executable, "-m", "edge_tr.machine.build_child")
_CHOOSE_DEVICES = ("GGML_VK_", "CUDA_VISIBLE", "VK_ICD_", "VK_DRIVER_")
"""Beginnings of the variables that change which devices there are, or how they compute."""


class BuildCheck(NamedTuple):
    """How far a child process came in loading llama.cpp and decoding."""

    stages: dict[str, dict[str, Any]]
    """Facts of each stage reached: ``start``, ``import``, ``load``, ``decode``, ``done``."""
    error: str
    """What went wrong, in words; empty: nothing."""
    death: str
    """Name of the signal that ended it; empty: it ended by itself."""
    fused_error: str = ""
    """How it died at first, where it works with ``NO_FUSION`` set; empty: that is not needed."""

    @property
    def works(self) -> bool:
        """Every stage was reached."""
        return "done" in self.stages

    @property
    def summary(self) -> str:
        """In a few words."""
        if not self.works:
            return self.error
        return f"works with {NO_FUSION}=1" if self.fused_error else "works"

    @property
    def build(self) -> dict[str, Any]:
        """Version, back ends, devices and features of the build; empty: it cannot be imported."""
        return self.stages.get("import", {})

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """GPUs that the model's layers were placed on, as far as it came."""
        layers = self.stages.get("load", {}).get("layers", {})
        return [device for device in self.build.get("devices", []) if _is_gpu(device, layers)]


def check_build(
    model: Path | None = None, *, n_gpu_layers: int = -1, timeout_s: float = 300.0
) -> BuildCheck:
    """Load llama.cpp and decode in a child process, and again where a Vulkan driver dies of it.

    Parameters
    ----------
    model
        Model to load; None = one of zeros that holds every common weight type, written for this.
    n_gpu_layers
        Layers to place on the GPU; -1 = all.
    timeout_s
        Seconds after which the child is ended and counted as hung.

    Returns
    -------
    BuildCheck
        Never raises for what is wrong with the build.
    """
    command = list(_COMMAND)
    if model is not None:
        command += [str(model.resolve()), str(n_gpu_layers)]
    found = _run(command, dict(os.environ), timeout_s)
    is_vulkan = any(device["name"].startswith("Vulkan") for device in found.gpus)
    if not found.death or not is_vulkan or NO_FUSION in os.environ:
        return found
    again = _run(command, os.environ | {NO_FUSION: "1"}, timeout_s)
    if again.works:
        return again._replace(fused_error=found.error)
    return found._replace(error=f"{found.error}; with {NO_FUSION}=1 too")


def _run(command: list[str], environment: dict[str, str], timeout_s: float) -> BuildCheck:
    root = Path(edge_tr.__file__).resolve().parent.parent
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as expired:
        stages = _stages(expired.stdout or b"")
        return BuildCheck(stages, f"no answer within {timeout_s:.0f} s", "")
    stages = _stages(done.stdout)
    failed = stages.pop("failed", None)
    if failed:
        return BuildCheck(stages, failed["error"], "")
    found = BuildCheck(stages, "", _death(done.returncode))
    if "done" in stages:
        return found._replace(death="")
    said = done.stderr.decode(errors="replace").strip().splitlines()
    how = _DEATHS.get(found.death, found.death or f"exit code {done.returncode}")
    where = "".join(f" on {device_text(device)}" for device in found.gpus)
    error = f"{_next_stage(stages)}{where} ended with {how}"
    return found._replace(error=f"{error}: {said[-1]}" if said else error)


def device_text(device: dict[str, Any]) -> str:
    """A device's name, what it is, and its driver where the back end names one."""
    driver = f", driver {device['driver']}" if device.get("driver") else ""
    return f"{device['name']} ({device['description']}{driver})"


def _is_gpu(device: dict[str, Any], layers: dict[str, int]) -> bool:
    return "gpu" in device["type"] and device["name"] in layers


def require_working_build() -> None:
    """Raise if a decode would crash; remembered per build and machine, so it costs once.

    Where only fused Vulkan kernels would, they are switched off for this process.

    Raises
    ------
    NativeBuildError
        The build cannot be loaded, or dies while decoding; the text says what to do.
    """
    stamp = cache_dir() / "checked-builds" / _fingerprint()
    if stamp.exists():
        _switch_off(stamp.read_text("utf-8"))
        return
    found = check_build()
    if not found.works:
        raise NativeBuildError(f"llama.cpp does not work here: {found.error}. {advice(found)}")
    needed = NO_FUSION if found.fused_error else ""
    _switch_off(needed)
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(needed, "utf-8")
    except OSError:  # a read-only cache: check again next time
        return


def _switch_off(variable: str) -> None:
    """What the variable of llama.cpp switches off, for this process; an empty one is none."""
    if variable:
        os.environ[variable] = "1"


def advice(found: BuildCheck) -> str:
    """What a user can do about a build that does not work, or not with fused kernels."""
    if found.fused_error:
        return (
            f"Update the driver. Until then set {NO_FUSION}=1 for programs that use edge_tr as a "
            "library; its commands do so by themselves."
        )
    if "libcuda.so.1" in found.error:
        return f"The NVIDIA driver is missing: install it, or run: {rebuild_command()}"
    if "cannot open shared object" in found.error or "Library not loaded" in found.error:
        return (
            "A library that the build was linked with is missing; for a CUDA build put the "
            "toolkit's lib folder on LD_LIBRARY_PATH."
        )
    if not found.build or found.death == "SIGILL":
        return f"Build it for this machine: {rebuild_command()}"
    return "Run edge-tr doctor, and update the driver if a GPU is in use."


def rebuild_command(preset: str = "cpu") -> str:
    """The command that builds and installs llama.cpp for this machine."""
    if (Path(edge_tr.__file__).resolve().parent.parent / "native" / "build.py").exists():
        return f"make build PRESET={preset}"
    flags = [*isa.cmake_flags(isa.probe()), "-DGGML_RPC=ON"]
    if preset in ("cuda", "metal", "vulkan"):
        flags.append(f"-DGGML_{preset.upper()}=ON")
    install = f"{sys.executable} -m pip install --force-reinstall --no-deps --no-cache-dir"
    assign = f'CMAKE_ARGS="{" ".join(flags)}"'
    prefix = f"$env:{assign};" if sys.platform == "win32" else assign
    return f"{prefix} {install} {LLAMA_CPP_PYTHON}"


def _stages(output: bytes) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for line in output.splitlines():
        stage = child_stage(line)
        if stage is not None:
            found[stage[0]] = stage[1]
    return found


def child_stage(line: bytes) -> tuple[str, dict[str, Any]] | None:
    """Name and facts of the stage that a child process reached; None: the line tells of none."""
    text = line.decode(errors="replace").strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    facts = json.loads(text)
    return facts.pop("stage"), facts


def _next_stage(stages: dict[str, dict[str, Any]]) -> str:
    if "load" in stages:
        width = stages.get("decode", {}).get("n_tokens")
        return f"decoding after a batch of {width}" if width else "the first decode"
    if "import" in stages:
        return "loading a model"
    return "importing llama_cpp" if "start" in stages else "the child process"


def _death(code: int) -> str:
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return _WINDOWS_DEATHS.get(code, "")


def _fingerprint() -> str:
    """Of the build's files and of the processor."""
    spec = importlib.util.find_spec("llama_cpp")
    folder = Path(spec.origin).parent / "lib" if spec and spec.origin else None
    files = sorted(folder.iterdir()) if folder and folder.is_dir() else []
    parts = [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    parts += [platform.machine(), platform.node(), *sorted(isa.advertised_flags())]
    chosen = sorted(item for item in os.environ.items() if item[0].startswith(_CHOOSE_DEVICES))
    parts += map("=".join, chosen)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
