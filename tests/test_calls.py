"""Tools: what is allowed, calls read from an answer, what a stream may show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge_tr.chat.calls import Call, call_schema, check_tools, chosen_tools, parse_calls
from edge_tr.chat.forms import CallForm, ReplyForm
from edge_tr.chat.history import call_text
from edge_tr.chat.reply import Part, ReplyReader
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
        (tool("other"), "'other', not one of the tools: add, find"),
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


def read(
    text: str, form: ReplyForm, prompt: str = "", size: int = 1
) -> tuple[str, str, list[Call]]:
    """Reasoning, content and calls of a text that comes in parts."""
    reader = ReplyReader(form, TOOLS, prompt)
    parts: list[Part] = []
    for at in range(0, len(text), size):
        parts += reader.add(text[at : at + size])
    rest, calls = reader.finish()
    kinds = (
        "".join(p.text for p in [*parts, *rest] if p.kind == k) for k in ("reasoning", "content")
    )
    reasoning, content = kinds
    return reasoning, content, calls


THINKS = ReplyForm(None, ("<think>", "</think>"))
CALLS = [Call("add", "{}")]


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("text", "form", "prompt", "expected"),
    [
        ("plain {text}", ReplyForm(), "", ("", "plain {text}", [])),
        ("a < b", ReplyForm(), "", ("", "a < b", [])),
        ('  {"name": 1}', ReplyForm(), "", ("", '  {"name": 1}', [])),
        ("See. <tool_call>" + '{"name": "add"}', ReplyForm(), "", ("", "See.", CALLS)),
        ("<tool", ReplyForm(), "", ("", "<tool", [])),
        ("<think>\nhm\n</think>\n\nyes", THINKS, "", ("hm", "yes", [])),
        ("hm\n</think>\n\nyes", THINKS, "user\n<think>\n", ("hm", "yes", [])),
        ("<think>hm", THINKS, "", ("hm", "", [])),
        ("yes <think>", THINKS, "", ("", "yes <think>", [])),
        ("</think>yes", THINKS, "", ("", "yes", [])),
        ("<thin", THINKS, "", ("", "<thin", [])),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
            "to=functions.add <|constrain|>json<|message|>{}<|call|>",
            ReplyForm(CallForm("channels", "")),
            "",
            ("hm", "", CALLS),
        ),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes",
            ReplyForm(CallForm("channels", "")),
            "",
            ("hm", "yes", []),
        ),
        (
            "<|tool_call_start|>[add()]<|tool_call_end|>",
            ReplyForm(CallForm("python", "<|tool_call_start|>[")),
            "",
            ("", "", CALLS),
        ),
    ],
)
def test_an_answer_is_taken_apart(
    text: str, form: ReplyForm, prompt: str, expected: Any, size: int
) -> None:
    assert read(text, form, prompt, size) == expected


def test_references_of_parameters_move_with_them() -> None:
    parameters = {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"items": {"$ref": "#"}, "const": {"$ref": 1}}},
    }
    schema = call_schema(
        [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    )
    moved = schema["$defs"]["tool0"]
    assert moved["$ref"] == "#/$defs/tool0/$defs/A"
    assert moved["$defs"]["A"] == {"items": {"$ref": "#/$defs/tool0"}, "const": {"$ref": 1}}


def test_a_call_written_and_read_is_the_same() -> None:
    arguments = json.dumps({"text": 'a "quoted" <b>'})
    assert parse_calls(call_text("find", arguments), TOOLS) == [Call("find", arguments)]
