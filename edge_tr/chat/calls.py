"""Tools that a model may call, and calls read from its answer."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from edge_tr.chat.forms import CallForm, ReplyForm
from edge_tr.chat.history import clean
from edge_tr.errors import ConfigError

PLAIN_TRIGGER = "<tool_call>"
"""What a model begins a call with that was told of tools in plain text."""

_PLAIN = CallForm("json", PLAIN_TRIGGER)
_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args")
_QUOTE = '<|"|>'


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
        if (
            not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
            or not function["name"]
            or not isinstance(function.get("parameters") or {}, dict)
            or not isinstance(function.get("description") or "", str)
        ):
            raise ConfigError(
                "each tool must be of the form "
                '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
            )
    return [{**clean(tool), "type": "function"} for tool in tools]


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
            f"tool_choice {choice!r:.60} is not allowed; use none, auto, required or "
            '{"type": "function", "function": {"name": ...}}'
        )
    named = [tool for tool in tools if tool["function"]["name"] == name]
    if not named:
        known = ", ".join(tool["function"]["name"] for tool in tools) or "there are none"
        raise ConfigError(f"tool_choice names {name!r:.60}, not one of the tools: {known}")
    return named


def call_schema(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """JSON schema of a call of one of the tools; what ``$ref`` points to moves along."""
    calls, definitions = [], {}
    for i, tool in enumerate(tools):
        parameters = tool["function"].get("parameters") or {"type": "object"}
        definitions[f"tool{i}"] = _moved(parameters, f"#/$defs/tool{i}")
        properties = {
            "name": {"const": tool["function"]["name"]},
            "arguments": {"$ref": f"#/$defs/tool{i}"},
        }
        calls.append({
            "type": "object",
            "properties": properties,
            "required": ["name", "arguments"],
            "additionalProperties": False,
        })  # fmt: skip
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**schema, "$defs": definitions}


def _moved(schema: Any, place: str) -> Any:
    """A schema whose references still lead to what they did, at another place."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {
        key: value if key in ("const", "enum", "default", "examples") else _moved(value, place)
        for key, value in schema.items()
        if key not in ("$id", "$schema")
    }
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = place + reference[1:]
    return moved


def parse_calls(
    text: str, tools: Sequence[dict[str, Any]], form: ReplyForm | None = None
) -> list[Call]:
    """The calls that the part of an answer from its trigger on holds, in the form of the model's
    template or as JSON.

    Empty where anything in it is no call of one of the tools.
    """
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    forms = [form.calls] if form is not None and form.calls is not None else []
    for one in (*forms, _PLAIN):
        found = _READERS[one.kind](text, one, functions)
        if found and all(name in functions for name, _ in found):
            return [Call(n, json.dumps(given, ensure_ascii=False)) for n, given in found]
    return []


_Found = list[tuple[str, dict[str, Any]]]


def _read_json(text: str, form: CallForm, functions: dict[str, Any]) -> _Found:
    found: _Found = []
    at = 0
    while start := re.compile(r"[{\[]").search(text, _behind(text, form.opener.strip(), at)):
        value = _decode(text, start.start())
        if value is None:
            at = start.end() if text[start.start()] == "[" else len(text)
            continue
        at = value[1]
        for item in value[0] if isinstance(value[0], list) else [value[0]]:
            call = _call_of(item, functions)
            if call is None:
                return []
            found.append(call)
    return found


def _behind(text: str, mark: str, at: int) -> int:
    place = text.find(mark, at) if mark else -1
    return place + len(mark) if place >= 0 else at


