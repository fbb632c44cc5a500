"""Facts about this machine that no library is needed for: cores, memory, processor, GPUs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from edge_tr.machine import isa

GPU_BACKENDS = frozenset(("CUDA", "Metal", "MTL", "Vulkan", "ROCm", "SYCL", "OpenCL"))
"""llama.cpp's back ends for GPUs, by the names it gives them."""

_PCI_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}


def gpus() -> list[dict[str, str]]:
    """GPUs of this machine as the system lists them, whether or not llama.cpp can use them."""
    if platform.system() == "Darwin":
        return [{"name": "Apple GPU", "vendor": "Apple"}] if isa.is_arm() else []
    names = _nvidia_names()
    found = [{"name": name, "vendor": "NVIDIA"} for name in names]
    for file in sorted(Path("/sys/class/drm").glob("card?/device/vendor")):
        vendor = _PCI_VENDORS.get(file.read_text().strip())
        if vendor and not (vendor == "NVIDIA" and names):
            found.append({"name": f"{vendor} GPU", "vendor": vendor})
    return found


def _nvidia_names() -> list[str]:
    if shutil.which("nvidia-smi"):
        text = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
        names = [line.strip() for line in text.splitlines() if line.strip()]
        if names:
            return names
    texts = (p.read_text() for p in Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [found[1].strip() for text in texts if (found := re.search(r"Model:\s*(.+)", text))]


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def cpu_quota() -> float | None:
    """Cores that the control group allows, if it limits them."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def memory() -> dict[str, int]:
    """Bytes of memory, those a program can still get, and free swap; 0 where this system does not
    say. Where a control group allows less, that counts."""
    total = available = swap = 0
    if platform.system() == "Linux":
        text = Path("/proc/meminfo").read_text()
        sizes = {k: int(v) * 1024 for k, v in re.findall(r"(\w+):\s+(\d+) kB", text)}
        total, available = sizes["MemTotal"], sizes.get("MemAvailable", sizes["MemFree"])
        swap = sizes.get("SwapFree", 0)
        limit, used = _group_memory()
        if limit is not None and limit < total:
            total, available = limit, min(available, max(0, limit - used))
    elif platform.system() == "Darwin":
        total = int(_output("sysctl", "-n", "hw.memsize") or 0)
    return {
        "memory_bytes": total,
        "memory_available_bytes": available,
        "swap_free_bytes": swap,
    }


def _group_memory() -> tuple[int | None, int]:
    """What the control group allows, if it limits that, and what it uses and cannot drop."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        files = re.search(r"^inactive_file (\d+)", (folder / "memory.stat").read_text(), re.M)
    except (OSError, ValueError):
        return None, 0
    return (int(limit) if limit.isdecimal() else None), used - int(files[1] if files else 0)


def processor() -> str:
    """The processor's name."""
    if platform.system() == "Linux":
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        return found[1].strip() if found else platform.machine()
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.machine()
    return platform.processor() or platform.machine()
