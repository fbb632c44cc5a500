"""Many clients at once: turns, the limit of the queue, clients that leave, the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Running, held, serving

from edge_tr.drafts.template import TreeTemplate

FORCED = TreeTemplate.from_breadths([3, 2])


def ask(**options: Any) -> dict[str, Any]:
    return {"prompt": "the of and", "max_tokens": 20, "temperature": 0} | options


@pytest.fixture(scope="module")
def running(tiny_model: Callable[[str], Path]) -> Iterator[Running]:
    with serving(tiny_model("llama"), n_ctx=4096, max_waiting=2) as server:
        yield server


def text(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["text"])


def wait_until_idle(running: Running) -> None:
    """Ask until the queue has room; requests are answered in turn, so then all are done."""
    while running.http.post("/v1/completions", json=ask(max_tokens=1)).status_code == 503:
        pass


def test_concurrent_answers_are_not_mixed(tiny_model: Callable[[str], Path]) -> None:
    prompts = [f"{word} and" for word in ("the", "name", "one", "tree", "user", "draft")]
    with serving(tiny_model("llama"), tree=FORCED) as server, ThreadPoolExecutor(6) as pool:

        def post(prompt: str) -> str:
            return text(server.http.post("/v1/completions", json=ask(prompt=prompt)))

        alone = [post(prompt) for prompt in prompts]
        assert list(pool.map(post, prompts * 3)) == alone * 3


def test_concurrent_streams_are_not_mixed(tiny_model: Callable[[str], Path]) -> None:
    prompts = ["the and", "name and", "one and"]
    with serving(tiny_model("llama"), tree=FORCED) as server, ThreadPoolExecutor(3) as pool:

        def stream(prompt: str) -> str:
            body = ask(prompt=prompt, stream=True)
            with server.http.stream("POST", "/v1/completions", json=body) as response:
                lines = [x[6:] for x in response.iter_lines() if x.startswith("data: {")]
            return "".join(json.loads(line)["choices"][0]["text"] for line in lines)

        alone = [text(server.http.post("/v1/completions", json=ask(prompt=p))) for p in prompts]
        assert list(pool.map(stream, prompts * 3)) == alone * 3


@contextmanager
def streaming(running: Running, body: dict[str, Any]) -> Iterator[None]:
    """A stream whose first line was read; the client leaves at the end of the block."""
    with running.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        yield


def test_more_requests_than_may_wait(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as clients:
        clients.enter_context(held(running.service.session, 1, monkeypatch))
        clients.enter_context(streaming(running, ask(stream=True)))
        for _ in range(2):
            waiting = running.http.stream("POST", "/v1/completions", json=ask(stream=True))
            clients.enter_context(waiting)
        refused = running.http.post("/v1/completions", json=ask())
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "queue_full"
    assert refused.headers["retry-after"] == "1"
    wait_until_idle(running)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_answer(
    running: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    body = json.dumps(ask(max_tokens=3000, stream=stream))
    connection = HTTPConnection(running.url.removeprefix("http://"))
    with held(running.service.session, 5, monkeypatch) as told:
        connection.request("POST", "/v1/completions", body)
        assert told.reached.wait(60)
        connection.close()
        assert told.cancelled.wait(60)
    wait_until_idle(running)


@pytest.mark.model
def test_a_client_that_leaves_in_prefill(
    smollm2_q4_0: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    with serving(smollm2_q4_0, n_ctx=8192) as server:
        generate = server.service.session.decoder.generate

        def tell_and_generate(*arguments: Any, **options: Any) -> Iterator[list[int]]:
            begun.set()
            yield from generate(*arguments, **options)

        monkeypatch.setattr(server.service.session.decoder, "generate", tell_and_generate)
        connection = HTTPConnection(server.url.removeprefix("http://"))
        connection.request("POST", "/v1/completions", json.dumps(ask(prompt="word " * 6000)))
        assert begun.wait(60)
        connection.close()
        assert text(server.http.post("/v1/completions", json=ask()))
        metrics = server.http.get("/metrics").text
    assert "edge_tr_tokens_total 20.0" in metrics


def test_a_client_that_leaves_while_it_waits(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = ask(stream=True)
    with held(running.service.session, 1, monkeypatch) as told, streaming(running, body):
        with running.http.stream("POST", "/v1/completions", json=body):
            pass
        assert running.http.get("/health").status_code == 200
        assert not told.cancelled.is_set()
    wait_until_idle(running)


def test_the_next_answer_after_one_that_was_left(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = text(running.http.post("/v1/completions", json=ask()))
    with held(running.service.session, 3, monkeypatch) as told:
        with streaming(running, ask(prompt="another", stream=True)):
            pass
        assert told.cancelled.wait(60)
    wait_until_idle(running)
    assert text(running.http.post("/v1/completions", json=ask())) == expected


def test_answers_end_when_the_server_stops(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    has_begun = threading.Event()

    def read() -> None:
        body = ask(max_tokens=400, stream=True)
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                lines.append(line)
                has_begun.set()

    with serving(tiny_model("llama")) as server:
        reader = threading.Thread(target=read)
        with held(server.service.session, 2, monkeypatch) as told:
            reader.start()
            assert has_begun.wait(60)
            server.server.stop()
            assert told.cancelled.wait(60)
        reader.join()
    assert "the server is stopping" in lines[-2]


def test_a_failure_in_the_middle_of_a_stream_is_told(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = running.service.session.decoder

    def fail(*arguments: Any, **options: Any) -> Iterator[list[int]]:
        decoder.stats = options["stats"]
        yield [5]
        raise MemoryError

    monkeypatch.setattr(decoder, "generate", fail)
    with running.http.stream("POST", "/v1/completions", json=ask(stream=True)) as response:
        lines = [line for line in response.iter_lines() if line]
    assert json.loads(lines[-1][6:])["error"]["type"] == "server_error"


def test_a_failure_is_told_with_its_status(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> Iterator[list[int]]:
        raise MemoryError

    monkeypatch.setattr(running.service.session.decoder, "generate", fail)
    response = running.http.post("/v1/completions", json=ask())
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the server failed"
