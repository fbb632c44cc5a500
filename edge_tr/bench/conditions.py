"""Under what conditions a result was measured."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_tr import __version__
from edge_tr.config import ContextConfig
from edge_tr.gguf_file.info import inspect
from edge_tr.llama.library import system_info, version
from edge_tr.machine import facts
from edge_tr.models.fetch import sha256_of


def conditions(path: Path, context: ContextConfig, n_gpu_layers: int) -> dict[str, Any]:
    """Model with its sha256, machine, build and configuration."""
    return {
        "model": {
            "name": path.name,
            "size_bytes": path.stat().st_size,
            "sha256": sha256_of(path),
            "architecture": inspect(path).architecture,
        },
        "machine": {
            "processor": facts.processor(),
            "cores": facts.n_cores(),
            "memory_bytes": facts.memory()["memory_bytes"],
            "gpus": [gpu["name"] for gpu in facts.gpus()],
            "system": platform.platform(),
            "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else [],
        },
        "build": {
            "edge_tr": __version__,
            "llama_cpp_python": version(),
            "llama_cpp": system_info(),
            "python": platform.python_version(),
        },
        "context": asdict(context) | {"n_gpu_layers": n_gpu_layers},
    }
