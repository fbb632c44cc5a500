"""The plugin, used through ``llm`` itself: the command, Python, asyncio."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llm
import pytest
from click.testing import CliRunner, Result
from llm.cli import cli

from edge_tr import plugin

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["a", "b"]}, "n": {"type": "integer", "maximum": 9}},
    "required": ["name", "n"],
}


@pytest.fixture(scope="module")
def model_file(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: ``llm`` takes seconds to make its database."""
    return tmp_path_factory.mktemp("llm")


@pytest.fixture(autouse=True)
def directories(
    directory: Path, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Directories of their own for ``llm`` and edge_tr; the tiny model is edge-tr/tiny."""
    monkeypatch.setenv("LLM_USER_PATH", str(directory))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(directory))
    (directory / "edge-tr-models.json").write_text(json.dumps({"tiny": str(model_file)}))
    yield
    plugin.close()


OPTIONS: dict[str, Any] = {
    "n_ctx": 512,
    "threads": 1,
    "tree": "b:3,2",
    "max_tokens": 20,
    "seed": 1,
}


def ask(*arguments: str) -> Result:
    """``llm ...`` in this process."""
    return CliRunner().invoke(cli, arguments)


def prompt(*arguments: str, **options: Any) -> Result:
    """``llm prompt`` with the tiny model."""
    given = [("-o", name, str(value)) for name, value in (OPTIONS | options).items()]
    flat = [part for option in given for part in option]
    return ask("prompt", "-m", "edge-tr/tiny", *flat, *arguments)


@pytest.fixture
def model() -> llm.Model:
    return llm.get_model("edge-tr/tiny")


def usage(response: llm.Response) -> Any:
    """Counts of tokens that a response tells."""
    return response.usage()


def test_models_are_listed() -> None:
    out = ask("models", "list").output
    for name in ("edge-tr\n", "edge-tr/smollm2-q4_0\n", "edge-tr/tiny\n"):
        assert f"edge_tr: {name}" in out


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"tiny": 3}', "\ud800"])
def test_a_list_of_files_that_is_damaged_leaves_the_other_models(
    directory: Path, text: str
) -> None:
    file = directory / "edge-tr-models.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    listed = ask("models", "list")
    assert listed.exit_code == 0
    assert "edge_tr: edge-tr" in listed.output
    assert f"edge-tr: warning: {file}" in listed.output
    refused = ask("edge-tr", "remove", "tiny")
    assert refused.exit_code == 1
    assert str(file) in refused.output


def test_the_command_answers() -> None:
    result = prompt("Hello")
    assert result.exit_code == 0
    assert len(result.output) > 10


def test_the_command_answers_at_once_or_in_parts_the_same() -> None:
    assert prompt("Hello").output == prompt("Hello", "--no-stream").output


def test_parts_come_one_by_one(model: llm.Model) -> None:
    parts = list(model.prompt("Hello", **OPTIONS))
    assert len(parts) > 10


def test_options_change_the_answer() -> None:
    assert prompt("Hello", temperature=1.5).output != prompt("Hello").output


def test_the_same_seed_gives_the_same_text() -> None:
    assert prompt("Hello", temperature=1.5).output == prompt("Hello", temperature=1.5).output


def test_an_option_that_is_not_allowed() -> None:
    result = prompt("Hello", top_p=2)
    assert result.exit_code != 0
    assert "top_p" in result.output


def test_a_tree_that_is_not_allowed() -> None:
    result = prompt("Hello", tree="wide")
    assert result.exit_code != 0
    assert "tree wide is not allowed" in result.output


def test_a_stop_text_ends_the_answer(model: llm.Model) -> None:
    text = model.prompt("Hello", **OPTIONS).text()
    stopped = model.prompt("Hello", stop=text[4:7], **OPTIONS).text()
    assert stopped == text[: text.index(text[4:7])]


def test_a_schema_is_followed(model: llm.Model) -> None:
    answer = json.loads(
        model.prompt("Hello", schema=SCHEMA, **OPTIONS | {"max_tokens": 200}).text()
    )
    assert answer["name"] in ("a", "b")
    assert isinstance(answer["n"], int)


def test_a_schema_from_the_command() -> None:
    result = prompt("Hello", "--schema", json.dumps(SCHEMA), max_tokens=200)
    assert set(json.loads(result.output)) == {"name", "n"}


def test_the_system_prompt_is_told(model: llm.Model) -> None:
    plain = model.prompt("Hello", **OPTIONS)
    told = model.prompt("Hello", system="Be brief.", **OPTIONS)
    assert usage(told).input > usage(plain).input


def test_usage_counts_tokens(model: llm.Model) -> None:
    told = usage(model.prompt("Hello", **OPTIONS))
    assert told.output == 20
    assert told.details["drafted"] > 0


def test_a_conversation_reuses_the_cache(model: llm.Model) -> None:
    conversation = model.conversation()
    texts = ("one two", "three", "four")
    told = [usage(conversation.prompt(text, **OPTIONS)) for text in texts]
    reused = [one.details["reused"] for one in told]
    assert reused == sorted(set(reused))
    assert reused[1] >= told[0].input - 1


def test_a_tool_result_is_read(model: llm.Model) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    result = llm.ToolResult(name="add", output="3", tool_call_id="1")
    response = model.prompt("Hello", tools=[add], tool_results=[result], **OPTIONS)
    assert response.text()


def test_a_call_becomes_a_tool_call(model: llm.Model) -> None:
    def add(a: int) -> int:
        """Add."""
        return a

    schema = {
        "type": "object",
        "properties": {
            "name": {"const": "add"},
            "arguments": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
        },
        "required": ["name", "arguments"],
    }
    response = model.prompt("Hello", tools=[add], schema=schema, **OPTIONS | {"max_tokens": 200})
    assert response.text() == ""
    [call] = response.tool_calls()
    assert (call.name, call.arguments) == ("add", {"a": 1})


def test_the_async_model_gives_the_same(model: llm.Model) -> None:
    async def text() -> str:
        return await llm.get_async_model("edge-tr/tiny").prompt("Hello", **OPTIONS).text()

    assert asyncio.run(text()) == model.prompt("Hello", **OPTIONS).text()


def test_two_async_prompts_are_not_mixed(model: llm.Model) -> None:
    async def texts() -> list[str]:
        asked = llm.get_async_model("edge-tr/tiny")
        prompts = [asked.prompt(word, **OPTIONS) for word in ("the", "name")]
        return list(await asyncio.gather(*(prompt.text() for prompt in prompts)))

    assert asyncio.run(texts()) == [model.prompt(w, **OPTIONS).text() for w in ("the", "name")]


def test_a_cancelled_async_prompt_leaves_the_model_usable(model: llm.Model) -> None:
    async def begin_and_cancel() -> None:
        response = llm.get_async_model("edge-tr/tiny").prompt("Hello", **OPTIONS | {"n_ctx": 8000})
        task = asyncio.ensure_future(response.text())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    expected = model.prompt("Hello", **OPTIONS).text()
    asyncio.run(begin_and_cancel())
    assert model.prompt("Hello", **OPTIONS).text() == expected


def test_a_file_is_added_and_removed(model_file: Path) -> None:
    added = ask("edge-tr", "add", "mine", str(model_file))
    assert added.output == f"edge-tr/mine is {model_file}\n"
    assert llm.get_model("edge-tr/mine").prompt("Hello", **OPTIONS).text()
    assert ask("edge-tr", "remove", "mine").exit_code == 0
    with pytest.raises(llm.UnknownModelError):
        llm.get_model("edge-tr/mine")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    result = ask("edge-tr", "add", "mine", str(tmp_path / "text.gguf"))
    assert result.exit_code == 1
    assert "text.gguf" in result.output


def test_a_name_that_was_not_added() -> None:
    result = ask("edge-tr", "remove", "unknown")
    assert result.exit_code == 1
    assert "no model was added as 'unknown'" in result.output
