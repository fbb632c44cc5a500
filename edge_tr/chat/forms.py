"""How a model writes its calls of tools and its reasoning: learnt from its chat template."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from edge_tr.chat.history import Arguments
from edge_tr.chat.template import ChatTemplate, probe_calls

Kind = Literal["json", "named", "tagged", "python", "channels"]

_TOOL = {
    "type": "function",
    "function": {
        "name": "qtool",
        "description": "qtells",
        "parameters": {
            "type": "object",
            "properties": {"qarg": {"type": "string"}, "qkey": {"type": "integer"}},
        },
    },
}
_REASONING = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<thinking>", "</thinking>"),
    ("<mm:think>", "</mm:think>"),
)


@dataclass(frozen=True)
class CallForm:
    """How calls are written.

    Attributes
    ----------
    kind : "json": one JSON text with name and arguments; "named": a name, then arguments as JSON;
        "tagged": a name, then each argument between marks; "python": as in Python; "channels":
        messages to a recipient (gpt-oss).
    opener : text in front of the first call; may be empty.
    again : text in front of each further call.
    closer : text behind a call.
    arg_open, arg_equal, arg_close : for "tagged": around and between key and value.
    number_equal, number_close : the same around a value that is no text.
    """

    kind: Kind
    opener: str
    again: str = ""
    closer: str = ""
    arg_open: str = ""
    arg_equal: str = ""
    arg_close: str = ""
    number_equal: str = ""
    number_close: str = ""


@dataclass(frozen=True)
class ReplyForm:
    """How answers are written.

    Attributes
    ----------
    calls : how calls are, or None where the template shows none.
    reasoning : marks around reasoning, or None where the template knows none.
    """

    calls: CallForm | None = None
    reasoning: tuple[str, str] | None = None

    @property
    def trigger(self) -> str:
        """Text that begins the calls; empty where they stand at the start of the answer."""
        return "" if self.calls is None else self.calls.opener.partition("call00000")[0].strip()

    def marks(self) -> str:
        """All the marks in one text, to know which control tokens must be shown."""
        calls = self.calls
        texts = list(self.reasoning or ())
        if calls is not None:
            texts += [calls.opener, calls.again, calls.closer, calls.arg_open, calls.arg_equal,
                      calls.arg_close, calls.number_equal, calls.number_close]  # fmt: skip
            if calls.kind == "channels":
                texts.append("<|start|><|channel|><|message|><|constrain|><|end|>")
        return "\0".join(texts)


def learn(template: ChatTemplate) -> ReplyForm:
    """The form of a template's answers."""
    source = template.source
    if "<|channel|>" in source and "<|message|>" in source:
        return ReplyForm(CallForm("channels", ""))
    pairs = [pair for pair in _REASONING if pair[0].strip() in source or pair[1] in source]
    return ReplyForm(_learn_calls(template), pairs[0] if pairs else None)


def _learn_calls(template: ChatTemplate) -> CallForm | None:
    source = template.source
    if "List of tools: " in source:
        return CallForm("python", "<|tool_call_start|>[", closer="]<|tool_call_end|>")
    if not template.knows_calls:
        return CallForm("json", "<|tool_call|>") if "<|tool_call|>" in source else None
    one, other = {"qarg": "qvalue"}, {"qarg": "qvalue", "qkey": 7}
    text = _tail(template, [one])
    if "qtool" not in text:
        return None
    at = text.index("qtool")
    for start in range(at):
        if text[start] in "{[":
            found = _decoded(text, start)
            if found is not None and found[1] > at:
                return CallForm("json", text[:start], closer=text[found[1] :])
    pair = _tail(template, [one, one])
    again = _further(pair, text[:at])
    for start in range(at, len(text)):
        if text[start] == "{":
            found = _decoded(text, start)
            if found is not None and found[0] == one:
                return CallForm("named", text[:at], again, text[found[1] :])
    return _learn_tagged(text, _tail(template, [other]), again)


def _learn_tagged(text: str, both: str, again: str) -> CallForm | None:
    at = text.index("qtool")
    key = text.find("qarg", at)
    value = text.find("qvalue", key)
    if key < 0 or value < 0:
        return None
    head, equal, tail = text[at + 5 : key], text[key + 4 : value], text[value + 6 :]
    opener = text[:at]
    if equal in ('="', "='"):
        return CallForm("python", opener, closer=tail[1:].lstrip(")"))
    start = both.find("qvalue") + 6
    next_key = both.find("qkey", start)
    seven = both.find("7", next_key)
    if next_key < 0 or seven < 0:
        return CallForm("tagged", opener, again, "", head, equal, tail, equal, tail)
    between = both[start:next_key]
    open_ = _common_end(head, between)
    close = between[: len(between) - len(open_)]
    close = close or tail[: n_same(tail, between)]
    number_equal, number_tail = both[next_key + 4 : seven], both[seven + 1 :]
    closer = tail[n_same(tail, close) :]
    number_close = number_tail[: len(number_tail) - len(closer)] if closer else close
    return CallForm(
        "tagged", opener, again, closer, open_, equal, close, number_equal, number_close
    )


def _tail(template: ChatTemplate, arguments: list[dict[str, Any]]) -> str:
    """What the template writes for an answer with calls of one tool, without the end of turn."""
    calls = [
        {"id": f"call0000{i}", "type": "function",
         "function": {"name": "qtool", "arguments": Arguments(given)}}
        for i, given in enumerate(arguments)
    ]  # fmt: skip
    messages = probe_calls(calls)[:2]
    asked = messages[:1]
    before = template.attempt(asked, [_TOOL])
    text = template.attempt(messages, [_TOOL], goes_on=False)
    plain = [*asked, {"role": "assistant", "content": "qsays"}]
    said = template.attempt(plain, [_TOOL], goes_on=False)
    text = text[cut(text, n_same(before, text)) :]
    end = said.rpartition("qsays")[2]
    same = _common_end(text, end)
    text = text[: len(text) - len(same) + _broken(same)]
    return _without_reasoning(text)


def cut(text: str, at: int) -> int:
    """The place to cut a text, moved to the left so that no mark such as ``<|name|>`` is cut in
    two."""
    head = text[:at]
    start = max(head.rfind("<"), head.rfind("["))
    is_open = start >= 0 and not re.search(r"[>\]\n ]", head[start:])
    return start if is_open else at


def _without_reasoning(text: str) -> str:
    for _, close in _REASONING:
        head, mark, rest = text.partition(close)
        if mark and "qtool" in rest:
            text = rest
        elif mark:
            text = head
    return text


def _further(pair: str, opener: str) -> str:
    """Text in front of a second call, the part that the first one's has too."""
    first = pair.find("qtool")
    second = pair.find("qtool", first + 5)
    if first < 0 or second < 0:
        return opener
    same = _common_end(pair[:second], opener)
    return same[_broken(same) :] if _broken(same) < len(same) else same


def _broken(text: str) -> int:
    """Length of the rest of a mark that a text begins with."""
    found = re.match(r"[^<\[\s]*[>\]]", text)
    return found.end() if found else 0


def n_same(a: str, b: str) -> int:
    """Length of the beginning that two texts share."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _common_end(a: str, b: str) -> str:
    return a[len(a) - n_same(a[::-1], b[::-1]) :]


def _decoded(text: str, start: int) -> tuple[Any, int] | None:
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return value, end
