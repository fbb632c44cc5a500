"""The command line as a process of its own: Ctrl-C, closed pipes, what is imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

import pytest

Process = Callable[..., AbstractContextManager["subprocess.Popen[bytes]"]]

LONG = 30_000
"""Tokens that a tiny model is busy with for seconds."""

needs_signals = pytest.mark.skipif(os.name == "nt", reason="sends SIGINT to a process")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def process(tmp_path: Path, cache: Path, tiny_model: Callable[[str], Path]) -> Process:
    """``with process(*arguments) as child``: ``edge-tr run`` with its streams as pipes."""

    @contextmanager
    def start(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
        model = ("-m", tiny_model("llama"), "--threads", 1, "--ctx", LONG + 2000)
        command = (sys.executable, "-m", "edge_tr.cli", "run", *model, *arguments)
        directories = {"EDGE_TR_DATA_DIR": str(tmp_path / "data"), "EDGE_TR_CACHE_DIR": str(cache)}
        child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=os.environ | directories,
        )
        with child:
            try:
                yield child
            finally:
                child.kill()

    return start


def wait_for(stream: IO[bytes] | None, text: bytes) -> None:
    """Read the stream up to a line that holds ``text``."""
    assert stream is not None
    seen = b""
    for line in iter(stream.readline, b""):
        seen += line
        if text in line:
            return
    raise AssertionError(f"{text!r} did not come; there was {seen!r}")


@needs_signals
def test_ctrl_c_while_decoding_keeps_what_was_written(process: Process, tmp_path: Path) -> None:
    with process("Hello", "--max-tokens", LONG) as child:
        assert child.stdout is not None
        first = child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert (first + out).endswith(b"\n")
    assert b"tok/s); interrupted\n" in err
    assert b"Traceback" not in err
    assert list((tmp_path / "data" / "matrices").glob("*.npz"))


@needs_signals
def test_ctrl_c_in_prefill(process: Process, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("the " * LONG)
    arguments = ("-f", prompt, "--no-chat", "--verbose", "--batch", 64)
    with process(*arguments) as child:
        wait_for(child.stderr, b"edge-tr: reading")
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert out == b""
    assert b"edge-tr: no answer to a prompt" in err
    assert b"Traceback" not in err


@needs_signals
def test_ctrl_c_twice(process: Process) -> None:
    with process("Hello", "--max-tokens", LONG) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert b"interrupted\n" in err
    assert b"Traceback" not in err


@needs_signals
def test_ctrl_c_while_the_prompt_is_awaited(process: Process, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "prompt")
    with (
        process("-f", tmp_path / "prompt") as child,
        (tmp_path / "prompt").open("wb"),  # returns once the process opened it
    ):
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == b"edge-tr: interrupted\n"


def test_a_reader_that_closes_the_answer(process: Process) -> None:
    with process("Hello", "--max-tokens", LONG) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(1)
        child.stdout.close()
        err = child.stderr.read()
        code = child.wait(timeout=60)
    assert (code, err) == (0, b"")


@pytest.mark.skipif(os.name == "nt", reason="a shell closes stdout")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["model", "list"],
        ["run", "Hello"],
        ["run", "Hello", "--json"],
        ["matrix", "path"],
    ],
)
def test_stdout_that_is_closed_from_the_start(
    cache: Path, tiny_model: Callable[[str], Path], arguments: list[str]
) -> None:
    model = ["-m", str(tiny_model("llama"))] if arguments[0] in ("run", "matrix") else []
    more = ["--threads", "1", "--no-save", "--max-tokens", "4"] if arguments[0] == "run" else []
    command = [sys.executable, "-m", "edge_tr.cli", *arguments, *model, *more]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command],
        stderr=subprocess.PIPE,
        env=os.environ | {"EDGE_TR_CACHE_DIR": str(cache)},
        check=False,
    )
    assert done.returncode == 0
    assert b"unexpected" not in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_answer_that_cannot_be_written(cache: Path, tiny_model: Callable[[str], Path]) -> None:
    command = [sys.executable, "-m", "edge_tr.cli", "run", "-m", tiny_model("llama"), "Hello"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [str(part) for part in (*command, "--threads", 1, "--no-save")],
            stdout=full,
            stderr=subprocess.PIPE,
            env=os.environ | {"EDGE_TR_CACHE_DIR": str(cache)},
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(b"edge-tr: error: ")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--batch", "--ctx"])
def test_less_room_than_the_tree_has_nodes(process: Process, option: str) -> None:
    arguments = ("Hello", option, 8, "--no-chat", "--max-tokens", 4, "--tree", "paper")
    with process(*arguments) as child:
        _, err = child.communicate(timeout=60)
    assert child.returncode == 0
    assert b"decode:  4 tokens" in err


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from edge_tr.cli import make_parser\n"
        "make_parser().format_help()\n"
        "print([m for m in ('numpy', 'numba', 'llama_cpp', 'gguf') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.split() == [b"[]"]