def _call_of(item: Any, functions: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of a call as JSON."""
    if not isinstance(item, dict):
        return None
    if len(item) == 1 and isinstance(next(iter(item.values())), dict) and item.keys() <= (
        functions.keys()):  # fmt: skip
        return next(iter(item.items()))
    inner = item.get("function")
    if isinstance(inner, dict):
        item = inner
    name = next((item[key] for key in _NAMES if isinstance(item.get(key), str)), None)
    given: Any = next((item[key] for key in _ARGUMENTS if key in item), {})
    if isinstance(given, str):
        decoded = _decode(given, 0)
        given = decoded[0] if decoded else None
    if name is None or not isinstance(given, dict):
        return None
    return name, given


def _read_named(text: str, form: CallForm, functions: dict[str, Any]) -> _Found:
    found: _Found = []
    for name, at in _names(text, form, functions):
        start = text.find("{", at)
        value = _decode(text, start) if start >= 0 else None
        if value is None or not isinstance(value[0], dict):
            return []
        found.append((name, value[0]))
    return found


def _names(text: str, form: CallForm, functions: dict[str, Any]) -> list[tuple[str, int]]:
    """The name of each call, and where it ends."""
    mark = (form.again or form.opener).strip()
    names = sorted(functions, key=len, reverse=True)
    places = [found.end() for found in re.finditer(re.escape(mark), text)] if mark else [0]
    found = []
    for place in places:
        at = place + len(text[place:]) - len(text[place:].lstrip())
        name = next((name for name in names if text.startswith(name, at)), None)
        if name is not None:
            found.append((name, at + len(name)))
    return found


def _read_tagged(text: str, form: CallForm, functions: dict[str, Any]) -> _Found:
    found: _Found = []
    places = _names(text, form, functions)
    ends = [at for _, at in places[1:]] + [len(text)]
    for (name, at), end in zip(places, ends, strict=False):
        part = text[at:end]
        known = (functions[name].get("parameters") or {}).get("properties")
        given = _read_quoted(part) if _QUOTE in form.arg_equal else (
            _read_arguments(part, form, known if isinstance(known, dict) else {}))  # fmt: skip
        if given is None:
            return []
        found.append((name, given))
    return found


def _read_arguments(part: str, form: CallForm, known: dict[str, Any]) -> dict[str, Any] | None:
    given: dict[str, Any] = {}
    at = 0
    opener = form.arg_open.strip()
    while (start := part.find(opener, at)) >= 0:
        start += len(opener)
        equals = {e for e in (form.arg_equal, form.number_equal) if e}
        places = [(part.find(e.strip(), start), e) for e in equals]
        place, equal = min((p for p in places if p[0] >= 0), default=(-1, ""))
        if place < 0:
            return None
        key = part[start:place].strip()
        if key.startswith("/"):
            break
        begin = place + len(equal.strip())
        close = form.arg_close.replace("qarg", key)
        end = part.find(close.strip(), begin)
        if end < 0:
            return None
        given[key] = _value(part[begin:end], equal, close, known.get(key))
        at = end + len(close.strip())
    return given


def _value(text: str, equal: str, close: str, schema: Any) -> Any:
    """A value between marks; a text is taken as it is, apart from the line breaks of the form."""
    if equal.endswith("\n"):
        text = text.removeprefix("\n")
    if close.startswith("\n"):
        text = text.removesuffix("\n")
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_quoted(part: str) -> dict[str, Any] | None:
    """Arguments with bare keys and texts between ``<|"|>`` (Gemma 4)."""
    start, end = part.find("{"), part.rfind("}")
    pieces = part[start : end + 1].split(_QUOTE)
    pieces[::2] = [re.sub(r"([\w.-]+)\s*:", r'"\1":', piece) for piece in pieces[::2]]
    pieces[1::2] = [json.dumps(piece) for piece in pieces[1::2]]
    value = _decode("".join(pieces), 0) if start >= 0 else None
    return value[0] if value is not None and isinstance(value[0], dict) else None


def _read_python(text: str, form: CallForm, _functions: dict[str, Any]) -> _Found:
    start = text.find("[")
    end = text.rfind("]")
    try:
        tree = ast.parse(text[start : end + 1], mode="eval").body
        calls = tree.elts if isinstance(tree, ast.List) else []
        return [
            (
                ast.unparse(call.func),
                clean({k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}),
            )
            for call in calls
            if isinstance(call, ast.Call)
        ]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError, ConfigError):
        return []


def _read_channels(text: str, _form: CallForm, _functions: dict[str, Any]) -> _Found:
    found: _Found = []
    for part in text.split("<|start|>"):
        to = re.search(r"to=functions\.([\w.-]+)", part)
        _, mark, body = part.partition("<|message|>")
        value = _decode(body, body.find("{")) if to and mark else None
        if to and value is not None and isinstance(value[0], dict):
            found.append((to[1], value[0]))
    return found


_READERS = {
    "json": _read_json,
    "named": _read_named,
    "tagged": _read_tagged,
    "python": _read_python,
    "channels": _read_channels,
}


def _decode(text: str, start: int) -> tuple[Any, int] | None:
    if start < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
