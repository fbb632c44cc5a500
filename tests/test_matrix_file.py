"""The hot-start store: what is saved is what is loaded, and nothing else is."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_target import FakeTarget

from edge_tr.config import DraftConfig
from edge_tr.drafting import Drafting
from edge_tr.drafts import matrix_file
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.errors import ConfigError, MatrixDamagedError, MatrixFileError, MatrixMismatchError
from edge_tr.files.whole_file import STALE_S

FINGERPRINT = "0123456789abcdef0123456789abcdef"
N_VOCAB, K = 300, 3


class KnownFake(FakeTarget):
    def cost_key(self) -> dict[str, Any]:
        return {}


def make(seed: int = 0, n_vocab: int = N_VOCAB, k: int = K, n_seen: int = 20) -> AdjacencyMatrix:
    """A matrix with so many rows seen, some of them partly filled."""
    rng = np.random.default_rng(seed)
    matrix = AdjacencyMatrix(n_vocab, k)
    for token in rng.choice(n_vocab, n_seen, replace=False):
        n = int(rng.integers(1, k + 1))
        matrix.set_row(int(token), rng.integers(0, n_vocab, n, dtype=np.int32))
    return matrix


def load_rows(path: Path) -> Any:
    return matrix_file.load(path, FINGERPRINT, N_VOCAB, K).rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "matrix.npz"


@pytest.fixture
def saved(path: Path) -> Path:
    matrix_file.save(path, make(), FINGERPRINT)
    return path


def arrays_of(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return dict(file)


def header_of(arrays: dict[str, Any]) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(arrays["header"].tobytes())
    return header


def as_header(header: object) -> Any:
    return np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)


# --- round trip ------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 8, 16])
@pytest.mark.parametrize("n_seen", [0, 1, 50, 300])
def test_round_trip(path: Path, k: int, n_seen: int) -> None:
    matrix = make(k=k, n_seen=n_seen)
    matrix_file.save(path, matrix, FINGERPRINT)
    loaded = matrix_file.load(path, FINGERPRINT, N_VOCAB, k)
    np.testing.assert_array_equal(loaded.rows, matrix.rows)


def test_loaded_rows_are_as_kernels_want_them(saved: Path) -> None:
    rows = load_rows(saved)
    assert rows.dtype == np.int32
    assert rows.flags.c_contiguous
    assert rows.flags.writeable


def test_round_trip_of_extra_arrays(path: Path) -> None:
    extra: dict[str, Any] = {
        "probability": np.arange(6, dtype=np.float32).reshape(2, 3),
        "n_accepted": np.array(7, dtype=np.int64),
        "none_yet": np.zeros((0, 4), dtype=np.uint8),
    }
    matrix_file.save(path, make(), FINGERPRINT, extra)
    matrix, loaded = matrix_file.load_with_extra(path, FINGERPRINT, N_VOCAB, K)
    np.testing.assert_array_equal(matrix.rows, make().rows)
    assert loaded.keys() == extra.keys()
    for name, array in extra.items():
        np.testing.assert_array_equal(loaded[name], array, strict=True)


def test_extra_arrays_are_ignored_by_load(path: Path) -> None:
    matrix_file.save(path, make(), FINGERPRINT, {"probability": np.ones(4, dtype=np.float32)})
    np.testing.assert_array_equal(load_rows(path), make().rows)


@pytest.mark.parametrize(
    ("name", "array"),
    [("a/b", np.zeros(1)), ("", np.zeros(1)), ("text", np.array(["a"])), ("any", np.array([{}]))],
)
def test_extra_array_not_allowed(path: Path, name: str, array: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(name))):
        matrix_file.save(path, make(), FINGERPRINT, {name: array})


def test_a_later_save_replaces_the_earlier(saved: Path) -> None:
    matrix_file.save(saved, make(seed=1), FINGERPRINT)
    np.testing.assert_array_equal(load_rows(saved), make(seed=1).rows)
    assert list(saved.parent.iterdir()) == [saved]


def test_directories_are_made_and_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "größere Ablage [1]" / "матрица 行列 *.npz"
    matrix_file.save(path, make(), FINGERPRINT)
    matrix_file.save(path, make(), FINGERPRINT)
    np.testing.assert_array_equal(load_rows(path), make().rows)


def test_header(saved: Path) -> None:
    header = matrix_file.read_header(saved)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", header.pop("saved_at"))
    assert header == {
        "format": "edge_tr adjacency matrix",
        "version": matrix_file.VERSION,
        "fingerprint": FINGERPRINT,
        "n_vocab": N_VOCAB,
        "k": K,
        "n_seen": 20,
        "size_bytes": saved.stat().st_size,
    }


def test_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path))
    assert matrix_file.default_path("ab12", 8) == tmp_path / "matrices" / "ab12-k8.npz"


@pytest.mark.parametrize("fingerprint", ["", "../up", "a.b", "a b"])
def test_default_path_of_no_fingerprint(fingerprint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(fingerprint))):
        matrix_file.default_path(fingerprint, 8)


# --- size ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_seen", [0, 5, 100])
def test_rows_never_seen_cost_nothing(path: Path, n_seen: int) -> None:
    matrix_file.save(path, make(n_vocab=262_144, k=8, n_seen=n_seen), FINGERPRINT)
    large_bytes = path.stat().st_size
    matrix_file.save(path, make(n_vocab=262_144 // 2, k=8, n_seen=n_seen), FINGERPRINT)
    assert path.stat().st_size == large_bytes
    assert large_bytes - 4 * n_seen * (8 + 1) < 1500


# --- another tokenizer, version, k -----------------------------------------------------------


@pytest.mark.parametrize(
    ("fingerprint", "n_vocab", "k", "text"),
    [
        ("f" * 32, N_VOCAB, K, f"tokenizer {FINGERPRINT}, not {'f' * 32}"),
        (FINGERPRINT, N_VOCAB + 1, K, f"vocabulary size {N_VOCAB}, not {N_VOCAB + 1}"),
        (FINGERPRINT, N_VOCAB, K + 1, f"k {K}, not {K + 1}"),
    ],
)
def test_mismatch(saved: Path, fingerprint: str, n_vocab: int, k: int, text: str) -> None:
    with pytest.raises(MatrixMismatchError, match=f"{text}.*edge-tr matrix reset"):
        matrix_file.load(saved, fingerprint, n_vocab, k)


@pytest.mark.parametrize("version", [0, 1, 3, "2"])
def test_another_format_version(saved: Path, version: object) -> None:
    arrays = arrays_of(saved)
    arrays["header"] = as_header(header_of(arrays) | {"version": version})
    np.savez(saved, **arrays)
    with pytest.raises(MatrixMismatchError, match=f"version {version}.*edge-tr matrix reset"):
        matrix_file.read_header(saved)


# --- damage ----------------------------------------------------------------------------------


def outcome(path: Path, data: bytes) -> str:
    """What loading these bytes does: "same" or "refused"; anything else fails the test."""
    with path.open("r+b") as file:  # faster than making it empty first
        file.write(data)
        file.truncate()
    try:
        rows = load_rows(path)
    except MatrixFileError:
        return "refused"
    np.testing.assert_array_equal(rows, make().rows)
    return "same"


def flipped(data: bytes, i: int, mask: int) -> bytes:
    return data[:i] + bytes([data[i] ^ mask]) + data[i + 1 :]


def test_cut_short_at_every_length(saved: Path) -> None:
    data = saved.read_bytes()
    assert {outcome(saved, data[:n]) for n in range(len(data))} == {"refused"}


@pytest.mark.parametrize("mask", [0x01, 0xFF])
def test_every_byte_changed(saved: Path, mask: int) -> None:
    data = saved.read_bytes()
    outcomes = {outcome(saved, flipped(data, i, mask)) for i in range(len(data))}
    assert outcomes == {"refused", "same"}  # "same": a date in the zip, for example


def test_every_byte_of_the_rows_is_guarded(saved: Path) -> None:
    data = saved.read_bytes()
    rows = arrays_of(saved)["rows"].tobytes()
    first = data.index(rows)
    places = range(first, first + len(rows))
    assert {outcome(saved, flipped(data, i, 1)) for i in places} == {"refused"}


def test_many_bytes_changed(saved: Path) -> None:
    data = np.frombuffer(saved.read_bytes(), dtype=np.uint8)
    rng = np.random.default_rng(0)
    for _ in range(300):
        changed = data.copy()
        first, n = rng.integers(0, len(data)), rng.integers(1, 64)
        changed[first : first + n] = rng.integers(0, 256, len(changed[first : first + n]))
        outcome(saved, changed.tobytes())


def test_bytes_behind_the_end(saved: Path) -> None:
    outcome(saved, saved.read_bytes() + b"x" * 100)


@pytest.mark.parametrize("data", [b"", b"GGUF" + b"\0" * 400, b"PK\x05\x06" + b"\0" * 18])
def test_not_a_matrix_file(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(MatrixDamagedError, match=f"{re.escape(str(path))} .*edge-tr matrix reset"):
        load_rows(path)


@pytest.mark.parametrize("data", [b"my diary", b"PK\x03\x04" + b"\0" * 60, b"GGUF"])
def test_a_file_of_someone_else_is_not_our_own(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(MatrixFileError, match="is not a matrix file and stays as it is"):
        matrix_file.FILE.check_own(path)


def test_a_matrix_file_a_damaged_one_and_none_are_our_own(saved: Path, tmp_path: Path) -> None:
    matrix_file.FILE.check_own(saved)
    saved.write_bytes(saved.read_bytes()[:200])
    matrix_file.FILE.check_own(saved)
    saved.write_bytes(b"")
    matrix_file.FILE.check_own(saved)
    matrix_file.FILE.check_own(tmp_path / "missing")


def test_npz_of_something_else(path: Path) -> None:
    np.savez(path, rows=np.zeros(4), header=as_header({"format": "another"}))
    with pytest.raises(MatrixDamagedError, match="another kind of file"):
        load_rows(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("row_ids", np.zeros(20, dtype=np.int32)),
        ("row_ids", np.arange(20, dtype=np.int32)[::-1]),
        ("row_ids", np.arange(20, dtype=np.int32) - 1),
        ("row_ids", np.arange(20, dtype=np.int32) + N_VOCAB - 19),
        ("row_ids", np.arange(20, dtype=np.int64)),
        ("row_ids", np.arange(19, dtype=np.int32)),
        ("rows", np.full((20, K), N_VOCAB, dtype=np.int32)),
        ("rows", np.full((20, K), -2, dtype=np.int32)),
        ("rows", np.zeros((20, K), dtype=np.float32)),
        ("rows", np.zeros((20, K + 1), dtype=np.int32)),
        ("rows", np.zeros(20, dtype=np.int32)),
        ("rows", np.array(["text"])),
        ("header", np.frombuffer(b"[" * 5000, dtype=np.uint8)),
        ("header", np.frombuffer(b"{}" + b" " * 100_000, dtype=np.uint8)),
        ("header", as_header([1])),
        ("header", as_header({"format": matrix_file.FORMAT, "version": matrix_file.VERSION})),
    ],
)
def test_sound_zip_with_wrong_contents(saved: Path, name: str, value: Any) -> None:
    np.savez(saved, **(arrays_of(saved) | {name: value}))
    with pytest.raises(MatrixDamagedError):
        load_rows(saved)


@pytest.mark.parametrize("name", ["header", "row_ids", "rows"])
def test_array_missing(saved: Path, name: str) -> None:
    arrays = arrays_of(saved)
    del arrays[name]
    np.savez(saved, **arrays)
    with pytest.raises(MatrixDamagedError, match=name):
        load_rows(saved)


BESIDE = ["codes", "pair_keys", "pair_rows", "pair_codes", "calibration", "rank_counts"]


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize(
    "value", [np.array(3), np.zeros((0, 9)), np.full((2, 9), np.nan), np.full(4, -1)]
)
def test_a_damaged_array_beside_the_matrix_says_where_and_what_to_do(
    path: Path, name: str, value: Any
) -> None:
    candidates = Candidates(AdjacencyMatrix(16, 8))
    matrix_file.save(path, candidates.matrix, FINGERPRINT, candidates.to_arrays() | {name: value})
    draft = DraftConfig(speculative="off", matrix_path=path)
    told = f"{re.escape(str(path))} is damaged: the saved .*; use another path, or `edge-tr matrix"
    with pytest.raises(MatrixDamagedError, match=told):
        Drafting(KnownFake(), draft, FINGERPRINT)


@pytest.mark.parametrize("name", BESIDE)
def test_a_missing_array_beside_the_matrix(path: Path, name: str) -> None:
    candidates = Candidates(AdjacencyMatrix(16, 8))
    arrays = candidates.to_arrays()
    del arrays[name]
    matrix_file.save(path, candidates.matrix, FINGERPRINT, arrays)
    with pytest.raises(MatrixDamagedError, match=f"{re.escape(str(path))} is damaged"):
        Drafting(KnownFake(), DraftConfig(speculative="off", matrix_path=path), FINGERPRINT)


def test_array_that_claims_more_than_it_holds(saved: Path) -> None:
    claim = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        claim, {"shape": (1 << 40, K), "fortran_order": False, "descr": "<i4"}
    )
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(saved, "w") as archive:
        for name, data in (members | {"rows.npy": claim.getvalue()}).items():
            archive.writestr(name, data)
    with pytest.raises(MatrixDamagedError, match="rows"):
        load_rows(saved)


def test_pickles_are_refused(saved: Path) -> None:
    np.savez(saved, **arrays_of(saved), allow_pickle=True, other=np.array([{}], dtype=object))
    with pytest.raises(MatrixDamagedError, match="other"):
        load_rows(saved)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_zip_bomb_is_not_unpacked(saved: Path) -> None:
    np.savez_compressed(saved, **arrays_of(saved), bomb=np.zeros(1 << 25, dtype=np.uint8))
    tracemalloc.reset_peak()
    with pytest.raises(MatrixDamagedError, match="compressed"):
        load_rows(saved)
    assert tracemalloc.get_traced_memory()[1] < 1 << 21


# --- the file system -------------------------------------------------------------------------


def test_missing_file(path: Path) -> None:
    with pytest.raises(MatrixFileError, match=re.escape(str(path))):
        load_rows(path)


def test_load_of_a_directory(tmp_path: Path) -> None:
    with pytest.raises(MatrixFileError, match=re.escape(str(tmp_path))):
        load_rows(tmp_path)


def test_save_below_a_file(saved: Path) -> None:
    with pytest.raises(MatrixFileError, match=r"cannot be saved.*EDGE_TR_DATA_DIR"):
        matrix_file.save(saved / "matrix.npz", make(), FINGERPRINT)


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_failed_save_leaves_the_old_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(MatrixFileError, match=f"{re.escape(str(saved))}: Read-only file"):
            matrix_file.save(saved, make(seed=1), FINGERPRINT)
    np.testing.assert_array_equal(load_rows(saved), make().rows)
    assert list(saved.parent.iterdir()) == [saved]


def test_full_disk_leaves_the_old_file(saved: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = AdjacencyMatrix.random(N_VOCAB, 16)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(MatrixFileError, match=re.escape(str(saved))):
            matrix_file.save(saved, large, FINGERPRINT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    np.testing.assert_array_equal(load_rows(saved), make().rows)
    assert list(saved.parent.iterdir()) == [saved]


def test_matrix_with_a_wrong_candidate_is_not_saved(saved: Path) -> None:
    wrong = make()
    wrong.rows[5] = N_VOCAB
    with pytest.raises(ConfigError, match=f"candidate {N_VOCAB}"):
        matrix_file.save(saved, wrong, FINGERPRINT)
    np.testing.assert_array_equal(load_rows(saved), make().rows)


# --- several processes -----------------------------------------------------------------------

CHILD = f"""
import os, sys
from pathlib import Path
from edge_tr.drafts import matrix_file as store
from edge_tr.drafts.adjacency import AdjacencyMatrix
path, seed, n = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
matrix = AdjacencyMatrix.random({N_VOCAB}, {K}, seed=seed)
if n == 0:
    os.fsync = lambda _: os._exit(9)
