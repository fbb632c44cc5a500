"""GGUF headers and matrix files, damaged at random."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from zipfile import ZipExtFile

import numpy as np

from edge_tr.drafts import history_file, matrix_file
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.history import History
from edge_tr.errors import ConfigError, MatrixFileError, ModelError
from edge_tr.gguf_file.info import inspect

Found = Callable[[str, str], None]

_LOAD = """
import sys
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.errors import EdgeTRError
from edge_tr.session import Session
for path in sys.argv[1:]:
    print("opening", path, flush=True)
    try:
        context = ContextConfig(n_ctx=256, n_batch=64, n_threads=1, n_threads_batch=1)
        draft = DraftConfig(speculative="off", start="empty")
        with Session(path, context=context, draft=draft) as s:
            list(s.stream([1, 2, 3], max_tokens=2))
    except EdgeTRError:
        pass
"""
_FINGERPRINT = "f" * 32
_N_VOCAB, _K = 300, 8
REFUSALS = (ModelError, MatrixFileError, ConfigError)
"""What reading a damaged file may raise."""
_HEADER_BYTES = 1 << 14
_AT_ONCE = 20
_LOAD_S = 240.0


class Files:
    """Damages files; those that pass the check are loaded by another process.

    Parameters
    ----------
    folder : to write them into.
    model : a small GGUF.
    """

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder = folder
        self._whole = {
            "gguf": model.read_bytes(),
            "matrix": saved_matrix(folder / "matrix").read_bytes(),
            "history": saved_history(folder / "history").read_bytes(),
        }
        self._kept: list[Path] = []
        self._n = 0

    def check(self, rng: random.Random, name: str, found: Found) -> None:
        """Damage one file and check it."""
        self._n += 1
        kind = rng.choice(["gguf", "gguf", "gguf", "matrix", "history"])
        data = bytearray(self._whole[kind])
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(min(len(data), _HEADER_BYTES))
            size = rng.choice([1, 1, 4, 8])
            data[at : at + size] = rng.choice([b"\0" * size, b"\xff" * size, rng.randbytes(size)])
        if rng.random() < 0.1:
            del data[rng.randrange(len(data)) :]
        path = self._folder / f"{self._n}.{kind}"
        path.write_bytes(data)
        try:
            with unguarded() if rng.random() < 0.5 else nullcontext():
                READERS[kind](path)
            if kind == "gguf":
                self._kept.append(path)
        except REFUSALS:
            pass
        except Exception as error:
            found("crashes", f"{name}: {error!r}")
        if path not in self._kept:
            path.unlink()
        if len(self._kept) == _AT_ONCE:
            self.load_kept(found)

    def load_kept(self, found: Found) -> None:
        """Load what passed the check."""
        waiting, self._kept = self._kept, []
        while waiting:
            command = [sys.executable, "-c", _LOAD, *map(str, waiting)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_LOAD_S)
                code, told = done.returncode, done.stdout
            except subprocess.TimeoutExpired as error:
                code, told = None, (error.stdout or b"").decode()
            lines = [line.split(" ", 1) for line in told.splitlines()]  # among llama.cpp's own
            tried = [line[1] for line in lines if line[0] == "opening"]
            if code == 0 or not tried:
                break
            kept = (
                Path(tempfile.gettempdir()) / f"edge-tr-fuzz-{os.getpid()}-{Path(tried[-1]).name}"
            )
            Path(tried[-1]).replace(kept)
            why = done.stderr[-300:] if code is not None else ""
            found("hangs" if code is None else "crashes", f"loading {kept}: {code} {why}")
            waiting = waiting[len(tried) :]
        for path in self._folder.glob("*.gguf"):
            path.unlink()


def saved_matrix(path: Path) -> Path:
    """A small matrix file with everything that one may hold."""
    rng = np.random.default_rng(0)
    candidates = Candidates(AdjacencyMatrix.random(_N_VOCAB, _K))
    tokens = rng.integers(0, _N_VOCAB, (40, 2), dtype=np.int32)
    ids = rng.integers(0, _N_VOCAB, (40, _K), dtype=np.int32)
    values = np.sort(rng.random((40, _K), dtype=np.float32))[:, ::-1].copy()
    candidates.recycle(tokens[:, 0].copy(), tokens[:, 1].copy(), ids, values)
    matrix_file.save(path, candidates.matrix, _FINGERPRINT, candidates.to_arrays())
    return path


def saved_history(path: Path) -> Path:
    """A small history file."""
    history = History(2000)
    for n in (20, 300, 9):
        history.add(np.arange(n, dtype=np.int32) % _N_VOCAB)
    history_file.save(path, history, _FINGERPRINT, _N_VOCAB)
    return path


@contextmanager
def unguarded() -> Iterator[None]:
    """Checksums are not compared, so that damage gets behind them."""
    compare = ZipExtFile._update_crc  # type: ignore[attr-defined]
    ZipExtFile._update_crc = lambda self, data: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        ZipExtFile._update_crc = compare  # type: ignore[attr-defined]


def read_model(path: Path) -> None:
    """As before a model is loaded."""
    inspect(path).require_text()


def read_matrix(path: Path) -> None:
    """As when a session starts."""
    matrix, extra = matrix_file.load_with_extra(path, _FINGERPRINT, _N_VOCAB, _K)
    Candidates(matrix).load_arrays(extra)


def read_history(path: Path) -> None:
    """As when a session starts that keeps earlier texts."""
    history_file.load(path, History(500), _FINGERPRINT, _N_VOCAB)


READERS: dict[str, Callable[[Path], None]] = {
    "gguf": read_model,
    "matrix": read_matrix,
    "history": read_history,
}
"""What is done with a file of each kind."""
