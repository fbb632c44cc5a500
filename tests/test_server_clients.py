"""What clients, web pages and health checks send, and bodies that nobody should."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from serving import NAME, Running, serving

PAGE = "https://chat.example"
HELLO = [{"role": "user", "content": "Hello"}]
ASK = {"prompt": "the of", "max_tokens": 4, "temperature": 0}
CHAT = {"messages": HELLO, "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def running(tiny_model: Callable[[str], Path]) -> Iterator[Running]:
    with serving(tiny_model("llama"), origins=(PAGE,), n_ctx=1024) as server:
        yield server


def raw(running: Running, request: str, *, half_closed: str = "") -> str:
    """What comes back for the bytes of a request, until the server closes; the client's half is
    closed "early" or when the answer has begun, "late"."""
    place = urlsplit(running.url)
    with socket.create_connection((place.hostname, place.port), timeout=60) as client:
        client.sendall(request.encode())
        data = client.recv(1) if half_closed == "late" else b""
        if half_closed:
            client.shutdown(socket.SHUT_WR)
        while part := client.recv(1 << 16):
            data += part
    return data.decode()


def posted(path: str, body: dict[str, Any], version: str = "1.1") -> str:
    text = json.dumps(body)
    return (
        f"POST {path} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {len(text)}\r\n\r\n{text}"
    )


def test_a_page_asks_for_the_headers_of_openai_s_client(running: Running) -> None:
    wanted = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os"
    headers = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": wanted,
    }
    response = running.http.options("/v1/chat/completions", headers=headers)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == PAGE
    allowed = response.headers["access-control-allow-headers"].replace(" ", "").split(",")
    assert {name.lower() for name in allowed} >= set(wanted.split(","))


@pytest.mark.parametrize("prefix", ["/v1", ""])
@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/models", None),
        ("/chat/completions", CHAT),
        ("/completions", ASK),
        ("/embeddings", {"input": "the"}),
    ],
)
def test_paths_with_and_without_v1(
    running: Running, prefix: str, path: str, slash: str, body: dict[str, Any] | None
) -> None:
    method = "GET" if body is None else "POST"
    response = running.http.request(method, f"{prefix}{path}{slash}", json=body)
    assert response.status_code == 200
    assert response.json()["object"] in ("list", "chat.completion", "text_completion")


@pytest.mark.parametrize("path", [f"/v1/models/{NAME}", f"/models/{NAME}"])
def test_a_model_by_its_name(running: Running, path: str) -> None:
    assert running.http.get(path).json()["id"] == NAME


def test_health_in_http_1_0_without_a_host(running: Running) -> None:
    answer = raw(running, "GET /health HTTP/1.0\r\n\r\n")
    assert answer.startswith("HTTP/1.1 200")
    assert answer.endswith('{"status": "ok", "model": "loaded"}')


def test_http_1_1_without_a_host_is_refused(running: Running) -> None:
    answer = raw(running, "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answer.startswith("HTTP/1.1 400")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", ["early", "late"])
def test_a_half_closed_connection_gets_its_answer(
    running: Running, version: str, stream: bool, when: str
) -> None:
    ask = ASK | {"max_tokens": 400}
    expected = running.http.post("/v1/completions", json=ask).json()["choices"][0]["text"]
    request = posted("/v1/completions", ask | {"stream": stream}, version)
    answer = raw(running, request, half_closed=when)
    if stream:
        texts = [json.loads(line[6:]) for line in answer.splitlines() if line[:7] == "data: {"]
        assert "".join(chunk["choices"][0]["text"] for chunk in texts) == expected
    else:
        assert json.loads(answer[answer.index("\r\n\r\n{") :])["choices"][0]["text"] == expected


def test_embeddings_of_token_ids_are_those_of_their_texts(running: Running) -> None:
    def vectors(given: object) -> list[list[float]]:
        response = running.http.post("/v1/embeddings", json={"input": given})
        assert response.status_code == 200
        return [item["embedding"] for item in response.json()["data"]]

    model = running.service.session.model
    ids = [model.tokenize(text).tolist() for text in ("the of", "and")]
    texts = vectors(["the of", "and"])
    assert [pytest.approx(text) for text in texts] == vectors(ids)
    assert [pytest.approx(texts[0])] == vectors(ids[0])


@pytest.mark.parametrize("seed", [-1, 0, (1 << 32) - 1, 1 << 32, 0x123456789ABCDEF0, (1 << 64) - 1])
def test_a_seed_of_64_bits(running: Running, seed: int) -> None:
    body = ASK | {"temperature": 1.5, "max_tokens": 24, "seed": seed}
    texts = [running.http.post("/v1/completions", json=body).json() for _ in "12"]
    texts = [answer["choices"][0]["text"] for answer in texts]
    assert (texts[0] == texts[1]) is (seed not in (-1, (1 << 32) - 1))


def test_seeds_that_differ_above_32_bits_give_other_texts(running: Running) -> None:
    texts = set()
    for high in range(4):
        body = ASK | {"temperature": 1.5, "max_tokens": 24, "seed": (high << 32) + 5}
        texts.add(running.http.post("/v1/completions", json=body).json()["choices"][0]["text"])
    assert len(texts) == 4


@pytest.mark.parametrize("seed", [-2, 1 << 64, 1.5, "one"])
def test_a_seed_that_is_not_allowed(running: Running, seed: object) -> None:
    response = running.http.post("/v1/completions", json=ASK | {"seed": seed})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "seed"


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"} | fields]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (message(role=[]), "role [] is not allowed"),
        (message(role=None), "role None is not allowed"),
        (message(role="\ud800"), "is not allowed"),
        (message(role="assistant", tool_calls=True), "tool_calls"),
        (message(role="assistant", tool_calls=[{"function": 3}]), "a tool call of a message"),
        (message(role="assistant", tool_calls=[True]), "a tool call of a message"),
        (message(content=[{"type": "\ud800"}]), "text"),
        (message(content=3), "content"),
        ({"messages": [3]}, "messages"),
        ({"messages": {}}, "messages"),
        ({"logit_bias": {"1" * 4301: 1}}, "its keys must be token ids"),
        ({"logit_bias": {"\ud800": 1}}, "its keys must be token ids"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"temperature": "\ud800"}, "temperature"),
        ({"tools": [{"function": {"name": "\ud800", "parameters": 3}}]}, "each tool must be"),
        ({"tool_choice": {"function": {"name": ["\ud800"]}}}, "tool_choice"),
        ({"response_format": {"type": ["\ud800"]}}, "response_format must be"),
        ({"grammar": "root ::= \ud800"}, "grammar"),
        ({"grammar": ["root"]}, "grammar"),
        ({"grammar": "root ::= " + "(" * 18_700}, "nested more than 64 deep"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
        ({"stop": [[]]}, "stop"),
        ({"stream_options": []}, "stream_options"),
    ],
)
def test_a_body_that_is_not_allowed_is_no_failure_of_the_server(
    running: Running, change: dict[str, Any], told: str
) -> None:
    data = json.dumps(CHAT | change)
    response = running.http.post("/v1/chat/completions", content=data)
    assert response.status_code == 400, response.text
    assert told in response.json()["error"]["message"]
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("text", ["\ud800", "a\udc80b", "\0", "\u2028\uffff"])
def test_texts_that_utf_8_lacks_are_read_all_the_same(running: Running, text: str) -> None:
    for path, body in (
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": text}]}),
        ("/v1/completions", ASK | {"prompt": text, "echo": True}),
        ("/v1/completions", ASK | {"stop": text}),
        ("/v1/embeddings", {"input": text}),
    ):
        assert running.http.post(path, content=json.dumps(body)).status_code == 200
