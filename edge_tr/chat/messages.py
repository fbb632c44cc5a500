"""Messages of a conversation: checked, and written in a model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_tr.chat.tools import call_text, instructions
from edge_tr.errors import ConfigError

Message = dict[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class ChatTemplate:
    """A chat template, as models carry it (``edge_tr.llama.model.chat_template``).

    Parameters
    ----------
    source : the template, in Jinja.
    bos, eos : texts of the tokens that begin and end a text, where the model has them.

    Raises
    ------
    ConfigError : it is not a template.
    """

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        import jinja2
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        self._knows_tools = "tools" in source
        try:
            self._format = Jinja2ChatFormatter(template=source, bos_token=bos, eos_token=eos)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template cannot be read: {error}") from None

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> str:
        """The conversation as one text that the assistant is to continue.

        A template that knows no tools gets them, their calls and results as plain text.

        Raises
        ------
        ConfigError : the template refuses the messages.
        """
        import jinja2

        messages = check_messages(messages)
        if not self._knows_tools:
            messages = _without_tools(messages, tools)
        try:
            return str(self._format(messages=messages, tools=list(tools) or None).prompt)
        except (ValueError, TypeError, jinja2.TemplateError) as error:
            raise ConfigError(f"the model's chat template refuses the messages: {error}") from None


def check_messages(messages: Sequence[Any]) -> list[Message]:
    """The messages with known roles and plain text as content.

    Raises
    ------
    ConfigError : a role or kind of content that is not supported, or no message.
    """
    if not messages:
        raise ConfigError("messages is empty; give at least one")
    return [_check_message(message) for message in messages]


def _check_message(message: Any) -> Message:
    if not isinstance(message, Mapping):
        raise ConfigError(f"a message must be an object with role and content, not {message!r}")
    role = message.get("role")
    if role not in _ROLES:
        raise ConfigError(f"role {role!r} is not allowed; it must be one of {', '.join(_ROLES)}")
    checked: Message = {"role": _ROLES[role], "content": _text(message.get("content"))}
    if message.get("tool_calls"):
        checked["tool_calls"] = [_check_call(call) for call in message["tool_calls"]]
    if role == "tool" and message.get("tool_call_id"):
        checked["tool_call_id"] = message["tool_call_id"]
    return checked


def _text(content: Any) -> str:
    """The content as text; parts of text are joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ConfigError(f"the content of a message must be text, not {content!r}")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ConfigError(f"content of type {kind!r} is not supported; only text is")
        texts.append(part["text"])
    return "\n".join(texts)


def _check_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError("a tool call of a message must hold a function with a name")
    function = {"name": function["name"], "arguments": str(function.get("arguments") or "{}")}
    return {"id": str(call.get("id", "")), "type": "function", "function": function}


def _without_tools(messages: list[Message], tools: Sequence[dict[str, Any]]) -> list[Message]:
    plain: list[Message] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        calls = [call["function"] for call in message.get("tool_calls", ())]
        texts = [content] if content else []
        texts += [call_text(call["name"], call["arguments"]) for call in calls]
        plain.append({"role": role, "content": "\n".join(texts)})
    if tools:
        told = instructions(tools)
        if plain[0]["role"] == "system":
            plain[0]["content"] += f"\n\n{told}"
        else:
            plain.insert(0, {"role": "system", "content": told})
    return plain
