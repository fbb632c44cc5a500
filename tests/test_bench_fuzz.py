"""The fuzzer: it finds what it should, and nothing in a short run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import fuzz_files
from bench.fuzz_server import fault
from bench.fuzz_walks import check_templates
from edge_tr.errors import MatrixFileError


@pytest.fixture
def files(tmp_path: Path, tiny_model: Callable[[str], Path]) -> fuzz_files.Files:
    return fuzz_files.Files(tmp_path, tiny_model("llama"))


def check(files: fuzz_files.Files, n: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for seed in range(n):
        files.check(random.Random(seed), f"file {seed}", lambda *told: found.append(told))
    return found


def test_damaged_files_are_refused(
    files: fuzz_files.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "load_kept", lambda found: None)  # takes another process
    assert check(files, 150) == []


def test_another_error_than_a_refusal_is_found(
    files: fuzz_files.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise KeyError("rows")

    monkeypatch.setattr(fuzz_files, "READERS", dict.fromkeys(fuzz_files.READERS, fail))
    assert check(files, 3) == [("crashes", f"file {i}: KeyError('rows')") for i in range(3)]


def test_checksums_are_compared_again(tmp_path: Path) -> None:
    path = fuzz_files.saved_matrix(tmp_path / "matrix")
    data = bytearray(path.read_bytes())
    data[-2000] ^= 1
    path.write_bytes(data)
    with fuzz_files.unguarded():
        fuzz_files.read_matrix(path)
    with pytest.raises(MatrixFileError):
        fuzz_files.read_matrix(path)


def test_histories_are_written_or_refused() -> None:
    found: list[tuple[str, str]] = []
    for seed in range(40):
        check_templates(random.Random(seed), str(seed), lambda *told: found.append(told))
    assert found == []


@pytest.mark.parametrize(
    ("text", "told"),
    [("3", ""), ("4", "violates the schema"), ("{", "no JSON"), ('"3"', "violates the schema")],
)
def test_an_answer_is_validated(text: str, told: str) -> None:
    assert fault(text, {"const": 3}).startswith(told)
    assert bool(told) is bool(fault(text, {"const": 3}))
