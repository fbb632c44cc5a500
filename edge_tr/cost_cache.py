"""Measured costs kept on disk, one file for each model, build, machine and configuration."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from .cost import CostTable
from .errors import ConfigError
from .paths import cache_dir

_FORMAT = 2


def cost_path(key: dict[str, Any]) -> Path:
    """File of the costs measured under exactly these conditions."""
    text = json.dumps(key, sort_keys=True, default=str)
    return cache_dir() / "costs" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def load_costs(key: dict[str, Any]) -> CostTable | None:
    """The costs measured under these conditions, or None where there are none that can be read."""
    try:
        data = json.loads(cost_path(key).read_text())
        return CostTable.from_dict(data["costs"]) if data["format"] == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        return None


def save_costs(key: dict[str, Any], table: CostTable) -> bool:
    """Keep the costs; False where the cache cannot be written, they are then measured again."""
    path = cost_path(key)
    data = {"format": _FORMAT, "key": key, "costs": table.to_dict()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            json.dump(data, file, indent=1, default=str)
        os.replace(temporary, path)
    except OSError:
        return False
    return True


def forget_costs(key: dict[str, Any]) -> None:
    """Have the costs measured anew next time."""
    cost_path(key).unlink(missing_ok=True)
