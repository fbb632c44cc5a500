"""Who may ask the server: hosts, origins, the API key, sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest
from serving import Running, serving

from edge_tr.answer import AnswerConfig
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.history import History
from edge_tr.errors import ConfigError
from edge_tr.server.config import ServerConfig
from edge_tr.server.run import listen
from edge_tr.server.service import Service
from edge_tr.session import Session

KEY = "a-secret"
PAGE = "https://chat.example"
ASK = {"prompt": "the", "max_tokens": 1}


@pytest.fixture(scope="module")
def running(tiny_model: Callable[[str], Path]) -> Iterator[Running]:
    model = tiny_model("llama")
    with serving(model, api_key=KEY, origins=(PAGE,), max_request_bytes=1000) as server:
        yield server


@pytest.fixture
def ask(running: Running) -> Callable[..., httpx.Response]:
    """``ask(**headers)``: the response to a completion with the right key."""

    def post(**headers: str) -> httpx.Response:
        given = {"Authorization": f"Bearer {KEY}"} | headers
        return running.http.post("/v1/completions", json=ASK, headers=given)

    return post


def code(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", f"Basic {KEY}"])
def test_a_key_that_is_wrong(ask: Callable[..., httpx.Response], given: str) -> None:
    response = ask(Authorization=given)
    assert response.status_code == 401
    assert code(response) == "invalid_api_key"


def test_a_key_that_is_missing(running: Running) -> None:
    assert running.http.post("/v1/completions", json=ASK).status_code == 401


def test_the_key_of_openai_s_client(running: Running) -> None:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as client:
        assert client.completions.create(model="any", prompt="the", max_tokens=1).choices


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/completions", "/other"])
def test_what_needs_the_key(running: Running, path: str) -> None:
    assert running.http.get(path).status_code == 401


@pytest.mark.parametrize("path", ["/", "/health"])
def test_what_needs_no_key(running: Running, path: str) -> None:
    assert running.http.get(path).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:80", "LOCALHOST:1"])
def test_names_of_the_loopback(ask: Callable[..., httpx.Response], host: str) -> None:
    assert ask(Host=host).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[::1", "10.0.0.1"])
def test_another_name_that_points_here(ask: Callable[..., httpx.Response], host: str) -> None:
    response = ask(Host=host)
    assert response.status_code == 403
    assert code(response) == "wrong_host"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1"])
def test_a_page_of_another_origin(ask: Callable[..., httpx.Response], origin: str) -> None:
    response = ask(Origin=origin)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


def test_the_own_page_may_ask(ask: Callable[..., httpx.Response], running: Running) -> None:
    assert ask(Origin=running.url).status_code == 200


def test_an_origin_that_is_allowed(ask: Callable[..., httpx.Response]) -> None:
    assert ask(Origin=PAGE).headers["access-control-allow-origin"] == PAGE


def test_a_browser_asks_first(running: Running) -> None:
    headers = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    response = running.http.options("/v1/completions", headers=headers)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == PAGE


def test_a_request_that_is_too_large(running: Running) -> None:
    response = running.http.post(
        "/v1/completions",
        json=ASK | {"prompt": "x" * 1000},
        headers={"Authorization": f"Bearer {KEY}"},
    )
    assert response.status_code == 413
    assert code(response) == "request_too_large"


def test_a_request_of_unknown_size_that_is_too_large(running: Running) -> None:
    response = running.http.post(
        "/v1/completions",
        content=(b" " * 100 for _ in range(11)),
        headers={"Authorization": f"Bearer {KEY}"},
    )
    assert response.status_code == 413


def test_the_page_runs_nothing_of_others(running: Running) -> None:
    policy = running.http.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'nonce-")


def test_the_address_is_loopback_by_default() -> None:
    assert ServerConfig().is_loopback


@pytest.mark.parametrize(
    ("host", "expected"), [("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)]
)
def test_which_addresses_are_loopback(host: str, expected: bool) -> None:
    assert ServerConfig(host=host).is_loopback is expected


@pytest.mark.parametrize(
    ("host", "name", "expected"),
    [
        ("127.0.0.1", "10.0.0.1", False),
        ("127.0.0.1", "127.0.0.2", True),
        ("127.0.0.1", "box", False),
        ("127.0.0.1", "chat.example", True),
        ("0.0.0.0", "10.0.0.1", True),
        ("0.0.0.0", "fe80::1", True),
        ("0.0.0.0", "box", True),
        ("0.0.0.0", "box.local", True),
        ("0.0.0.0", "localhost", True),
        ("0.0.0.0", "chat.example", True),
        ("0.0.0.0", "evil.example", False),
        ("0.0.0.0", None, False),
    ],
)
def test_names_that_requests_may_be_addressed_to(
    host: str, name: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Box")
    config = ServerConfig(host=host, hosts=("chat.example",))
    assert config.allows_host(name) is expected


def test_a_port_that_is_taken() -> None:
    with listen(ServerConfig(port=0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"):
            listen(ServerConfig(port=port))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 65536),
        ("max_waiting", -1),
        ("max_request_bytes", 0),
        ("api_key", " "),
        ("api_key", "\u00e9"),
        ("origins", ("*",)),
        ("origins", ("chat.example",)),
        ("origins", ("https://chat.example/",)),
    ],
)
def test_a_setting_that_is_not_allowed(name: str, value: object) -> None:
    with pytest.raises(ConfigError):
        ServerConfig(**{name: value})  # type: ignore[arg-type]


def test_each_of_several_keys_may_ask(tiny_model: Callable[[str], Path]) -> None:
    with serving(tiny_model("llama"), api_key=("one", "two")) as server:
        for key, status in (("one", 200), ("two", 200), ("three", 401), ("one two", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.http.get("/v1/models", headers=headers).status_code == status


def test_a_private_history_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="private_history True is not allowed without an API key"):
        ServerConfig(private_history=True)


@pytest.mark.parametrize("private", [True, False])
def test_texts_of_one_key_draft_for_another_only_where_they_are_shared(
    tiny_model: Callable[[str], Path], private: bool
) -> None:
    context = ContextConfig(n_ctx=512, n_threads=1, n_threads_batch=1)
    with Session(tiny_model("llama"), context=context, draft=DraftConfig(start="empty")) as session:
        config = ServerConfig(api_key=("a", "b"), private_history=private)
        service = Service(session, "tiny", None, config)
        drafter = session.decoder.drafter
        assert isinstance(drafter, GrownTreeDrafter)

        async def ask(client: int, seed: int) -> History:
            prompt = [(7 * i + seed) % session.target.n_vocab for i in range(30)]
            answer = session.answer(prompt, AnswerConfig(max_tokens=12))
            async for _ in service.start(answer, client):
                pass
            return drafter.history

        async def ask_all() -> list[History]:
            return [await ask(client, seed) for seed, client in enumerate((0, 1, 0, 1))]

        histories = asyncio.run(ask_all())
        service.worker.stop()
        service.close()
    n_texts = [history.n_texts for history in histories]
    if private:
        assert histories[0] is histories[2] is not histories[1] is histories[3]
        assert n_texts == [2, 1, 2, 1]
        assert histories[0].capacity == DraftConfig.n_history // 2
    else:
        assert len(set(map(id, histories))) == 1
        assert n_texts == [3, 3, 3, 3]
