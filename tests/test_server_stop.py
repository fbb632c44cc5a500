"""SIGTERM ends the server in every state; a client that leaves ends an answer in a slow grammar.

How long it may take is a constant of the server, which ends the process then whatever runs; the
time itself is not measured here.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from edge_tr.server import run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends signals to a process")

N_CTX = 32_000
SLOW = 'root ::= root root | [a-z]? | root "+" root'
"""A grammar whose every step takes a second or more once some tokens are there."""
AMBIGUOUS = "root ::= (" + "[a-z]? " * 12 + ")+"

_HANGS = """
import sys, threading
from edge_tr.cli import main
from edge_tr.constrain.constraint import Constraint
def allowed(self):
    print("hangs", file=sys.stderr, flush=True)
    threading.Event().wait()
Constraint.allowed = allowed
sys.exit(main(sys.argv[1:]))
"""
"""The server, with a step of a grammar that never ends."""


class Child:
    """The server as a process, and what it tells."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        self.url = self.wait_for("listening at ").split()[-3].rstrip("/")

    def wait_for(self, text: str) -> str:
        assert self.process.stderr is not None
        told = []
        for line in self.process.stderr:
            told.append(line)
            if text in line:
                return line
        raise AssertionError(f"it does not say {text!r}: {told}")

    def send(self, body: dict[str, Any], **options: Any) -> socket.socket:
        """A connection on which a completion was asked for."""
        text = json.dumps({"prompt": "the of", "max_tokens": -1, "temperature": 0} | body)
        host, _, port = self.url.removeprefix("http://").partition(":")
        client = socket.socket()
        for name, value in options.items():
            client.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        client.connect((host, int(port)))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(text)}"
        client.sendall(f"{head}\r\n\r\n{text}".encode())
        return client

    def count(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))

    def wait_until(self, name: str, least: float) -> None:
        while self.count(name) < least:
            time.sleep(0.02)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def start(tmp_path: Path, tiny_model: Callable[[str], Path]) -> Iterator[Callable[..., Child]]:
    """``start(*python)``: a server of a tiny model; ``python`` stands in for its module."""
    children: list[Child] = []

    def child(*python: str) -> Child:
        command = [sys.executable, *(python or ("-m", "edge_tr.cli")), "serve", "--port", "0"]
        command += ["-m", str(tiny_model("llama")), "--ctx", str(N_CTX), "--threads", "1"]
        directories = {"EDGE_TR_DATA_DIR": str(tmp_path), "EDGE_TR_CACHE_DIR": str(tmp_path)}
        children.append(Child([*command, "--tree", "off"], os.environ | directories))
        return children[-1]

    yield child
    for one in children:
        one.process.kill()
        one.process.communicate()


def idle(server: Child) -> Iterator[None]:
    assert httpx.get(f"{server.url}/health").status_code == 200  # so it hears signals
    yield


def in_prefill(server: Child) -> Iterator[None]:
    with server.send({"prompt": "the " * (N_CTX - 1000)}):
        server.wait_until("edge_tr_open_requests", 1)
        yield


def in_decode(server: Child) -> Iterator[None]:
    with server.send({"stream": True}) as client:
        assert client.recv(100)
        yield


def in_a_slow_grammar(server: Child) -> Iterator[None]:
    with server.send({"stream": True, "grammar": SLOW, "temperature": 1}) as client:
        assert client.recv(100)
        server.wait_until("edge_tr_open_requests", 1)
        yield


def streaming_to_a_slow_client(server: Child) -> Iterator[None]:
    body = {"stream": True, "logprobs": 20, "max_tokens": 4000}
    with server.send(body, SO_RCVBUF=4096) as client:
        assert client.recv(100)
        server.wait_until("edge_tr_tokens_total", 4000)  # the rest waits for the client
        yield


STATES = [idle, in_prefill, in_decode, in_a_slow_grammar, streaming_to_a_slow_client]


@pytest.mark.parametrize("state", STATES)
def test_sigterm_ends_the_server(
    start: Callable[..., Child], state: Callable[[Child], Iterator[None]]
) -> None:
    server = start()
    with contextmanager(state)(server):
        assert server.end() == 0


def test_sigterm_ends_a_server_that_hangs_in_native_code(start: Callable[..., Child]) -> None:
    server = start("-c", _HANGS)
    with server.send({"grammar": SLOW}):
        server.wait_for("hangs")
        assert server.end() == 0


def test_the_server_has_two_seconds_to_end() -> None:
    assert run._SECONDS_TO_STOP < run._SECONDS_TO_END < 2


@pytest.mark.parametrize("grammar", [AMBIGUOUS, SLOW])
def test_a_client_that_leaves_in_a_slow_grammar(start: Callable[..., Child], grammar: str) -> None:
    server = start()
    with server.send({"stream": True, "grammar": grammar, "temperature": 1}) as client:
        assert client.recv(100)
    body = {"prompt": "the of", "max_tokens": 1}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
    assert server.count("edge_tr_open_requests") == 0
