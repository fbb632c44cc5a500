"""Room on the disk, checked before something large is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from edge_tr.errors import ModelFileError


def require_room(directory: Path, n_bytes: int, what: str) -> None:
    """Make sure that `n_bytes` can still be written below `directory`, which exists.

    Raises
    ------
    ModelFileError
        They cannot; the text names `what`, the need and what is free.
    """
    free = shutil.disk_usage(directory).free
    if free < n_bytes:
        raise ModelFileError(
            f"{what} needs {n_bytes / 1e9:.2f} GB, {directory} has {free / 1e9:.2f} GB free"
        )
