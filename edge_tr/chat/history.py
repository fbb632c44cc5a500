"""A conversation as clients send it, checked, and as chat templates want it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge_tr.errors import ConfigError

Message = dict[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_MAX_NESTING = 128


class Arguments(dict[str, Any]):
    """Arguments of a call. A template that writes them as they are gets JSON, one that takes them
    apart an object."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: object) -> str:
        return f"{self}{other}"

    def __radd__(self, other: object) -> str:
        return f"{other}{self}"


def check_messages(messages: Sequence[Any]) -> list[Message]:
    """The messages with known roles, plain text as content and decoded arguments.

    Raises
    ------
    ConfigError : a role or kind of content that is not supported, or no message.
    """
    if not isinstance(messages, Sequence) or not messages:
        raise ConfigError("messages is empty; give at least one")
    return [_check_message(message) for message in messages]


def _check_message(message: Any) -> Message:
    if not isinstance(message, Mapping):
        raise ConfigError(f"a message must be an object with role and content, not {message!r:.60}")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ConfigError(
            f"role {role!r:.60} is not allowed; it must be one of {', '.join(_ROLES)}"
        )
    checked: Message = {"role": _ROLES[role], "content": _text(message.get("content"))}
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str):
            checked["reasoning_content"] = well_formed(reasoning)
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise ConfigError("tool_calls of a message must be a list")
    if calls:
        checked["tool_calls"] = [_check_call(call) for call in calls]
    for name in ("tool_call_id", "name"):
        if isinstance(message.get(name), str):
            checked[name] = well_formed(message[name])
    return checked


def well_formed(text: str) -> str:
    """The text without lone surrogates, which no encoding can write."""
    return text.encode("utf-8", "replace").decode()


def _text(content: Any) -> str:
    """The content as text; parts of text are joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return well_formed(content)
    if not isinstance(content, list):
        raise ConfigError(f"the content of a message must be text, not {content!r:.60}")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get(kind) if isinstance(kind, str) and kind in ("text", "refusal") else None
        if not isinstance(text, str):
            raise ConfigError(f"content of type {kind!r:.60} is not supported; only text is")
        texts.append(text)
    return well_formed("\n".join(texts))


def _check_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError("a tool call of a message must hold a function with a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise ConfigError(
                f"the arguments of the call of {function['name']!r:.60} are not JSON"
            ) from None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise ConfigError(
            f"the arguments of the call of {function['name']!r:.60} must be an object"
        )
    checked = {"name": well_formed(function["name"]), "arguments": Arguments(clean(arguments))}
    return {"id": well_formed(str(call.get("id", ""))), "type": "function", "function": checked}


def clean(value: Any, level: int = 0) -> Any:
    """A JSON value without lone surrogates.

    Raises
    ------
    ConfigError : it is nested too deep.
    """
    if level > _MAX_NESTING:
        raise ConfigError(f"a value is nested more than {_MAX_NESTING} deep")
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, Mapping):
        return {well_formed(str(key)): clean(item, level + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item, level + 1) for item in value]
    return value


def without_system(messages: Sequence[Message]) -> list[Message]:
    """The same with what the system messages say in front of the first user's."""
    told = [m["content"] for m in messages if m["role"] == "system" and m["content"]]
    rest = [dict(m) for m in messages if m["role"] != "system"]
    if not told:
        return rest
    if not rest or rest[0]["role"] != "user":
        rest.insert(0, {"role": "user", "content": ""})
    rest[0]["content"] = "\n\n".join([*told, rest[0]["content"]]).strip()
    return rest


def joined(messages: Sequence[Message], *, results: bool = False) -> list[Message]:
    """The same with neighbours of one role in one message, and system messages in front.

    Parameters
    ----------
    results : a user's message behind a result of a tool is joined with it too, and results stay
        apart.
    """
    ordered = sorted(messages, key=lambda m: m["role"] != "system")
    done: list[Message] = []
    for message in ordered:
        roles = done[-1]["role"] if done else "", message["role"]
        if (roles == ("tool", "user") if results else False) or (
            roles[0] == roles[1] and not (results and roles[0] == "tool")
        ):
            last = done[-1] = dict(done[-1])
            texts = [t for t in (last["content"], message["content"]) if t]
            last["content"] = "\n\n".join(texts)
            if message.get("tool_calls"):
                last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]
        else:
            done.append(dict(message))
    return done


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """The same with each call in a message of its own, followed by its result."""
    done: list[Message] = []
    waiting = list(messages)
    while waiting:
        message = waiting.pop(0)
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            done.append(message)
            continue
        results = []
        while waiting and waiting[0]["role"] == "tool":
            results.append(waiting.pop(0))
        for i, call in enumerate(calls):
            done.append(message | {"tool_calls": [call], "content": message["content"] * (i == 0)})
            done += [r for r in results if r.get("tool_call_id") == call["id"]] or results[
                i : i + 1
            ]
    return done


def said_before(messages: Sequence[Message]) -> list[Message]:
    """The same with what the assistant says beside its calls in a message before them."""
    done: list[Message] = []
    for message in messages:
        if message.get("tool_calls") and message["content"]:
            done.append({k: v for k, v in message.items() if k != "tool_calls"})
            message = message | {"content": ""}
        done.append(message)
    return done


WriteCalls = Callable[[list[Message]], str]
"""Text of some calls, each with name and arguments."""


def results_as_user(
    messages: Sequence[Message], write: WriteCalls | None = None, *, keep_results: bool = False
) -> list[Message]:
    """The same with calls as plain text of the assistant, and results as text of users.

    Parameters
    ----------
    write : how the model writes calls.
    keep_results : leave the results as they are.
    """
    write = write or _plain_calls
    plain: list[Message] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool" and not keep_results:
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        calls = [call["function"] for call in message.get("tool_calls", ())]
        texts = [content] if content else []
        texts += [write(calls)] if calls else []
        rest = {k: v for k, v in message.items() if k != "tool_calls"}
        plain.append(rest | {"role": role, "content": "\n".join(texts)})
    return plain


def written_as(source: str) -> WriteCalls | None:
    """How calls are written by the families whose templates show tools and results and leave the
    calls to whoever writes the history; None for others."""
    if "List of tools: " in source:
        return _lfm2_calls
    return _granite_calls if "available_tools" in source and "<|tool_call|>" in source else None


def _plain_calls(calls: list[Message]) -> str:
    return "\n".join(call_text(call["name"], str(call["arguments"])) for call in calls)


def _lfm2_calls(calls: list[Message]) -> str:
    texts = []
    for call in calls:
        given = ", ".join(f"{k}={v!r}" for k, v in call["arguments"].items())
        texts.append(f"{call['name']}({given})")
    return f"<|tool_call_start|>[{', '.join(texts)}]<|tool_call_end|>"


def _granite_calls(calls: list[Message]) -> str:
    return "<|tool_call|>" + json.dumps(calls, ensure_ascii=False)


def with_instructions(
    messages: Sequence[Message], tools: Sequence[dict[str, Any]]
) -> list[Message]:
    """The same with a system message that tells of the tools."""
    told = instructions(tools)
    if messages[0]["role"] == "system":
        text = "\n\n".join(t for t in (messages[0]["content"], told) if t)
        return [dict(messages[0]) | {"content": text}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def instructions(tools: Sequence[dict[str, Any]]) -> str:
    """What to tell a model whose chat template knows no tools."""
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You may call these functions:\n{described}\n"
        "To call one, answer with nothing but its name and arguments as JSON, like this:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
    )


def call_text(name: str, arguments: str) -> str:
    """A call as `instructions` asks the model to write it."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
