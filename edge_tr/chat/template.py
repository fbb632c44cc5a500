"""A model's chat template: what it knows is tried out, and the rest is put in other words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from edge_tr.chat import history
from edge_tr.chat.history import Arguments, Message, check_messages
from edge_tr.errors import ConfigError

_SEAM = "\U000f5ea3\U000f5ea4"
"""Marks the end of an assistant's message that is to be continued."""

_OWN = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token",
                  "raise_exception", "strftime_now", "documents"})  # fmt: skip
"""Variables of templates that a request cannot set."""

_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "qtool",
        "description": "qtells",
        "parameters": {"type": "object", "properties": {"qarg": {"type": "string"}}},
    },
}
_PROBE_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "qtool", "arguments": Arguments(qarg="qvalue")},
}
_OTHER_CALL = {"name": "qtool", "arguments": Arguments(qarg="qother")}
_USER: Message = {"role": "user", "content": "qasks"}


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
        self.source, self._bos, self._eos = source, bos, eos
        self._write = _compiled(source)

    def render(
        self,
        messages: Sequence[Any],
        tools: Sequence[dict[str, Any]] = (),
        *,
        options: Mapping[str, Any] | None = None,
        change: Callable[[str], str] = lambda text: text,
    ) -> str:
        """The conversation as one text that the assistant is to continue; a last message of the
        assistant is continued itself.

        What the template does not know is put in other words: a system message goes in front of
        the user's, tools, calls and results become plain text, neighbours of one role are joined.

        Parameters
        ----------
        options : further variables of the template, such as ``enable_thinking``.
        change : is applied to each text that is not the template's own.

        Raises
        ------
        ConfigError : the template refuses the messages, or an option has a name of ours.
        """
        checked = [_changed(message, change) for message in check_messages(messages)]
        tools = [_changed(tool, change) for tool in tools]
        options = _changed(history.clean(dict(options or {})), change)
        wrong = _OWN & options.keys()
        if wrong:
            raise ConfigError(f"chat_template_kwargs cannot set {', '.join(sorted(wrong))}")
        last = checked[-1]
        goes_on = last["role"] == "assistant" and not last.get("tool_calls")
        if goes_on:
            checked[-1] = last | {"content": last["content"] + _SEAM}
        checked, tools = self._known(checked, tools)
        error: Exception | None = None
        for form in _forms(checked):
            try:
                text = self._render(form, tools, not goes_on, options)
            except _refusals() as refusal:
                error = error or refusal
                continue
            if not _shows_system(form, text):
                continue
            if not goes_on:
                return text
            if _SEAM in text:
                return text[: text.rindex(_SEAM)]
            error = ValueError("it does not show the assistant's last message")
        raise ConfigError(f"the model's chat template refuses the messages: {error!s:.300}")

    def _known(
        self, messages: list[Message], tools: list[dict[str, Any]]
    ) -> tuple[list[Message], list[dict[str, Any]]]:
        """Messages and tools in the words that the template knows."""
        has_calls = any(m["role"] == "tool" or m.get("tool_calls") for m in messages)
        if has_calls and not self._wants_none and not self.knows_calls:
            write = history.written_as(self.source)
            keep = write is not None and self.knows_tools
            messages = history.results_as_user(messages, write, keep_results=keep)
        elif has_calls and self._wants_none:
            messages = history.said_before(messages)
        if any(len(m.get("tool_calls", ())) > 1 for m in messages) and not self._knows_pairs:
            messages = history.one_call_each(messages)
        if tools and not self.knows_tools:
            messages = history.with_instructions(messages, tools)
            tools = []
        if messages[0]["role"] == "system" and not self.knows_system:
            messages = history.without_system(messages)
        return messages, tools

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        goes_on: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        if self._wants_parts:
            messages = [_as_parts(message) for message in messages]
        if self._wants_none:
            messages = [
                m | {"content": m["content"] or None} if m.get("tool_calls") else m
                for m in messages
            ]
        variables = {"add_generation_prompt": goes_on, **(options or {})}
        variables |= {"bos_token": self._bos, "eos_token": self._eos}
        described = [tool["function"] for tool in tools]
        variables["functions"] = json.dumps(described, ensure_ascii=False, indent=4)
        variables["datetime"] = datetime.now().strftime("%b %d %Y")
        try:
            return self._write(
                messages=_copied(messages), tools=_copied(tools) or None, **variables
            )
        except TypeError:
            if tools:
                raise
            return self._write(messages=_copied(messages), tools=[], **variables)

    def attempt(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        *,
        goes_on: bool = True,
    ) -> str:
        """The text of checked messages, or an empty one where the template refuses them."""
        try:
            return self._render(messages, tools, goes_on)
        except _refusals():
            return ""

    @cached_property
    def _knows_pairs(self) -> bool:
        """Whether a message may hold two calls."""
        calls = [_PROBE_CALL, _PROBE_CALL | {"function": _OTHER_CALL}]
        return "qother" in self.attempt(probe_calls(calls), [_PROBE_TOOL])

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether it reads content as a list of parts only."""
        self._wants_parts = False  # while it is tried out
        return "qasks" not in self.attempt([_USER]) and "qasks" in self.attempt([_as_parts(_USER)])

    @cached_property
    def _wants_none(self) -> bool:
        """Whether it shows calls only beside a content of None."""
        self._wants_none = False  # while it is tried out
        if self.knows_calls:
            return False
        self._wants_none = True
        del self.knows_calls
        return self.knows_calls

    @cached_property
    def knows_system(self) -> bool:
        """Whether a system message is shown."""
        return "qsays" in self.attempt([{"role": "system", "content": "qsays"}, _USER])

    @cached_property
    def knows_tools(self) -> bool:
        """Whether it tells the model of tools."""
        text = self.attempt([_USER], [_PROBE_TOOL])
        return "qtool" in text

    @cached_property
    def knows_calls(self) -> bool:
        """Whether calls and their results are shown."""
        text = self.attempt(probe_calls([_PROBE_CALL]), [_PROBE_TOOL])
        return all(word in text for word in ("qtool", "qarg", "qvalue", "qresult"))


def _forms(messages: list[Message]) -> Iterator[list[Message]]:
    """The messages as they are, and in forms that stricter templates take."""
    yield messages
    yield history.joined(messages)
    yield history.one_call_each(messages)
    yield history.joined(history.one_call_each(messages), results=True)
    yield history.without_system(messages)
    yield history.without_system(history.joined(messages))


def _shows_system(messages: list[Message], text: str) -> bool:
    """Whether what a system message says is in the text, plain or as JSON; some templates drop
    it behind a result of a tool."""
    told = [m["content"].strip() for m in messages if m["role"] == "system"]
    return all(t in text or json.dumps(t, ensure_ascii=False)[1:-1] in text for t in told)


def _copied(value: Any) -> Any:
    """A copy for a template that changes what it is given."""
    return _changed(list(value), lambda text: text)


def probe_calls(calls: list[dict[str, Any]], content: str = "") -> list[Message]:
    """A conversation with calls and a result of each."""
    results = [
        {"role": "tool", "tool_call_id": c["id"], "name": c["function"]["name"],
         "content": "qresult"} for c in calls
    ]  # fmt: skip
    return [_USER, {"role": "assistant", "content": content, "tool_calls": calls}, *results]


def _as_parts(message: Message) -> Message:
    return message | {"content": [{"type": "text", "text": message["content"]}]}


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with each text and each key changed; roles and the like stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Arguments):
        return Arguments({change(k): _changed(v, change) for k, v in value.items()})
    if isinstance(value, dict):
        return {
            change(k): v if k in ("role", "type") and isinstance(v, str) else _changed(v, change)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_changed(item, change) for item in value]
    return value


def _refusals() -> tuple[type[Exception], ...]:
    """What a template raises that does not take the messages."""
    import jinja2

    return (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
            jinja2.TemplateError)  # fmt: skip


def _compiled(source: str) -> Callable[..., str]:
    """The function that writes a template, with what Transformers gives templates.

    Raises
    ------
    ConfigError : it is not a template.
    """
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import SandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}``, which marks what to train on."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            parser.stream.skip(1)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source).render
    except (jinja2.TemplateError, RecursionError) as error:
        raise ConfigError(f"the model's chat template cannot be read: {error}") from None


def _refuse(message: object) -> None:
    raise ValueError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
