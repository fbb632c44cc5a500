"""Files of what was learned: an uncompressed ``.npz`` with a header, checked before it is read.

``numpy.load`` can read them. The first array, ``header``, is uint8[n], a JSON object with the
format and version and what else the kind of file says about itself; the others hold numbers. The
CRC-32 of each array finds damage. What a file claims about its sizes is held against its length
before anything is read, so that a damaged one asks for no more memory than a sound one of that
length. Files tell of the user's texts, so only their owner can read them.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import numpy as np

from edge_tr.errors import MatrixDamagedError, MatrixFileError, MatrixMismatchError
from edge_tr.files.whole_file import write_whole

Array = np.ndarray[Any, Any]

NUMBERS = "biuf"
"""NumPy's kinds of what may be kept: bool, signed, unsigned, float."""

_MAX_HEADER_BYTES = 1 << 16


@dataclass(frozen=True)
class ArrayFile:
    """One kind of file.

    Attributes
    ----------
    name : what messages call it: "matrix" or "history".
    format, version : what its header must hold.
    header_types : further members of the header, and their types.
    remedy : what to do about a file that cannot be used.
    check : looks at header and arrays; what is wrong is a ValueError.
    """

    name: str
    format: str
    version: int
    header_types: Mapping[str, type]
    remedy: Callable[[Path], str]
    check: Callable[[Mapping[str, Any], Mapping[str, Array]], None]

    def write(self, path: Path, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Write it whole or not at all; its directory is made.

        Raises
        ------
        MatrixFileError : it cannot be written; a file that was there before is untouched.
        """
        about = {"format": self.format, "version": self.version, **header}
        about["saved_at"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        whole = {"header": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8), **arrays}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lambda stream: _write(stream, whole))
        except OSError as error:
            raise MatrixFileError(
                f"the {self.name} cannot be saved to {path}: {error.strerror or error}; "
                "EDGE_TR_DATA_DIR chooses another place"
            ) from error

    def read(self, path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
        """The header, with ``size_bytes`` added, and every other array, all checked.

        Raises
        ------
        MatrixFileError : missing, or not readable.
        MatrixDamagedError : cut short, changed, or not of this kind.
        MatrixMismatchError : of another format version.
        """
        try:
            with path.open("rb") as stream:
                return self._parse(stream, path)
        except OSError as error:
            raise MatrixFileError(
                f"the {self.name} {path} cannot be read: {error.strerror or error}"
            ) from error

    def check_same(
        self, path: Path, header: Mapping[str, Any], wanted: Mapping[str, tuple[str, Any]]
    ) -> None:
        """See that a file is of what is open; ``wanted`` has the words and the value of each
        member.

        Raises
        ------
        MatrixMismatchError : it is not.
        """
        for member, (words, value) in wanted.items():
            if header[member] != value:
                raise MatrixMismatchError(
                    f"{path} was saved for {words} {header[member]}, not {value}; "
                    f"{self.remedy(path)}"
                )

    def check_own(self, path: Path) -> None:
        """See that what stands at a path may be replaced or deleted: nothing, an empty file, or
        one of this kind.

        Raises
        ------
        MatrixFileError : something else stands there, it cannot be read, or there is no such
            folder.
        """
        try:
            with path.open("rb") as stream:
                start = stream.read(1024)
        except FileNotFoundError:
            if not path.parent.is_dir():
                raise MatrixFileError(f"{path}: the folder {path.parent} does not exist") from None
            return
        except OSError as error:
            raise MatrixFileError(f"{path} cannot be read: {error.strerror or error}") from error
        is_own = start.startswith(b"PK\x03\x04") and start[30:].startswith(b"header.npy")
        if start and not (is_own and self._may_be(start)):
            raise MatrixFileError(
                f"{path} is not a {self.name} file and stays as it is; use another path"
            )

    def _may_be(self, start: bytes) -> bool:
        """Whether the start of a file names no other format."""
        _, found, named = start.partition(b'"format": "')
        own = f'{self.format}"'.encode()
        return not found or named[: len(own)] == own[: len(named)]

    def _parse(self, stream: IO[bytes], path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
        size_bytes = os.fstat(stream.fileno()).st_size
        try:
            with zipfile.ZipFile(stream) as archive:
                header = self._read_header(archive, path)
                _check_sizes(archive.infolist(), size_bytes)
                arrays = {
                    info.filename.removesuffix(".npy"): _read_array(archive, info)
                    for info in archive.infolist()
                    if info.filename != "header.npy"
                }
            self.check(header, arrays)
        except (OSError, MatrixMismatchError):
            raise
        except Exception as error:  # zipfile, json and NumPy raise many kinds on senseless bytes
            raise MatrixDamagedError(
                f"{path} is damaged or not a {self.name} file ({error}); {self.remedy(path)}"
            ) from error
        return {**header, "size_bytes": size_bytes}, arrays

    def _read_header(self, archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
        info = archive.getinfo("header.npy")
        _check_sizes([info], _MAX_HEADER_BYTES)
        header = json.loads(_read_array(archive, info).tobytes())
        if not isinstance(header, dict) or header.get("format") != self.format:
            raise ValueError("its header is of another kind of file")
        version = header.get("version")
        if version != self.version:
            raise MatrixMismatchError(
                f"{path} is of format version {version}, this edge_tr reads {self.version}; "
                f"{self.remedy(path)}"
            )
        for name, kind in {**self.header_types, "saved_at": str}.items():
            if type(header.get(name)) is not kind:
                raise ValueError(f"its header has no {name}")
        return header


def _write(stream: IO[bytes], arrays: Mapping[str, Array]) -> None:
    with zipfile.ZipFile(stream, "w") as archive:
        for member, array in arrays.items():
            with archive.open(f"{member}.npy", "w") as target:
                np.lib.format.write_array(target, array, allow_pickle=False)


def _check_sizes(infos: list[zipfile.ZipInfo], most: int) -> None:
    if any(info.compress_type or info.file_size != info.compress_size for info in infos):
        raise ValueError("it is compressed")
    if sum(info.file_size for info in infos) > most:
        raise ValueError("its arrays are longer than they can be")


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """One array, after its sizes were checked; ``archive.read`` checks the CRC-32."""
    data = archive.read(info)
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{info.filename} has another version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    n_bytes = math.prod(shape) * dtype.itemsize
    if dtype.kind not in NUMBERS or n_bytes != len(data) - stream.tell():
        raise ValueError(f"{info.filename} does not hold the numbers it claims")
    stream.seek(0)
    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array
