"""Tools that a model may call: how it is told of them, and calls read from its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from edge_tr.chat.text import first_of, n_undecided
from edge_tr.errors import ConfigError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""Marks around a call, as Hermes and Qwen models write them."""


class Call(NamedTuple):
    """A call of a tool; the arguments are JSON text."""

    name: str
    arguments: str


def check_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The tools of a request, each of the form that OpenAI gave them.

    Raises
    ------
    ConfigError : one has another form.
    """
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ConfigError(
                "each tool must be of the form "
                '{"type": "function", "function": {"name": ..., "parameters": ...}}'
            )
    return list(tools)


def chosen_tools(tools: Sequence[dict[str, Any]], choice: Any) -> list[dict[str, Any]]:
    """The tools of which one must be called, none where the model decides.

    Parameters
    ----------
    tools : checked tools.
    choice : "none", "auto", "required", or a dict that names a function.

    Raises
    ------
    ConfigError : another value, or a name that no tool has.
    """
    if choice in ("none", "auto"):
        return []
    if choice == "required":
        if not tools:
            raise ConfigError("tool_choice 'required' needs tools, and there are none")
        return list(tools)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name is None:
        raise ConfigError(
            f"tool_choice {choice!r} is not allowed; use none, auto, required or "
            '{"type": "function", "function": {"name": ...}}'
        )
    named = [tool for tool in tools if tool["function"]["name"] == name]
    if not named:
        known = ", ".join(tool["function"]["name"] for tool in tools) or "there are none"
        raise ConfigError(f"tool_choice names {name!r}, which is not among the tools: {known}")
    return named


def call_schema(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """JSON schema of a call of one of the tools."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"].get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def instructions(tools: Sequence[dict[str, Any]]) -> str:
    """What to tell a model whose chat template knows no tools."""
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You may call these functions:\n{described}\n"
        "To call one, answer with nothing but its name and arguments as JSON, like this:\n"
        f'{OPEN}\n{{"name": "...", "arguments": {{...}}}}\n{CLOSE}'
    )


def call_text(name: str, arguments: str) -> str:
    """A call as `instructions` asks the model to write it."""
    return f'{OPEN}\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n{CLOSE}'


def parse_calls(text: str, tools: Sequence[dict[str, Any]]) -> list[Call]:
    """The calls that a text holds: JSON objects between marks, or the text itself as one.

    Empty where anything in it is no call of one of the tools.
    """
    names = [tool["function"]["name"] for tool in tools]
    parts = text.split(OPEN)[1:] if OPEN in text else [text]
    calls = []
    for part in parts:
        try:
            value = json.loads(part.split(CLOSE)[0])
        except ValueError:
            return []
        if not isinstance(value, dict) or value.get("name") not in names:
            return []
        arguments = value.get("arguments", value.get("parameters"))
        if not isinstance(arguments, dict):
            return []
        calls.append(Call(value["name"], json.dumps(arguments, ensure_ascii=False)))
    return calls


class CallFilter:
    """Holds back the part of a streamed answer that is, or may become, a call of a tool."""

    def __init__(self) -> None:
        self._shown = False
        self.held = ""

    def add(self, text: str) -> str:
        """The text that may be shown, of what was held and this."""
        self.held += text
        start = self.held.lstrip()
        if not self._shown and (not start or start[0] == "{"):
            return ""
        begin = first_of(self.held, (OPEN,))
        if begin < 0:
            begin = len(self.held) - n_undecided(self.held, (OPEN,))
        shown, self.held = self.held[:begin], self.held[begin:]
        self._shown = self._shown or bool(shown.strip())
        return shown
