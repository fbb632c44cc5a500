"""``edge-tr serve``: its options, and the server as a process."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from edge_tr.cli import main
from edge_tr.server.config import ServerConfig
from edge_tr.server.run import listen


@pytest.fixture
def serve(
    tiny_model: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """``serve(*options)``: exit code and stderr of a server that does not start."""

    def run(*options: object) -> tuple[int, str]:
        arguments = ("serve", "-m", tiny_model("llama"), *options)
        code = main([str(part) for part in arguments])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--port", 70000), "--port 70000 is not allowed"),
        (("--max-waiting", -1), "--max-waiting -1 is not allowed"),
        (("--idle-unload", 0), "--idle-unload 0 is not allowed; it must be above 0"),
        (("--idle-unload", "nan"), "--idle-unload nan is not allowed"),
        (("--origin", "*"), "origin '*' is not allowed"),
        (("--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid"),
        (("--tree", "wide"), "--tree wide is not allowed"),
        (("--cache-type-k", "q9"), "q9"),
    ],
)
def test_an_option_that_is_not_allowed(
    serve: Callable[..., tuple[int, str]], options: tuple[object, ...], told: str
) -> None:
    code, err = serve(*options)
    assert code == 2
    assert told in err


def test_a_port_that_is_taken(serve: Callable[..., tuple[int, str]]) -> None:
    with listen(ServerConfig(port=0)) as listener:
        code, err = serve("--port", listener.getsockname()[1])
    assert code == 2
    assert "cannot listen on 127.0.0.1" in err


def test_ctrl_c_before_the_server_hears_signals(
    serve: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edge_tr.server.run.Server.run", interrupted)
    code, err = serve("--port", 0)
    assert code == 0
    assert "listening at" in err


def test_measuring_is_told(
    serve: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("edge_tr.server.run.Server.run", lambda *_a, **_k: None)
    assert "measuring decode steps behind" in serve("--port", 0, "--threads", 1)[1]


@pytest.mark.parametrize("option", ["-m", "--embedding-model"])
def test_a_model_that_is_missing(serve: Callable[..., tuple[int, str]], option: str) -> None:
    code, err = serve(option, "missing.gguf", "--port", 0)
    assert code == 3
    assert "missing.gguf" in err


def test_the_extra_is_missing(
    serve: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "edge_tr.server.find_spec", lambda name: None if name == "uvicorn" else find(name)
    )
    code, err = serve()
    assert code == 2
    assert 'needs uvicorn, which is not installed; install the extra: pip install "edge' in err


class Child:
    """The server as a process."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=os.environ | env
        )
        assert self.process.stderr is not None
        self.told = ""
        for line in self.process.stderr:
            self.told += line
            if url := re.search(r"listening at (http://\S+)/", line):
                self.url = url[1]
                return
        raise AssertionError(f"it does not listen: {self.told}")

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        self.told += self.process.communicate(timeout=60)[1]
        return self.process.returncode


@pytest.fixture
def child(tmp_path: Path, tiny_model: Callable[[str], Path]) -> Iterator[Callable[..., Child]]:
    """``child(*options, **env)``: a server that listens."""
    children: list[Child] = []

    def start(*options: object, **env: str) -> Child:
        fixed = ("-m", tiny_model("llama"), "--port", 0, "--ctx", 512, "--threads", 1)
        command = (sys.executable, "-m", "edge_tr.cli", "serve", *fixed, "--tree", 8, *options)
        directories = {
            "EDGE_TR_DATA_DIR": str(tmp_path / "data"),
            "EDGE_TR_CACHE_DIR": str(tmp_path / "cache"),
        }
        children.append(Child([str(part) for part in command], directories | env))
        return children[-1]

    yield start
    for started in children:
        started.process.kill()
        started.process.communicate()


@pytest.mark.skipif(os.name == "nt", reason="sends signals to a process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_keeps_what_was_learned(
    child: Callable[..., Child], tmp_path: Path, number: int
) -> None:
    server = child()
    body = {"prompt": "the of and", "max_tokens": 50}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
    assert server.stop(number) == 0
    assert list((tmp_path / "data" / "matrices").glob("*.npz"))
    assert "Traceback" not in server.told


@pytest.mark.skipif(os.name == "nt", reason="sends signals to a process")
def test_a_signal_ends_an_answer_too(child: Callable[..., Child]) -> None:
    server = child("--ctx", 32000)
    body = {"prompt": "the of and", "max_tokens": -1, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGINT)
        rest = [line for line in lines if line]
    assert "the server is stopping" in rest[-1]
    assert server.process.wait(60) == 0


def test_an_idle_server_unloads_its_model_and_answers_again(child: Callable[..., Child]) -> None:
    server = child("--idle-unload", 0.2)
    while httpx.get(f"{server.url}/health").json()["model"] != "unloaded":
        pass
    body = {"prompt": "the of and", "max_tokens": 5}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200


def test_the_key_of_the_environment(child: Callable[..., Child]) -> None:
    server = child(EDGE_TR_API_KEY="secret")
    assert httpx.get(f"{server.url}/v1/models").status_code == 401


def test_a_warning_where_anyone_can_ask(child: Callable[..., Child]) -> None:
    assert "warning: whoever reaches this machine can ask" in child("--host", "0.0.0.0").told


def test_loading_is_told(child: Callable[..., Child]) -> None:
    assert "edge-tr: loading llama.gguf (" in child().told


def test_help_needs_no_extra() -> None:
    script = (
        "import sys\n"
        "from edge_tr.cli import make_parser\n"
        "make_parser()\n"
        "print([m for m in ('starlette', 'uvicorn', 'pydantic') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.split() == [b"[]"]


def test_private_histories_are_kept_in_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = ["serve", "--private-history", "--api-key", "a", "--history", str(tmp_path / "h.npz")]
    assert main(line) == 2
    assert "--private-history keeps no file" in capsys.readouterr().err
