"""What this machine has, what the llama.cpp build can do with it, and what to do about the gap.

``report`` gathers it, ``render`` prints it for people. Nothing here can die of a broken
build: llama.cpp runs in a child process only.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_tr import __version__
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.errors import ModelFileError, ModelLoadError
from edge_tr.files.paths import cache_dir, data_dir
from edge_tr.gguf_file.info import inspect
from edge_tr.machine import facts, isa
from edge_tr.machine.build_check import (
    BuildCheck,
    advice,
    check_build,
    rebuild_command,
)
from edge_tr.needs import memory_needs, require_fit, told

FEATURES = {  # instruction set: the feature that llama.cpp reports when it was compiled in
    **{name: name.upper() for name in ("avx", "avx2", "fma", "f16c", "bmi2", "avx_vnni")},
    **{name: name.upper() for name in ("avx512", "avx512_vbmi", "avx512_vnni", "avx512_bf16")},
    "amx_int8": "AMX_INT8", "neon": "NEON", "fp16": "FP16_VA", "dotprod": "DOTPROD",
    "i8mm": "MATMUL_INT8", "sve": "SVE", "sme": "SME",
}  # fmt: skip
_PRESET_OF_VENDOR = {"NVIDIA": "cuda", "Apple": "metal", "AMD": "vulkan", "Intel": "vulkan"}
_OTHER_MODEL = "`edge-tr model list` names models that work."


def report(
    model: Path | None = None, *, n_gpu_layers: int = -1, n_ctx: int = ContextConfig.n_ctx
) -> dict[str, Any]:
    """Examine the machine and the build.

    Parameters
    ----------
    model
        A model to load as well, to see where its layers are placed.
    n_gpu_layers
        Layers of it to place on the GPU; -1 = all.
    n_ctx
        Context for which its memory is told.

    Returns
    -------
    dict
        Of plain JSON types; ``problems`` lists what is wrong as ``{"what", "do"}``, worst first.
    """
    check = check_build()
    sets = _instruction_sets(check)
    found: dict[str, Any] = {
        "edge_tr": __version__,
        "system": {
            "os": platform.platform(),
            "processor": facts.processor(),
            "python": platform.python_version(),
            "n_cores": facts.n_cores(),
            "n_cores_total": os.cpu_count() or 1,
            **facts.memory(),
        },
        "versions": {
            name: _version(name) for name in ("llama-cpp-python", "numpy", "numba", "gguf")
        },
        "paths": {"cache": str(cache_dir()), "data": str(data_dir())},
        "instruction_sets": sets,
        "gpus": facts.gpus(),
        "build": check.build,
        "decode": {
            "works": check.works,
            "error": check.error,
            "signal": check.death,
            "summary": check.summary,
        },
        "model": None,
    }
    problems = _build_problems(check, sets)
    problems += _gpu_problems(found["gpus"], check.build)
    if model is not None and check.build:
        found["model"], wrong = _place(model, n_gpu_layers, found, n_ctx)
        problems += wrong
    elif check.works:
        layers = check.stages.get("load", {}).get("layers", {})
        problems += _layer_problems(layers, check.build, "the small model of this check")
    problems += _cpu_problems(found["system"], sets)
    found["problems"] = problems
    return found


def _instruction_sets(check: BuildCheck) -> list[dict[str, Any]]:
    """One row per set: advertised, executes, usable, compiled (None: the build does not say)."""
    cpu = re.search(r"CPU : (.*?)(?=\w+ : |$)", check.build.get("system_info", ""))
    compiled = set(re.findall(r"(\w+) = [1-9]", cpu[1])) if cpu else None
    rows = []
    for status in isa.probe().values():
        feature = FEATURES.get(status.name)
        known = compiled is not None and feature is not None
        rows.append(
            {
                **status._asdict(),
                "usable": status.usable,
                "compiled": feature in (compiled or ()) if known else None,
            }
        )
    return rows


def _problem(what: str, do: str) -> dict[str, str]:
    return {"what": what, "do": do}


def _build_problems(check: BuildCheck, sets: list[dict[str, Any]]) -> list[dict[str, str]]:
    bad = [row["name"] for row in sets if row["compiled"] and not row["usable"]]
    foreign = f"The build contains {', '.join(bad)}, which this machine cannot execute"
    if not check.works:
        what = f"llama.cpp does not work here: {check.error}."
        if bad and check.build:
            return [_problem(f"{what} {foreign}.", f"Run: {rebuild_command()}")]
        return [_problem(what, advice(check))]
    if check.fused_error:
        what = f"llama.cpp's fused Vulkan kernels do not work here: {check.fused_error}."
        return [_problem(what, advice(check))]
    if bad:
        return [_problem(f"{foreign}; some models will crash.", f"Run: {rebuild_command()}")]
    return []


def _gpu_problems(present: list[dict[str, str]], build: dict[str, Any]) -> list[dict[str, str]]:
    if not build:
        return []
    backends = facts.GPU_BACKENDS & set(build["backends"])
    devices = [d for d in build["devices"] if d["type"] in ("gpu", "integrated gpu")]
    if backends and not devices:
        names = sorted({"MTL": "Metal"}.get(name, name) for name in backends)
        do = (
            "Check the driver (nvidia-smi or vulkaninfo must list the GPU; it may be older "
            "than the toolkit of the build) and CUDA_VISIBLE_DEVICES."
        )
        if names == ["Metal"]:
            do = "Run it on the Mac itself: many virtual machines have no GPU."
        why = f" ({build['gpu_error']})" if build.get("gpu_error") else ""
        return [
            _problem(
                f"The build has a {' and '.join(names)} back end but sees no GPU{why}, so "
                "everything runs on the CPU.",
                do,
            )
        ]
    if present and not backends:
        gpu = min(present, key=lambda g: list(_PRESET_OF_VENDOR).index(g["vendor"]))
        preset = _PRESET_OF_VENDOR[gpu["vendor"]]
        return [
            _problem(
                f"This machine has a GPU ({gpu['name']}) but your build has no "
                f"{preset.upper() if preset == 'cuda' else preset.title()} back end, so "
                "everything runs on the CPU.",
                f"Run: {rebuild_command(preset)}",
            )
        ]
    return []


def _place(
    model: Path, n_gpu_layers: int, found: dict[str, Any], n_ctx: int = ContextConfig.n_ctx
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Load a model in a child process; where its layers went, and what is odd about it."""
    about: dict[str, Any] = {
        "path": str(model), "size_bytes": 0, "layers": {}, "buffers_bytes": {}, "memory": None
    }  # fmt: skip
    try:
        info = inspect(model)
        settings = ContextConfig(n_ctx=n_ctx), DraftConfig()
        needs = memory_needs(info, *settings)
        about["memory"] = asdict(needs) | {"n_ctx": n_ctx, "told": told(needs)}
        has_gpu = any(
            "gpu" in device["type"] for device in found.get("build", {}).get("devices", [])
        )
        if not (has_gpu and n_gpu_layers):
            require_fit(info, *settings)
    except (ModelFileError, ModelLoadError) as error:
        return about | {"error": str(error)}, [_problem(f"{error}.", _OTHER_MODEL)]
    check = check_build(model, n_gpu_layers=n_gpu_layers)
    placed = check.stages.get("load", {"layers": {}, "buffers_bytes": {}})
    about |= {"size_bytes": info.size_bytes, **placed, "error": check.error}
    if not check.works:
        what = f"The model does not run: {check.error}; {told(needs)}."
        return about, [_problem(what, _OTHER_MODEL)]
    return about, _layer_problems(placed["layers"], check.build, "the model")