for _ in range(max(n, 1)):
    store.save(path, matrix, "{FINGERPRINT}")
"""


def start(path: Path, seed: int, n: int) -> subprocess.Popen[bytes]:
    """A process that saves the random matrix of a seed n times; 0 = it dies while saving."""
    return subprocess.Popen([sys.executable, "-c", CHILD, str(path), str(seed), str(n)])


def test_two_processes_saving_at_once(path: Path) -> None:
    both = [AdjacencyMatrix.random(N_VOCAB, K, seed=seed).rows for seed in (1, 2)]
    matrix_file.save(path, AdjacencyMatrix.random(N_VOCAB, K, seed=1), FINGERPRINT)
    children = [start(path, seed, 50) for seed in (1, 2)]
    while any(child.poll() is None for child in children):
        rows = load_rows(path)
        assert any(np.array_equal(rows, one) for one in both)
    assert [child.returncode for child in children] == [0, 0]
    assert any(np.array_equal(load_rows(path), one) for one in both)
    assert list(path.parent.iterdir()) == [path]


def test_killed_process_leaves_the_old_file_and_is_cleaned_up_after(saved: Path) -> None:
    for seed in (1, 2):
        assert start(saved, seed, 0).wait() == 9
    np.testing.assert_array_equal(load_rows(saved), make().rows)
    old, young = (entry for entry in saved.parent.iterdir() if entry != saved)
    other = saved.parent / ".another.npz-1.tmp"
    other.touch()
    for entry in (old, other):
        os.utime(entry, (0, os.stat(entry).st_mtime - STALE_S - 60))
    matrix_file.save(saved, make(), FINGERPRINT)
    assert set(saved.parent.iterdir()) == {saved, young, other}
