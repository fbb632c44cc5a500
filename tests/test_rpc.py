"""Several machines: names of RPC servers, whether they answer, models that run on two of them."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from edge_tr import Llama
from edge_tr.cli import main, make_parser, options
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import ConfigError, ModelLoadError, NativeBuildError
from edge_tr.llama import kernels, servers
from edge_tr.llama.library import logger
from edge_tr.llama.model import Model
from edge_tr.llama.rpc_hello import ask, parse_servers
from edge_tr.session import Session

TinyModel = Callable[[str], Path]
CONTEXT = ContextConfig(n_ctx=512, n_threads=1, n_threads_batch=1)
PROMPT = "the cat and the dog and the cat"
N_TOKENS = 40

needs_rpc = pytest.mark.skipif(
    not llama_cpp.llama_supports_rpc(), reason="llama.cpp was built without RPC"
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def rpc_server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server in a process of its own that answers, and the process."""
    port = free_port()
    command = [sys.executable, "-m", "edge_tr.cli", "rpc-server", "--port", str(port)]
    environment = {**os.environ, "EDGE_TR_KERNELS": "0"}
    with subprocess.Popen(
        [*command, "--threads", "1"], stderr=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            _await(f"127.0.0.1:{port}", process)
            yield f"127.0.0.1:{port}", process
        finally:
            process.kill()


def _await(server: str, process: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            ask(server)
            return
        except ModelLoadError:
            assert process.poll() is None, "the server ended"
            threading.Event().wait(0.02)


@pytest.fixture(scope="module")
def two() -> Iterator[str]:
    """Two servers on this machine, as ``--rpc`` takes them."""
    with rpc_server() as (one, _), rpc_server() as (other, _):
        yield f"{one},{other}"


@contextmanager
def replying(reply: bytes | None) -> Iterator[str]:
    """Something that sends ``reply`` to whoever connects and closes; None: it says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(33)
                connection.sendall(reply or b"")

        thread = threading.Thread(target=answer)
        if reply is not None:
            thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        if reply is not None:
            thread.join()


def hello(major: int, minor: int) -> bytes:
    return struct.pack("<QBBBB24x", 28, major, minor, 0, 0)


@pytest.fixture(autouse=True)
def kernels_of_llama_cpp() -> Iterator[None]:
    """A server's weights do not lie in our panels, so texts compare with llama.cpp's kernels."""
    with kernels.only(0):
        yield


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path / "data"))


def answer(path: Path, speculative: Any, rpc: str = "") -> list[int]:
    """Tokens of a greedy answer; with ``rpc`` all layers are on the servers."""
    draft = DraftConfig(speculative=speculative, start="empty")
    options: dict[str, Any] = {"n_gpu_layers": -1, "rpc": rpc}
    with Session(path, context=CONTEXT, draft=draft, **options) as session:
        prompt = session.prompt_tokens(PROMPT, chat=False)
        for _ in session.stream(prompt, max_tokens=N_TOKENS):
            pass
        is_forced = isinstance(speculative, TreeTemplate)  # automatic mode may find that none pays
        assert not is_forced or session.stats.n_drafted > 0
        tokens: list[int] = session.decoder.tokens[len(prompt) :].tolist()
        return tokens


def test_servers_are_a_list_or_a_text() -> None:
    wanted = ("box:50052", "192.168.1.7:1")
    assert parse_servers(" Box:50052, 192.168.1.7:1") == wanted
    assert parse_servers(["box:50052", "192.168.1.7:1"]) == wanted


def test_no_servers() -> None:
    assert parse_servers("") == parse_servers([]) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("box", "'box' is not allowed; use a list of host:port"),
        ("box:50052,", "'' is not allowed"),
        ("http://box:50052", "'http://box:50052' is not allowed"),
        ("[::1]:50052", "is not allowed"),
        ("box:0", "the port must be 1 to 65535"),
        ("box:65536", "the port must be 1 to 65535"),
        ("box:1,BOX:1", "box:1 is named twice"),
        (",".join(f"box:{i + 1}" for i in range(17)), "17 RPC servers .* at most 16"),
    ],
)
def test_a_server_that_is_not_allowed(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words) if ".*" not in words else words):
        parse_servers(text)


def test_a_server_of_our_version_is_fine() -> None:
    with replying(hello(7, 0)) as server:
        ask(server)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (hello(8, 0), r"speaks version 8\.0 of the protocol, this build 7\.0"),
        (hello(7, 1), r"speaks version 7\.1"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no RPC server"),
        (b"", "is no RPC server"),
    ],
)
def test_something_else_answers(reply: bytes, words: str) -> None:
    with replying(reply) as server, pytest.raises(ModelLoadError, match=words):
        ask(server)


def test_a_busy_server() -> None:
    with replying(None) as server, pytest.raises(ModelLoadError, match="one client at a time"):
        ask(server, timeout_s=0.05)


@needs_rpc
def test_a_server_that_cannot_be_reached(tiny_model: TinyModel) -> None:
    server = f"127.0.0.1:{free_port()}"
    with pytest.raises(ModelLoadError, match=f"{server} cannot be reached: .*edge-tr rpc-server"):
        Model(tiny_model("llama"), n_gpu_layers=-1, rpc=server)


@needs_rpc
def test_a_host_that_is_not_known(tiny_model: TinyModel) -> None:
    with pytest.raises(ModelLoadError, match=r"no\.such\.invalid:1: the host is not known"):
        Model(tiny_model("llama"), n_gpu_layers=-1, rpc="no.such.invalid:1")


def test_servers_without_layers(tiny_model: TinyModel) -> None:
    with pytest.raises(ConfigError, match="n_gpu_layers 0 places nothing on the RPC servers"):
        Model(tiny_model("llama"), rpc="box:1")


def test_a_build_without_rpc(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_reg_by_name", lambda name: None)
    with pytest.raises(NativeBuildError, match=r"built without RPC .*make build PRESET=cpu"):
        Model(tiny_model("llama"), n_gpu_layers=-1, rpc="127.0.0.1:1")


@needs_rpc
def test_the_layers_are_on_both_servers(tiny_model: TinyModel, two: str) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        Model(tiny_model("llama"), n_gpu_layers=-1, rpc=two).close()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    text = "".join(lines)
    devices = re.findall(r"layer +\d+ assigned to device (\w+)", text)
    assert len(set(devices)) == 2
    assert all(device.startswith("RPC") for device in devices)


@needs_rpc
@pytest.mark.parametrize("speculative", ["off", TreeTemplate.paper(), "auto"], ids=str)
def test_the_text_is_that_of_this_machine_alone(
    tiny_model: TinyModel, two: str, speculative: Any
) -> None:
    path = tiny_model("llama")
    assert answer(path, speculative, two) == answer(path, "off")


@needs_rpc
def test_costs_are_measured_through_the_servers(
    tiny_model: TinyModel, two: str, tmp_path: Path
) -> None:
    answer(tiny_model("llama"), "auto", two)
    (file,) = (tmp_path / "cache" / "costs").glob("*.json")
    assert json.loads(file.read_text())["key"]["rpc"] == two.split(",")


@needs_rpc
def test_a_server_is_free_when_the_model_is_closed(tiny_model: TinyModel, two: str) -> None:
    answer(tiny_model("llama"), "off", two)
    for server in two.split(","):
        ask(server)


@needs_rpc
def test_two_models_share_the_servers(tiny_model: TinyModel, two: str) -> None:
    path = tiny_model("llama")
    with Model(path, n_gpu_layers=-1, rpc=two):
        assert answer(path, "off", two) == answer(path, "off")


@needs_rpc
def test_a_server_with_two_names(tiny_model: TinyModel, two: str) -> None:
    port = two.partition(",")[0].rpartition(":")[2]
    with pytest.raises(ConfigError, match="named twice"):
        Model(tiny_model("llama"), n_gpu_layers=-1, rpc=f"127.0.0.1:{port},localhost:{port}")


@needs_rpc
def test_the_drop_in_takes_servers(tiny_model: TinyModel, two: str) -> None:
    path = str(tiny_model("llama"))
    options: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1}
    options |= {"n_gpu_layers": -1, "verbose": False}
    own = {"speculative": TreeTemplate.paper(), "matrix_path": False, "rpc_servers": two}
    stock = llama_cpp.Llama(path, **options)
    wanted = stock(PROMPT, max_tokens=N_TOKENS, temperature=0)["choices"][0]["text"]
    stock.close()
    with Llama(path, **options | own) as llm:
        got = llm(PROMPT, max_tokens=N_TOKENS, temperature=0)["choices"][0]["text"]
        assert llm.stats.n_drafted > 0
        assert llm.__getstate__()["rpc_servers"] == tuple(two.split(","))
    assert got == wanted
    ask(two.split(",")[0])


@needs_rpc
@pytest.mark.skipif(os.name == "nt", reason="ends a process by a signal")
def test_a_server_that_dies_takes_the_process_along(tiny_model: TinyModel) -> None:
    source = """
import sys
from edge_tr.session import Session
from edge_tr.config import DraftConfig
from edge_tr.config import ContextConfig
context = ContextConfig(n_ctx=512, n_threads=1)
draft = DraftConfig(speculative="off", start="empty")
session = Session(sys.argv[1], context=context, draft=draft, n_gpu_layers=-1, rpc=sys.argv[2])
for tokens in session.decoder.generate([1, 2, 3]):
    print("token", flush=True)
    sys.stdin.readline()
"""
    with rpc_server() as (name, process):
        command = [sys.executable, "-c", source, str(tiny_model("llama")), name]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        ) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"token\n"
            process.kill()
            process.wait()
            _, said = client.communicate(b"\n" * 100)
    assert client.returncode == -signal.SIGABRT
    assert b"Remote RPC server crashed" in said


@needs_rpc
def test_the_command_line_takes_servers(
    tiny_model: TinyModel, two: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["run", "-m", str(tiny_model("llama")), "--ctx", "512", "--threads", "1"]
    common += ["--tree", "paper", "--no-save", "--no-chat", "--max-tokens", "20", PROMPT]
    texts = []
    for more in ([], ["--rpc", two]):
        assert main([*common, *more]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("command", ["run x", "chat", "serve", "demo", "tune"])
def test_every_command_with_a_model_takes_servers(command: str) -> None:
    args = make_parser().parse_args([*command.split(), "--rpc", "box:1"])
    assert options.placement(args) == {"n_gpu_layers": -1, "rpc": "box:1"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "localhost"], "--host localhost is not allowed; it must be an IPv4 address"),
        (["--port", "0"], "--port 0 is not allowed; it must be 1 to 65535"),
        (["--threads", "-1"], "--threads -1 is not allowed"),
        (["--host", "192.0.2.1"], "cannot listen at 192.0.2.1:50052"),
    ],
)
def test_a_server_that_cannot_be(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rpc-server", *arguments]) == 2
    assert words in capsys.readouterr().err