def _layer_problems(
    layers: dict[str, int], build: dict[str, Any], owner: str
) -> list[dict[str, str]]:
    """Layers that a GPU is there for and that llama.cpp left on the CPU."""
    gpu_names = {d["name"] for d in build["devices"] if "gpu" in d["type"]}
    n_all = sum(layers.values())
    n_gpu = sum(n for name, n in layers.items() if name in gpu_names)
    if not gpu_names or n_gpu == n_all:
        return []
    what = f"{n_all - n_gpu} of {n_all} layers of {owner} are placed on the CPU."
    return [_problem(what, "Use --gpu-layers -1 for all, if the GPU has the memory.")]


def _cpu_problems(system: dict[str, Any], sets: list[dict[str, Any]]) -> list[dict[str, str]]:
    problems = []
    traps = [r["name"] for r in sets if r["advertised"] is not False and r["executes"] is False]
    if traps:
        problems.append(
            _problem(
                f"The processor advertises {', '.join(traps)} and traps on it: a plain "
                "pip install of llama-cpp-python crashes here.",
                f"Build with: {rebuild_command()}",
            )
        )
    unused = [r["name"] for r in sets if r["compiled"] is False and r["usable"]]
    if any(row["name"] == "avx512_vnni" and row["compiled"] for row in sets):
        unused = [name for name in unused if name != "avx_vnni"]  # the wider one is used instead
    if unused:
        problems.append(
            _problem(
                f"The build leaves out {', '.join(unused)}, which this machine executes, "
                "so it may be slower than it could be.",
                f"Run: {rebuild_command()}",
            )
        )
    quota = facts.cpu_quota()
    if quota and quota < system["n_cores"]:
        problems.append(
            _problem(
                f"This container may use {quota:.1f} cores and sees {system['n_cores']}: more "
                "threads than that slow decoding down.",
                f"Use --threads {max(1, int(quota))}.",
            )
        )
    return problems


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
