"""The server as OpenAI's own client sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from serving import NAME, Running, serving

from edge_tr.drafts.template import TreeTemplate

HELLO: Any = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["a", "b"]}, "n": {"type": "integer", "maximum": 9}},
    "required": ["name", "n"],
}
STOPS = [" ", "e", "in", "a", "1", "}", '":', "the", "o", "r", "\n", "s", "an", "2", "x", "ing",
         "re", "on", "t", "er"]  # fmt: skip
"""Of different lengths; some of them are in any text of the tiny model."""


def tool(name: str, **properties: Any) -> Any:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


ADD = tool("add", a={"type": "integer", "maximum": 9}, b={"enum": [1, 2]})
FIND = tool("find", text={"enum": ["x"]})


@pytest.fixture(scope="module")
def running(tiny_model: Callable[[str], Path]) -> Iterator[Running]:
    tree = TreeTemplate.from_breadths([3, 2])
    with serving(tiny_model("llama"), n_ctx=1024, tree=tree) as server:
        yield server


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def chat(client: openai.OpenAI) -> Callable[..., Any]:
    """``chat(**options)``: a seeded answer to Hello."""

    def ask(**options: Any) -> Any:
        given = {"model": NAME, "messages": HELLO, "max_tokens": 24, "seed": 1} | options
        return client.chat.completions.create(**given)

    return ask


def text_of(stream: Any) -> tuple[str, str]:
    """The joined text of a stream and the reason of its end."""
    text, reason = "", ""
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]


def test_a_model_by_its_name(client: openai.OpenAI) -> None:
    assert client.models.retrieve(NAME).owned_by == "edge_tr"


def test_a_model_that_is_not_here(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'other' here"):
        client.models.retrieve("other")


def test_a_conversation(chat: Callable[..., Any]) -> None:
    answer = chat()
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stream_is_the_answer_in_parts(chat: Callable[..., Any], temperature: float) -> None:
    whole = chat(temperature=temperature).choices[0]
    stream = chat(temperature=temperature, stream=True)
    assert text_of(stream) == (whole.message.content, whole.finish_reason)


@pytest.mark.parametrize("stop", STOPS)
def test_a_stream_with_a_stop_is_the_answer(chat: Callable[..., Any], stop: str) -> None:
    whole = chat(stop=stop, max_tokens=60).choices[0]
    stream = chat(stop=stop, max_tokens=60, stream=True)
    assert text_of(stream) == (whole.message.content, whole.finish_reason)


def test_a_stop_ends_the_text(chat: Callable[..., Any]) -> None:
    text = chat(temperature=0).choices[0].message.content
    stopped = chat(temperature=0, stop=[text[5:8]]).choices[0]
    assert stopped.message.content == text[: text.index(text[5:8])]
    assert stopped.finish_reason == "stop"


@pytest.mark.parametrize("n", range(1, 9))
def test_exactly_as_many_tokens_as_asked(chat: Callable[..., Any], n: int) -> None:
    assert chat(max_tokens=n).usage.completion_tokens == n


def test_the_newer_name_of_the_limit(chat: Callable[..., Any]) -> None:
    answer = chat(max_tokens=None, max_completion_tokens=3)
    assert answer.usage.completion_tokens == 3


def test_a_seed_gives_the_same_text(chat: Callable[..., Any]) -> None:
    first, second = (chat(temperature=1.5, seed=7).choices[0].message.content for _ in "12")
    assert first == second


def test_no_seed_gives_other_texts(chat: Callable[..., Any]) -> None:
    texts = {chat(temperature=1.5, seed=None).choices[0].message.content for _ in range(3)}
    assert len(texts) == 3


def test_a_bias_makes_a_token_certain(chat: Callable[..., Any], running: Running) -> None:
    [token] = running.service.session.model.tokenize("x", add_special=False).tolist()
    answer = chat(max_tokens=3, logit_bias={str(token): 100})
    assert answer.choices[0].message.content == "xxx"


def test_a_schema_is_followed(chat: Callable[..., Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    answer = json.loads(chat(response_format=form, max_tokens=200).choices[0].message.content)
    assert answer["name"] in ("a", "b")
    assert isinstance(answer["n"], int)


def test_any_json_object(chat: Callable[..., Any]) -> None:
    answer = chat(response_format={"type": "json_object"}, max_tokens=900, temperature=0)
    choice = answer.choices[0]
    assert choice.message.content.startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)


def test_a_grammar_is_followed(chat: Callable[..., Any]) -> None:
    answer = chat(extra_body={"grammar": 'root ::= "yes" | "no"'}).choices[0]
    assert answer.message.content in ("yes", "no")


def test_characters_of_several_tokens_come_whole(chat: Callable[..., Any]) -> None:
    text = "\U0001f600\u4e2d\u6587\U0001f600"
    stream = chat(extra_body={"grammar": f'root ::= "{text}"'}, max_tokens=100, stream=True)
    parts = [chunk.choices[0].delta.content for chunk in stream]
    assert [part for part in parts if part] == list(text)


def test_nothing_of_a_stop_is_streamed(chat: Callable[..., Any]) -> None:
    form = {"grammar": 'root ::= "one two three four five"'}
    stream = chat(extra_body=form, stop=" three fou", max_tokens=100, stream=True)
    assert text_of(stream) == ("one two", "stop")


def test_what_looks_like_a_stop_is_streamed_after_all(chat: Callable[..., Any]) -> None:
    form = {"grammar": 'root ::= "one two three five"'}
    stream = chat(extra_body=form, stop=" three fou", max_tokens=100, stream=True)
    assert text_of(stream) == ("one two three five", "stop")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_tool_must_be_called(chat: Callable[..., Any], choice: Any) -> None:
    tools = [ADD] if choice == "required" else [FIND, ADD]
    answer = chat(tools=tools, tool_choice=choice, max_tokens=300).choices[0]
    call = answer.message.tool_calls[0].function
    assert call.name == "add"
    assert set(json.loads(call.arguments)) == {"a", "b"}
    assert answer.finish_reason == "tool_calls"


def test_a_streamed_tool_call(chat: Callable[..., Any]) -> None:
    chunks = list(chat(tools=[FIND], tool_choice="required", max_tokens=300, stream=True))
    deltas = [call for c in chunks for call in c.choices[0].delta.tool_calls or ()]
    assert [call.function.name for call in deltas] == ["find"]
    assert json.loads(deltas[0].function.arguments) == {"text": "x"}
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == ""


def test_tools_that_the_model_need_not_call(chat: Callable[..., Any]) -> None:
    assert chat(tools=[ADD]).choices[0].message.content


def test_a_conversation_with_a_tool_result(chat: Callable[..., Any]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    assert chat(messages=turns, tools=[ADD]).choices[0].message.content


def test_parts_of_text_are_one_message(chat: Callable[..., Any]) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    answers = [chat(temperature=0, messages=m).choices[0].message.content for m in (parts, HELLO)]
    assert answers[0] == answers[1]


def test_probabilities_of_each_token(chat: Callable[..., Any]) -> None:
    content = chat(temperature=0, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(content) == 24
    assert all(entry.logprob == entry.top_logprobs[0].logprob < 0 for entry in content)
    assert all(entry.token == entry.top_logprobs[0].token for entry in content)


def test_probabilities_of_a_stream(chat: Callable[..., Any]) -> None:
    options = {"temperature": 0, "logprobs": True, "top_logprobs": 1}
    whole = chat(**options).choices[0].logprobs.content
    entries = []
    for chunk in chat(**options, stream=True):
        if chunk.choices[0].logprobs:
            entries += chunk.choices[0].logprobs.content
    assert [e.token for e in entries] == [e.token for e in whole]
    assert [e.logprob for e in entries] == pytest.approx([e.logprob for e in whole], abs=1e-4)


def test_usage_of_a_stream(chat: Callable[..., Any]) -> None:
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_no_usage_of_a_stream_that_does_not_ask(chat: Callable[..., Any]) -> None:
    assert all(chunk.usage is None and chunk.choices for chunk in chat(stream=True))


def test_reused_tokens_grow_with_each_turn(chat: Callable[..., Any]) -> None:
    turns: list[Any] = []
    reused = []
    for text in ("one and two", "three and four", "five and six"):
        turns.append({"role": "user", "content": text})
        answer = chat(messages=turns, temperature=0)
        reused.append(answer.usage.prompt_tokens_details.cached_tokens)
        turns.append({"role": "assistant", "content": answer.choices[0].message.content})
    assert reused == sorted(set(reused))


def test_timings_tell_of_drafts(chat: Callable[..., Any]) -> None:
    timings = chat(max_tokens=300).timings
    assert timings["draft_n"] > timings["draft_n_accepted"] > 0
    assert timings["predicted_n"] == 300
    assert timings["mat"] > 1


def test_each_token_tells_its_step(chat: Callable[..., Any]) -> None:
    answer = chat(max_tokens=300, extra_body={"steps": True})
    tokens = answer.tokens
    assert len(tokens) == 300
    assert [t["step"] for t in tokens] == sorted(t["step"] for t in tokens)
    bonus = [t["step"] for t in tokens if not t["drafted"]]
    assert bonus == sorted(set(bonus))
    n_accepted = sum(t["drafted"] for t in tokens)
    assert n_accepted in (
        answer.timings["draft_n_accepted"],
        answer.timings["draft_n_accepted"] - 1,
    )


def test_a_stream_does_not_tell_steps_unless_asked(chat: Callable[..., Any]) -> None:
    assert not any(hasattr(chunk, "tokens") for chunk in chat(stream=True))


def test_a_text_is_continued(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="the of", max_tokens=5, temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_a_text_as_tokens(client: openai.OpenAI, running: Running) -> None:
    tokens = running.service.session.model.tokenize("the of").tolist()
    texts = [
        client.completions.create(model=NAME, prompt=p, max_tokens=8, temperature=0).choices[0].text
        for p in ("the of", tokens)
    ]
    assert texts[0] == texts[1]


def test_echo_puts_the_prompt_in_front(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="the of", max_tokens=2, echo=True)
    assert answer.choices[0].text.startswith("the of")


def test_probabilities_of_a_continued_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=NAME, prompt="the of", max_tokens=3, logprobs=2, temperature=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == answer.choices[0].text
    assert logprobs.token_logprobs == [max(top.values()) for top in logprobs.top_logprobs or []]


def test_embeddings_are_unit_vectors(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model=NAME, input=["the of", "and"])
    assert [len(item.embedding) for item in found.data] == [128, 128]
    assert sum(x * x for x in found.data[0].embedding) == pytest.approx(1, abs=1e-5)


def test_embeddings_as_numbers_and_as_base64(client: openai.OpenAI) -> None:
    numbers = client.embeddings.create(model=NAME, input="the", encoding_format="float")
    packed = client.embeddings.create(model=NAME, input="the")
    assert packed.data[0].embedding == pytest.approx(numbers.data[0].embedding, abs=1e-7)


def test_a_prompt_longer_than_the_context(chat: Callable[..., Any]) -> None:
    long: Any = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(openai.BadRequestError, match="a context of 1024 holds") as caught:
        chat(messages=long)
    assert caught.value.code == "context_length_exceeded"


def test_the_answer_ends_with_the_context(chat: Callable[..., Any]) -> None:
    answer = chat(max_tokens=None)
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage.total_tokens <= 1024


@pytest.mark.parametrize(
    ("options", "param", "told"),
    [
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"top_p": "high"}, "top_p", "'high' is not allowed"),
        ({"n": 2}, "n", "2 is not allowed"),
        ({"extra_body": {"functions": [{}]}}, "functions", "use tools and tool_choice"),
        ({"extra_body": {"min_tokens": 3}}, "min_tokens", "not supported"),
        ({"response_format": {"type": "xml"}}, "response_format", "must be"),
        ({"logit_bias": {"word": 1}}, "logit_bias", "word"),
        ({"logit_bias": {"99999": 1}}, None, "token 99999, which the model lacks"),
        ({"messages": []}, None, "messages is empty"),
        ({"messages": [{"role": "robot", "content": ""}]}, None, "role 'robot' is not allowed"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None, "only text"),
        ({"extra_body": {"grammar": "root = broken"}}, None, "expected ::="),
        ({"tools": [ADD], "tool_choice": "sometimes"}, None, "'sometimes' is not allowed"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            None,
            "the JSON schema cannot be followed",
        ),
    ],
)
def test_a_request_that_is_not_allowed(
    chat: Callable[..., Any], options: dict[str, Any], param: str | None, told: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(**options)
    assert told in caught.value.message
    assert caught.value.param == param


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"messages": NaN}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object(running: Running, body: bytes) -> None:
    response = running.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/other", 404), ("GET", "/v1/completions", 405)]
)
def test_a_path_that_is_not_here(running: Running, method: str, path: str, status: int) -> None:
    response = running.http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_health(running: Running) -> None:
    assert running.http.get("/health").json() == {"status": "ok", "model": "loaded"}


def test_metrics_count_tokens(running: Running, chat: Callable[..., Any]) -> None:
    def n_tokens() -> float:
        lines = running.http.get("/metrics").text.splitlines()
        return next(float(x.split()[1]) for x in lines if x.startswith("edge_tr_tokens_total"))

    before = n_tokens()
    chat(max_tokens=5)
    assert n_tokens() == before + 5
