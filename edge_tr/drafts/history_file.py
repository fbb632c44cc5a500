"""The history of earlier texts in a file, for who asks for one: it holds texts, not statistics.

See ``files.array_file`` for what all such files have; this one holds ``tokens``, int32[n], oldest
text first, -1 behind each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr.drafts.history import History
from edge_tr.errors import ConfigError, MatrixDamagedError
from edge_tr.files.array_file import Array, ArrayFile


def save(path: Path, history: History, fingerprint: str, n_vocab: int) -> None:
    """Save all texts, whole or not at all.

    Parameters
    ----------
    fingerprint, n_vocab : of the tokenizer.

    Raises
    ------
    MatrixFileError : it cannot be written; a file that was there before is untouched.
    """
    tokens = history.texts()
    header = {
        "fingerprint": fingerprint,
        "n_vocab": n_vocab,
        "n_tokens": len(tokens),
        "n_texts": history.n_texts,
    }
    FILE.write(path, header, {"tokens": tokens})


def load(path: Path, history: History, fingerprint: str, n_vocab: int) -> None:
    """Fill a history with what was saved, the newest texts first where there is less room.

    Raises
    ------
    MatrixFileError : missing, or not readable.
    MatrixDamagedError : cut short, changed, or not a history file.
    MatrixMismatchError : of another tokenizer or format version.
    """
    header, arrays = FILE.read(path)
    wanted = {
        "fingerprint": ("tokenizer", fingerprint),
        "n_vocab": ("vocabulary size", n_vocab),
    }
    FILE.check_same(path, header, wanted)
    try:
        history.load(arrays["tokens"], n_vocab)
    except ConfigError as error:
        raise MatrixDamagedError(f"{path} is damaged: {error}; {remedy(path)}") from None


def read_header(path: Path) -> dict[str, Any]:
    """What a file says about itself, after all of it was checked for damage.

    Returns
    -------
    dict : format, version, fingerprint, n_vocab, n_tokens, n_texts, saved_at (UTC, ISO 8601),
        size_bytes.

    Raises
    ------
    MatrixFileError, MatrixDamagedError, MatrixMismatchError : as ``load``.
    """
    return FILE.read(path)[0]


def remedy(path: Path) -> str:
    """What to do about a file that cannot be used."""
    return f"use another path, or `edge-tr matrix reset --history {path}` to start empty"


def _check(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    tokens = arrays["tokens"]
    if tokens.dtype != np.int32 or tokens.shape != (header["n_tokens"],):
        raise ValueError("it does not hold as many tokens as its header says")


FILE = ArrayFile(
    name="history",
    format="edge_tr history",
    version=1,
    header_types={"fingerprint": str, "n_vocab": int, "n_tokens": int, "n_texts": int},
    remedy=remedy,
    check=_check,
)
