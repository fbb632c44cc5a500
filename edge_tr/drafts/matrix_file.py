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
of a 262k vocabulary at k = 8 take 9.4 MB. See ``files.array_file`` for how it is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr.drafts.adjacency import AdjacencyMatrix, check_candidates
from edge_tr.errors import ConfigError
from edge_tr.files.array_file import NUMBERS, Array, ArrayFile
from edge_tr.files.paths import data_dir

FORMAT = "edge_tr adjacency matrix"
VERSION = 2
_EXTRA = "extra."


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
    FILE.write(path, *_pack(matrix, fingerprint, extra or {}))


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
    header, arrays = FILE.read(path)
    wanted = {
        "fingerprint": ("tokenizer", fingerprint),
        "n_vocab": ("vocabulary size", n_vocab),
        "k": ("k", k),
    }
    FILE.check_same(path, header, wanted)
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
    return FILE.read(path)[0]


def read_extra(path: Path) -> dict[str, Array]:
    """The arrays that were saved beside a matrix, whatever its tokenizer.

    Raises
    ------
    MatrixFileError, MatrixDamagedError, MatrixMismatchError : as ``read_header``.
    """
    return _extra(FILE.read(path)[1])


def _extra(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name[len(_EXTRA) :]: array for name, array in arrays.items() if name.startswith(_EXTRA)}


def remedy(path: Path) -> str:
    """What to do about a file that cannot be used."""
    if path.parent == data_dir() / "matrices":
        return "`edge-tr matrix reset` deletes it, to start empty"
    return f"use another path, or `edge-tr matrix reset --file {path}` to start empty"


def _pack(
    matrix: AdjacencyMatrix, fingerprint: str, extra: Mapping[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """The header and the arrays of a file."""
    row_ids = np.flatnonzero((matrix.rows >= 0).any(axis=1)).astype(np.int32)
    rows = matrix.rows[row_ids]
    check_candidates(rows, matrix.n_vocab)
    header = {
        "fingerprint": fingerprint,
        "n_vocab": matrix.n_vocab,
        "k": matrix.k,
        "n_seen": len(row_ids),
    }
    arrays: dict[str, Array] = {"row_ids": row_ids, "rows": rows}
    for name, array in extra.items():
        if not re.fullmatch(r"[0-9a-z_]{1,100}", name) or array.dtype.kind not in NUMBERS:
            raise ConfigError(
                f"extra array {name!r} of {array.dtype} is not allowed; its name must be of a-z, "
                "0-9 and _, and it must hold numbers"
            )
        arrays[_EXTRA + name] = array
    return header, arrays


def _check(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    n_vocab, n_seen = header["n_vocab"], header["n_seen"]
    row_ids, rows = arrays["row_ids"], arrays["rows"]
    if row_ids.dtype != np.int32 or rows.dtype != np.int32:
        raise ValueError("its rows are not int32")
    if row_ids.shape != (n_seen,) or rows.shape != (n_seen, header["k"]):
        raise ValueError("its rows have another shape than the header says")
    outside = ((row_ids < 0) | (row_ids >= n_vocab)).any()
    if outside or (row_ids[1:] <= row_ids[:-1]).any():
        raise ValueError("its row ids are repeated, unsorted or outside the vocabulary")
    check_candidates(rows, n_vocab)


FILE = ArrayFile(
    name="matrix",
    format=FORMAT,
    version=VERSION,
    header_types={"fingerprint": str, "n_vocab": int, "k": int, "n_seen": int},
    remedy=remedy,
    check=_check,
)
