"""An answer taken apart while it comes: reasoning, what is said, calls of tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from edge_tr.chat.calls import PLAIN_TRIGGER, Call, parse_calls
from edge_tr.chat.forms import ReplyForm
from edge_tr.chat.text import first_of, n_undecided


class Part(NamedTuple):
    """Text of one kind."""

    kind: Literal["content", "reasoning"]
    text: str


class ReplyReader:
    """Takes the text of an answer in parts, and gives out what is settled.

    Parameters
    ----------
    form : how the model writes.
    tools : those that it may call; without any, nothing is read as a call.
    prompt : the end of the prompt as text; reasoning may begin there.
    """

    def __init__(
        self, form: ReplyForm, tools: Sequence[dict[str, Any]] = (), prompt: str = ""
    ) -> None:
        self._form, self._tools = form, tools
        self._channels = form.calls is not None and form.calls.kind == "channels"
        self._reasons = form.reasoning is not None and _is_open(prompt, form.reasoning)
        self._may_reason = form.reasoning is not None and not self._reasons
        self._held = ""
        self._calls = False
        self._said = False
        self._trim = self._reasons

    def add(self, text: str) -> list[Part]:
        """The parts that may be shown, of what was held and this."""
        self._held += text
        if self._calls:
            return []
        if self._channels:
            return self._read_channels()
        parts: list[Part] = []
        while part := self._next():
            if part.text:
                parts.append(part)
        return parts

    def _next(self) -> Part | None:
        """The next part; None where more text is needed."""
        if self._calls or not self._held:
            return None
        if self._reasons:
            assert self._form.reasoning is not None
            return self._until_end(self._form.reasoning[1])
        if self._may_reason and not self._said:
            assert self._form.reasoning is not None
            mark, start = self._form.reasoning[0].strip(), self._held.lstrip()
            if start.startswith(mark):
                self._held = start[len(mark) :]
                self._reasons = self._trim = True
                return Part("reasoning", "")
            close = self._form.reasoning[1]
            if start.startswith(close):  # the prompt began and ended it
                self._held, self._trim = start[len(close) :], True
                return Part("reasoning", "")
            if mark.startswith(start) or close.startswith(start):
                return None
        if self._trim:
            self._held = self._held.lstrip()
            if not self._held:
                return None
            self._trim = False
        return self._content()

    def _until_end(self, mark: str) -> Part | None:
        if self._trim:
            self._held = self._held.lstrip()
            self._trim = not self._held
        marks = (mark, *self._triggers()) if self._tools else (mark,)
        end = first_of(self._held, marks)
        if end < 0:
            text, self._held = self._split(self._settled(marks))
            return Part("reasoning", text) if text else None
        text, self._held = self._held[:end].rstrip(), self._held[end:]
        self._held = self._held.removeprefix(mark)
        self._reasons = self._may_reason = False
        self._trim = True
        return Part("reasoning", text)

    def _content(self) -> Part | None:
        if not self._tools:
            text, self._held = self._held, ""
            self._said = self._said or bool(text.strip())
            return Part("content", text)
        start = self._held.lstrip()
        if not self._said and (not start or start[0] == "{" or self._is_name(start)):
            self._calls = bool(start) and start[0] == "{"
            return None
        marks = self._triggers()
        begin = first_of(self._held, marks)
        self._calls = begin >= 0
        if begin < 0:
            begin = self._settled(marks)
        text, self._held = self._split(begin)
        text = text.rstrip() if self._calls else text
        self._said = self._said or bool(text.strip())
        return Part("content", text) if text and not (self._calls and not text.strip()) else None

    def _is_name(self, start: str) -> bool:
        """Whether the answer begins with a tool's name, for forms that do so."""
        if self._form.calls is None or self._form.trigger or self._form.calls.kind == "json":
            return False
        names = [tool["function"]["name"] for tool in self._tools]
        if any(start.startswith(name) for name in names):
            self._calls = True
        return self._calls or any(name.startswith(start) for name in names)

    def _triggers(self) -> tuple[str, ...]:
        return tuple({self._form.trigger, PLAIN_TRIGGER} - {""})

    def _settled(self, marks: tuple[str, ...]) -> int:
        """Length of what is held without the beginning of a mark, and without space at the end."""
        text = self._held[: len(self._held) - n_undecided(self._held, marks)]
        return len(text.rstrip())

    def _split(self, at: int) -> tuple[str, str]:
        return self._held[:at], self._held[at:]

    def _read_channels(self) -> list[Part]:
        """Messages with a channel each, as gpt-oss writes them."""
        parts: list[Part] = []
        while self._held:
            head, mark, body = self._held.partition("<|message|>")
            if not mark:
                break
            if "to=functions." in head and self._tools:
                self._calls = True
                break
            kind: Literal["content", "reasoning"]
            kind = "reasoning" if "analysis" in head else "content"
            found = re.search(r"<\|(?:end|call|return|start|channel)\|>", body)
            keep = 0 if found else n_undecided(body, ("<|end|>", "<|call|>", "<|return|>"))
            text = body[: found.start()] if found else body[: len(body) - keep]
            if text:
                parts.append(Part(kind, text))
            if not found:
                self._held = head + mark + body[len(text) :]
                break
            self._held = body[found.end() :] if found[0] == "<|end|>" else body[found.start() :]
            if found[0] in ("<|call|>", "<|return|>"):
                self._held = ""
        return parts

    def finish(self) -> tuple[list[Part], list[Call]]:
        """What was held back, at the end: calls, or text that became none."""
        held, self._held = self._held, ""
        calls = parse_calls(held, self._tools, self._form) if self._tools else []
        if calls or not held:
            return [], calls
        if self._channels:
            head, mark, body = held.partition("<|message|>")
            text = body if mark else re.sub(r"<\|[a-z]+\|>.*", "", head, flags=re.DOTALL)
            return [Part("content", text)] if text else [], []
        return [Part("reasoning" if self._reasons else "content", held)], []


def _is_open(prompt: str, marks: tuple[str, str]) -> bool:
    """Whether a prompt ends inside reasoning."""
    return prompt.rfind(marks[0].strip()) > prompt.rfind(marks[1]) and (
        prompt.rstrip().endswith(marks[0].strip())
    )
