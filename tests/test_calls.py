"""Tools: what is allowed, calls read from an answer, what a stream may show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge_tr.chat.calls import Call, CallFilter, call_text, check_tools, chosen_tools, parse_calls
from edge_tr.errors import ConfigError


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


TOOLS = [tool("add"), tool("find")]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "add", "arguments": {"a": 1}}', [Call("add", '{"a": 1}')]),
        ('{"name": "add", "parameters": {"a": 1}}', [Call("add", '{"a": 1}')]),
        (call_text("add", '{"a": "é"}'), [Call("add", '{"a": "é"}')]),
        (
            call_text("add", "{}") + "\n" + call_text("find", "{}"),
            [Call("add", "{}"), Call("find", "{}")],
        ),
        ('<tool_call>{"name": "add", "arguments": {}}', [Call("add", "{}")]),
        ('{"name": "unknown", "arguments": {}}', []),
        ('{"name": "add", "arguments": 3}', []),
        ('{"name": "add", "argu', []),
        ('{"name": ["add"], "arguments": {}}', []),
        ("[1]", []),
        ("a text", []),
        ("", []),
    ],
)
def test_calls_in_a_text(text: str, calls: list[Call]) -> None:
    assert parse_calls(text, TOOLS) == calls


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_the_model_decides(choice: str) -> None:
    assert chosen_tools(TOOLS, choice) == []


def test_any_tool_must_be_called() -> None:
    assert chosen_tools(TOOLS, "required") == TOOLS


def test_one_tool_must_be_called() -> None:
    assert chosen_tools(TOOLS, tool("find")) == [TOOLS[1]]


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (tool("other"), "'other', which is not among the tools: add, find"),
        ("always", "'always' is not allowed"),
        ({"function": 3}, "is not allowed"),
    ],
)
def test_a_choice_that_is_not_allowed(choice: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        chosen_tools(TOOLS, choice)


def test_required_without_tools() -> None:
    with pytest.raises(ConfigError, match="needs tools"):
        chosen_tools([], "required")


@pytest.mark.parametrize("wrong", ["add", {}, {"function": {}}, {"function": {"name": 3}}])
def test_a_tool_of_another_form(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="each tool must be of the form"):
        check_tools([wrong])


def stream(text: str) -> tuple[str, str]:
    """What is shown of a text that comes character by character, and what is held back."""
    held = CallFilter()
    shown = "".join(held.add(character) for character in text)
    return shown, held.held


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain {text}", "plain {text}"),
        ("a < b", "a < b"),
        ('  {"name": 1}', ""),
        ("Let me see. <tool_call>{}", "Let me see. "),
        ("<tool_call>{}", ""),
        ("<tool", ""),
    ],
)
def test_what_a_stream_shows(text: str, shown: str) -> None:
    assert stream(text) == (shown, text[len(shown) :])


def test_a_call_written_and_read_is_the_same() -> None:
    arguments = json.dumps({"text": 'a "quoted" <b>'})
    assert parse_calls(call_text("find", arguments), TOOLS) == [Call("find", arguments)]
