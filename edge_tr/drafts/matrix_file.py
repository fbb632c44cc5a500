"""The hot-start store: adjacency matrices in files, one for each tokenizer and k.

A file is an uncompressed ``.npz`` that ``numpy.load`` can read, with these arrays:

``header``
    uint8[n], a JSON object: format, version, fingerprint, n_vocab, k, n_seen, saved_at.
``row_ids``
    int32[n_seen], tokens whose row holds a candidate, rising.
``rows``
    int32[n_seen, k], their candidates; -1 = no candidate.
``extra.<name>``
    numbers that later parts keep beside the rows; read and checked like them, and ignored by
    who does not know them.

It takes ``4 * n_seen * (k + 1)`` bytes and about 1 kB: a row never seen costs nothing, all rows
of a 262k vocabulary at k = 8 take 9.4 MB. The CRC-32 of each array finds damage. What a file
claims about its sizes is held against its length before anything is read, so that a damaged one
asks for no more memory than a sound one of that length. A matrix tells which tokens followed
which in the user's texts, so only its owner can read the file.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import zipfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import numpy as np

from edge_tr.drafts.adjacency import AdjacencyMatrix, check_candidates
from edge_tr.errors import ConfigError, MatrixDamagedError, MatrixFileError, MatrixMismatchError
from edge_tr.files.paths import data_dir
from edge_tr.files.whole_file import write_whole

Array = np.ndarray[Any, Any]

FORMAT = "edge_tr adjacency matrix"
VERSION = 2
_MAX_HEADER_BYTES = 1 << 16
_HEADER_TYPES = {"fingerprint": str, "n_vocab": int, "k": int, "n_seen": int, "saved_at": str}
_EXTRA = "extra."
_NUMBERS = "biuf"  # NumPy's kinds: bool, signed, unsigned, float


def default_path(fingerprint: str, k: int) -> Path:
    """Where the matrix of a tokenizer is kept; nothing is made or checked.

    Raises
    ------
    ConfigError : a fingerprint of anything but letters, digits, ``-`` and ``_``.
    """
    if not re.fullmatch(r"[0-9A-Za-z_-]{1,100}", fingerprint):
        raise ConfigError(
            f"fingerprint {fingerprint!r} is not allowed; use 1 to 100 letters, digits, - and _"
        )
    return data_dir() / "matrices" / f"{fingerprint}-k{k}.npz"


def save(
    path: Path,
    matrix: AdjacencyMatrix,
    fingerprint: str,
    extra: Mapping[str, Array] | None = None,
) -> None:
    """Save the rows that hold a candidate, whole or not at all.

    The file appears under its name only once it is on the disk, also when two processes save at
    once (the later one stays) or one is killed.

    Parameters
    ----------
    fingerprint : identity of the tokenizer, ``Model.fingerprint()``.
    extra : arrays of numbers to keep beside the rows, by name.

    Raises
    ------
    ConfigError : a candidate outside the vocabulary, a name or array of ``extra`` not allowed.
    MatrixFileError : it cannot be written; a file that was there before is untouched.
    """
    arrays = _pack(matrix, fingerprint, extra or {})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda stream: _write(stream, arrays))
    except OSError as error:
        raise MatrixFileError(
            f"the matrix cannot be saved to {path}: {error.strerror or error}; "
            "EDGE_TR_DATA_DIR chooses another place"
        ) from error


def load(path: Path, fingerprint: str, n_vocab: int, k: int) -> AdjacencyMatrix:
    """The saved matrix; see ``load_with_extra`` for the parameters and errors."""
    return load_with_extra(path, fingerprint, n_vocab, k)[0]


def load_with_extra(
    path: Path, fingerprint: str, n_vocab: int, k: int
) -> tuple[AdjacencyMatrix, dict[str, Array]]:
    """The saved matrix, and the arrays that were saved beside it, by name.

    Parameters
    ----------
    fingerprint, n_vocab, k : what the file must be of.

    Raises
    ------
    MatrixFileError : missing, or not readable.
    MatrixDamagedError : cut short, changed, or not a matrix file.
    MatrixMismatchError : of another tokenizer, format version or k.
    """
    header, arrays = _read(path)
    for name, found, wanted in (
        ("tokenizer", header["fingerprint"], fingerprint),
        ("vocabulary size", header["n_vocab"], n_vocab),
        ("k", header["k"], k),
    ):
        if found != wanted:
            raise MatrixMismatchError(
                f"{path} was saved for {name} {found}, not {wanted}; {remedy(path)}"
            )
    matrix = AdjacencyMatrix(n_vocab, k)
    matrix.rows[arrays["row_ids"]] = arrays["rows"]
    return matrix, _extra(arrays)


def read_header(path: Path) -> dict[str, Any]:
    """What a file says about itself, after all of it was checked for damage.

    Returns
    -------
    dict : format, version, fingerprint, n_vocab, k, n_seen (rows that hold a candidate),
        saved_at (UTC, ISO 8601), size_bytes.

    Raises
    ------
    MatrixFileError, MatrixDamagedError : as ``load_with_extra``.
    MatrixMismatchError : of another format version.
    """
    return _read(path)[0]


def read_extra(path: Path) -> dict[str, Array]:
    """The arrays that were saved beside a matrix, whatever its tokenizer.

    Raises
    ------
    MatrixFileError, MatrixDamagedError, MatrixMismatchError : as ``read_header``.
    """
    return _extra(_read(path)[1])


def _extra(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name[len(_EXTRA) :]: array for name, array in arrays.items() if name.startswith(_EXTRA)}


def check_own(path: Path) -> None:
    """See that what stands at a path may be replaced or deleted: nothing, an empty file, or one
    that begins as a matrix file does.

    Raises
    ------
    MatrixFileError : something else stands there, it cannot be read, or there is no such folder.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(40)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise MatrixFileError(f"{path}: the folder {path.parent} does not exist") from None
        return
    except OSError as error:
        raise MatrixFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if start and not (start.startswith(b"PK\x03\x04") and start[30:] == b"header.npy"):
        raise MatrixFileError(f"{path} is not a matrix file and stays as it is; use another path")


