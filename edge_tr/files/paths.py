"""Where edge_tr keeps files: a cache that may be deleted, and data worth keeping."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _base(xdg: str, windows: str, mac: str, unix: str) -> Path:
    if os.environ.get(xdg):
        return Path(os.environ[xdg])
    if sys.platform == "win32":
        return Path(os.environ.get(windows) or Path.home() / "AppData" / "Local")
    return Path.home() / (mac if sys.platform == "darwin" else unix)


def cache_dir() -> Path:
    """Directory of wheels, models and measurements; safe to delete. Not created here.

    ``EDGE_TR_CACHE_DIR`` overrides it; else ``XDG_CACHE_HOME`` or the system's own place.
    """
    override = os.environ.get("EDGE_TR_CACHE_DIR")
    if override:
        return Path(override)
    return _base("XDG_CACHE_HOME", "LOCALAPPDATA", "Library/Caches", ".cache") / "edge-tr"


def data_dir() -> Path:
    """Directory of learned state (adjacency matrices). Not created here.

    ``EDGE_TR_DATA_DIR`` overrides it; else ``XDG_DATA_HOME`` or the system's own place.
    """
    override = os.environ.get("EDGE_TR_DATA_DIR")
    if override:
        return Path(override)
    base = _base("XDG_DATA_HOME", "LOCALAPPDATA", "Library/Application Support", ".local/share")
    return base / "edge-tr"
