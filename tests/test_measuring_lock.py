"""One measurement at a time, in one process and in several."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from edge_tr.measuring.lock import measuring_alone

_HOLD = """
from edge_tr.measuring.lock import measuring_alone
with measuring_alone() as is_alone:
    print(is_alone, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_one_at_a_time_in_a_process() -> None:
    with measuring_alone() as first, measuring_alone(0.0) as second:
        assert (first, second) == (True, False)
    with measuring_alone(0.0) as third:
        assert third


def test_one_at_a_time_on_a_machine() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _HOLD], stdin=pipe, stdout=pipe) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"True"
        with measuring_alone(0.0) as is_alone:
            assert not is_alone
        other.kill()  # the lock goes with its process
        other.wait()
        with measuring_alone(0.0) as is_alone:
            assert is_alone


def test_waits_for_the_other_and_says_so() -> None:
    said: list[str] = []
    found: list[bool] = []

    def measure() -> None:
        with measuring_alone(60.0, said.append) as is_alone:
            found.append(is_alone)

    with measuring_alone():
        thread = Thread(target=measure)
        thread.start()
        while not said:
            thread.join(0.01)
    thread.join()
    assert found == [True]
    assert len(said) == 1


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path) -> None:
    cache.write_text("a file, not a directory")
    with measuring_alone(0.0) as is_alone:
        assert is_alone