def remedy(path: Path) -> str:
    """What to do about a file that cannot be used."""
    if path.parent == data_dir() / "matrices":
        return "`edge-tr matrix reset` deletes it, to start empty"
    return f"use another path, or `edge-tr matrix reset --file {path}` to start empty"


def _pack(
    matrix: AdjacencyMatrix, fingerprint: str, extra: Mapping[str, Array]
) -> dict[str, Array]:
    """The arrays of a file, by name."""
    row_ids = np.flatnonzero((matrix.rows >= 0).any(axis=1)).astype(np.int32)
    rows = matrix.rows[row_ids]
    check_candidates(rows, matrix.n_vocab)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": fingerprint,
        "n_vocab": matrix.n_vocab,
        "k": matrix.k,
        "n_seen": len(row_ids),
        "saved_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    text = json.dumps(header).encode()
    arrays: dict[str, Array] = {
        "header": np.frombuffer(text, dtype=np.uint8),
        "row_ids": row_ids,
        "rows": rows,
    }
    for name, array in extra.items():
        if not re.fullmatch(r"[0-9a-z_]{1,100}", name) or array.dtype.kind not in _NUMBERS:
            raise ConfigError(
                f"extra array {name!r} of {array.dtype} is not allowed; its name must be of a-z, "
                "0-9 and _, and it must hold numbers"
            )
        arrays[_EXTRA + name] = array
    return arrays


def _write(stream: IO[bytes], arrays: Mapping[str, Array]) -> None:
    with zipfile.ZipFile(stream, "w") as archive:
        for member, array in arrays.items():
            with archive.open(f"{member}.npy", "w") as target:
                np.lib.format.write_array(target, array, allow_pickle=False)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """The header, with ``size_bytes`` added, and every other array of a file, all checked."""
    try:
        with path.open("rb") as stream:
            return _parse(stream, path)
    except OSError as error:
        raise MatrixFileError(
            f"the matrix {path} cannot be read: {error.strerror or error}"
        ) from error


def _parse(stream: IO[bytes], path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    size_bytes = os.fstat(stream.fileno()).st_size
    try:
        with zipfile.ZipFile(stream) as archive:
            header = _read_header(archive, path)
            _check_sizes(archive.infolist(), size_bytes)
            arrays = {
                info.filename.removesuffix(".npy"): _read_array(archive, info)
                for info in archive.infolist()
                if info.filename != "header.npy"
            }
        _check_rows(header, arrays["row_ids"], arrays["rows"])
    except (OSError, MatrixMismatchError):
        raise
    except Exception as error:  # zipfile, json and NumPy raise many kinds on senseless bytes
        raise MatrixDamagedError(
            f"{path} is damaged or not a matrix file ({error}); {remedy(path)}"
        ) from error
    return {**header, "size_bytes": size_bytes}, arrays


def _read_header(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    info = archive.getinfo("header.npy")
    _check_sizes([info], _MAX_HEADER_BYTES)
    header = json.loads(_read_array(archive, info).tobytes())
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError("its header is of another kind of file")
    version = header.get("version")
    if version != VERSION:
        raise MatrixMismatchError(
            f"{path} is of format version {version}, this edge_tr reads {VERSION}; {remedy(path)}"
        )
    for name, kind in _HEADER_TYPES.items():
        if type(header.get(name)) is not kind:
            raise ValueError(f"its header has no {name}")
    return header


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
    if dtype.kind not in _NUMBERS or n_bytes != len(data) - stream.tell():
        raise ValueError(f"{info.filename} does not hold the numbers it claims")
    stream.seek(0)
    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _check_rows(header: Mapping[str, Any], row_ids: Array, rows: Array) -> None:
    n_vocab, n_seen = header["n_vocab"], header["n_seen"]
    if row_ids.dtype != np.int32 or rows.dtype != np.int32:
        raise ValueError("its rows are not int32")
    if row_ids.shape != (n_seen,) or rows.shape != (n_seen, header["k"]):
        raise ValueError("its rows have another shape than the header says")
    outside = ((row_ids < 0) | (row_ids >= n_vocab)).any()
    if outside or (row_ids[1:] <= row_ids[:-1]).any():
        raise ValueError("its row ids are repeated, unsorted or outside the vocabulary")
    check_candidates(rows, n_vocab)
