"""Text of users and tools never becomes a control token, though a template writes it among its own.

Each place of a foreign text that could be, or become part of, the text of a control token gets
a mark in place of its first character before a template sees it. Afterwards the control tokens
are looked for while the marks are in place, and what lies between them is read without control
tokens, with the marks turned back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

_FIRST_MARK = 0xF0000
"""Of a private area of Unicode; a mark is this much above the character that it stands for."""


class ControlToken(NamedTuple):
    """A control token of a vocabulary; some take the space before or behind them."""

    id: int
    text: str
    strips_left: bool = False
    strips_right: bool = False


class Shield:
    """Knows the control tokens of a vocabulary.

    Parameters
    ----------
    tokens : those that are read as such where special tokens are read.
    """

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        kept = [t for t in tokens if t.text and ord(t.text[0]) < 1 << 16]
        self._tokens = {token.text: token for token in kept}
        self._lengths = sorted({len(text) for text in self._tokens}, reverse=True)
        self._firsts = frozenset(text[0] for text in self._tokens)
        self._ends = frozenset(text[i:] for text in self._tokens for i in range(1, len(text)))
        self._starts = frozenset(text[:i] for text in self._tokens for i in range(1, len(text)))
        self._longest = max(self._lengths, default=0)

    @property
    def texts(self) -> Iterable[str]:
        """Of the control tokens."""
        return self._tokens.keys()

    def id_of(self, text: str) -> int:
        """The control token of a text."""
        return self._tokens[text].id

    def mark(self, text: str) -> str:
        """The text with marks where it could forge a control token."""
        if not self._tokens or not text:
            return text
        at = set(self._places(text))
        for n in range(min(len(text), self._longest), 0, -1):
            if text[:n] in self._ends and (n < len(text) or len(text) > 2):
                at.add(0)
            if text[-n:] in self._starts:
                at.add(len(text) - n)
        if not at:
            return text
        return "".join(_marked(c) if i in at else c for i, c in enumerate(text))

    def _places(self, text: str) -> Iterable[int]:
        for i, character in enumerate(text):
            if character in self._firsts and self._longest_at(text, i):
                yield i

    def _longest_at(self, text: str, at: int) -> ControlToken | None:
        for length in self._lengths:
            token = self._tokens.get(text[at : at + length])
            if token is not None:
                return token
        return None

    def tokens(self, text: str, read: Callable[[str], Iterable[int]]) -> list[int] | None:
        """Token ids of a text with marks; None where it holds no mark.

        Parameters
        ----------
        read : tokens of a text in which no control token is looked for.
        """
        if not any(_is_mark(c) for c in text):
            return None
        ids: list[int] = []
        start = at = 0
        skip_space = False

        def plain(end: int, token: ControlToken | None) -> None:
            part = text[start:end]
            if skip_space:
                part = part.lstrip()
            if token is not None and token.strips_left:
                part = part.rstrip()
            if part:
                ids.extend(read(unmarked(part)))

        while at < len(text):
            token = self._longest_at(text, at) if text[at] in self._firsts else None
            if token is None:
                at += 1
                continue
            plain(at, token)
            ids.append(token.id)
            skip_space = token.strips_right
            start = at = at + len(token.text)
        plain(len(text), None)
        return ids


def _marked(character: str) -> str:
    return chr(_FIRST_MARK + ord(character)) if ord(character) < 1 << 16 else character


def _is_mark(character: str) -> bool:
    return _FIRST_MARK <= ord(character) < _FIRST_MARK + (1 << 16)


def unmarked(text: str) -> str:
    """The text with each mark turned back into its character."""
    return "".join(chr(ord(c) - _FIRST_MARK) if _is_mark(c) else c for c in text)
