"""The doctor's findings as text."""

from __future__ import annotations

import os
import re
from typing import Any

from edge_tr.doctor.findings import FEATURES
from edge_tr.machine.build_check import device_text


def render(found: dict[str, Any]) -> str:
    """The report as text, in lines of a label and its facts; the problems come last."""
    system, build = found["system"], found["build"]
    sets = found["instruction_sets"]

    def names(key: str, value: Any = True) -> str:
        return " ".join(row["name"] for row in sets if row[key] is value) or "none known"

    rows = [
        ("edge_tr", f"{found['edge_tr']}, Python {system['python']}"),
        ("libraries", ", ".join(f"{k} {v or 'missing'}" for k, v in found["versions"].items())),
        ("system", system["os"]),
        (
            "processor",
            f"{system['processor']}, {system['n_cores']} of {system['n_cores_total']} cores usable",
        ),
        (
            "memory",
            f"{_gib(system['memory_available_bytes'])} free of {_gib(system['memory_bytes'])}",
        ),
        ("sets here", names("usable")),
        ("sets in build", names("compiled")),
        ("GPUs here", ", ".join(gpu["name"] for gpu in found["gpus"]) or "none seen"),
        ("build", build.get("folder", "cannot be imported")),
        ("built with", _extras(build)),
        ("kernels", kernels_text(build)),
        ("back ends", " ".join(build.get("backends", [])) or "none"),
    ]
    rows += [("note", note) for note in sorted({row["note"] for row in sets} - {""})]
    rows += [("device", _device_text(device)) for device in build.get("devices", [])]
    rows.append(("decode", found["decode"]["summary"]))
    if found["model"]:
        layers = ", ".join(f"{n} on {name}" for name, n in found["model"]["layers"].items())
        rows.append(("model", found["model"]["path"]))
        rows.append(("layers", layers or "not loaded"))
        if found["model"]["memory"]:
            needs = found["model"]["memory"]
            rows.append(("its memory", f"with --ctx {needs['n_ctx']} {needs['told']}"))
    lines = [f"{label:<14}{text}" for label, text in rows]
    for problem in found["problems"]:
        lines += ["", f"! {problem['what']}", f"  {problem['do']}"]
    if not found["problems"]:
        lines += ["", "Nothing is wrong."]
    return "\n".join(lines)


def _extras(build: dict[str, Any]) -> str:
    """Parts of the build that are no instruction sets: LLAMAFILE, OPENMP, REPACK."""
    features = re.findall(r"(\w+) = [1-9]", build.get("system_info", ""))
    sets = {*FEATURES.values(), "SSE3", "SSSE3", "ARM_FMA"}
    return " ".join(name for name in features if name not in sets) or "nothing more"


def kernels_text(build: dict[str, Any]) -> str:
    """Which of our kernels run, and why others do not."""
    kernels = build.get("kernels")
    if not kernels:
        return "llama.cpp's own: this build was made without ours (native/build.py adds them)"
    if not kernels["isa"]:
        return "llama.cpp's own: ours need AVX2 with FMA and F16C, or NEON with dot product"
    parts = {1: "quantised weights", 2: "F16, BF16, F32", 4: "flash attention"}
    on, off = ([name for bit, name in parts.items() if bool(kernels["active"] & bit) is state]
               for state in (True, False))  # fmt: skip
    text = f"{', '.join(on) or 'none'} ({kernels['isa']})"
    if not off:
        return text
    if os.environ.get("EDGE_TR_KERNELS"):
        return f"{text}; EDGE_TR_KERNELS switches off {', '.join(off)}"
    return f"{text}; llama.cpp's own for {', '.join(off)}, with AMX (EDGE_TR_KERNELS=7 for ours)"


def _device_text(device: dict[str, Any]) -> str:
    memory = f"{_gib(device['free_bytes'])} free of {_gib(device['total_bytes'])}"
    return f"{device_text(device)}: {device['type']}, {memory}"


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes else "an unknown amount"
