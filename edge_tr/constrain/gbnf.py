"""GBNF, llama.cpp's form of grammars: read, checked, and written as llguidance reads it.

llama.cpp's own parser and sampler never see a grammar: they end the process where a rule is
missing, where brackets nest deep or where no token fits, and take minutes where a grammar is
ambiguous. Each character of the grammar becomes one lexeme, so that what is allowed next is
the same as with llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from edge_tr.constrain.constraint import Rules
from edge_tr.errors import ConfigError

MAX_CHARACTERS = 1 << 19
MAX_NESTING = 64
MAX_REPEAT = 65_536
"""Largest number in braces, and largest product of such numbers that are nested."""

_NAME = re.compile(r"[a-zA-Z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_REPEAT = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_TOKEN = re.compile(r"(!?)<(?:\[(\d+)\]|([^>]*))>")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"} | {c: c for c in '\\"[]-'}
_HEX = {"x": 2, "u": 4, "U": 8}
_HIGHEST = 0x10FFFF

FindToken = Callable[[str], "int | None"]
"""The one token that a text such as ``<think>`` is, or None."""


class _Item(NamedTuple):
    """A part of a rule as llguidance writes it; an empty text matches the empty text."""

    text: str
    most: int = 1
    """Product of the nested repetitions inside."""


def grammar_rules(grammar: str, find_token: FindToken = lambda text: None) -> Rules:
    """What a text must follow; see ``to_lark``."""
    from llguidance import LLMatcher

    return Rules(LLMatcher.grammar_from_lark(to_lark(grammar, find_token)), "grammar")


def to_lark(grammar: str, find_token: FindToken = lambda text: None) -> str:
    """A grammar in the syntax of llguidance.

    Parameters
    ----------
    find_token : see ``FindToken``; for the tokens that a grammar names.

    Raises
    ------
    ConfigError : it cannot be read, a rule is missing, or it is too long, nested too deep or
        repeated too often; the text says where.
    """
    if len(grammar) > MAX_CHARACTERS:
        raise ConfigError(
            f"the grammar has {len(grammar)} characters; at most {MAX_CHARACTERS} are allowed"
        )
    if "\0" in grammar:
        raise ConfigError("the grammar holds a NUL character")
    rules = _Reader(grammar, find_token).rules()
    if "root" not in rules:
        raise ConfigError("the grammar has no rule named root")
    letter = "R" if _is_regular(rules) else "r"
    names = {name: f"{letter}{i}" for i, name in enumerate(rules)}
    lines = ['%llguidance {"no_forcing": true}', f"start: {names['root']}"]
    for name, text in rules.items():
        lines.append(f"{names[name]}: " + _REFERENCE.sub(lambda found: names[found[1]], text))
    return "\n".join(lines) + "\n"


_MAX_INLINE = 4
"""Brackets nested so deep get a rule of their own: llguidance reads few levels of them. Digits of
JSON numbers, as llama-cpp-python's converter writes them, are 16 deep."""

_GROUP = "group:"
"""Begins the names of these rules; no name in a grammar holds a colon."""

_REFERENCE = re.compile(r"@([a-zA-Z0-9:-]+)@")
"""A rule's name in the text of an item; no other text holds the mark."""


def _is_regular(rules: dict[str, str]) -> bool:
    """Whether no rule leads back to itself and none names a token; then the whole grammar is one
    lexeme, and being ambiguous costs nothing."""
    if any("<[" in text for text in rules.values()):
        return False
    left = {name: set(_REFERENCE.findall(text)) for name, text in rules.items()}
    while free := [name for name, asked in left.items() if not asked & left.keys()]:
        for name in free:
            del left[name]
    return not left


class _Reader:
    """A position in a grammar."""

    def __init__(self, text: str, find_token: FindToken) -> None:
        self._text, self._find_token = text, find_token
        self._at = 0
        self._nesting = 0
        self._asked: dict[str, int] = {}
        self._groups: dict[str, str] = {}

    def rules(self) -> dict[str, str]:
        """Text of each rule, by name."""
        rules: dict[str, str] = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._match(_NAME, "the name of a rule")[0]
            self._skip(_SPACE)
            if not self._text.startswith("::=", self._at):
                raise self._wrong("::=")
            self._at += 3
            self._skip(_SPACE_AND_LINES)
            rules[name] = self._alternatives(nested=False).text or '""'
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._wrong("the end of the line")
            self._skip(_SPACE_AND_LINES)
        for name, at in self._asked.items():
            if name not in rules:
                raise ConfigError(f"line {self._line(at)} of the grammar: no rule is named {name}")
        return rules | self._groups

    def _alternatives(self, *, nested: bool) -> _Item:
        found = [self._sequence(nested=nested)]
        while self._text.startswith("|", self._at):
            self._at += 1
            self._skip(_SPACE_AND_LINES)
            found.append(self._sequence(nested=nested))
        most = max(item.most for item in found)
        texts = list(dict.fromkeys(item.text for item in found if item.text))
        joined = " | ".join(texts)
        if texts and len(texts) < len(dict.fromkeys(item.text for item in found)):
            joined = f"({joined})?"
        return _Item(joined, most)

    def _sequence(self, *, nested: bool) -> _Item:
        items: list[_Item] = []
        space = _SPACE_AND_LINES if nested else _SPACE
        while self._at < len(self._text):
            here = self._text[self._at]
            if here in "*+?{":
                if not items:
                    raise self._wrong("something to repeat")
                items[-1] = self._repeated(items[-1])
            else:
                item = self._item(here)
                if item is None:
                    break
                items.append(item)
            self._skip(space)
        text = " ".join(item.text for item in items if item.text)
        return _Item(text, max((item.most for item in items), default=1))

    def _item(self, here: str) -> _Item | None:
        if here == '"':
            return self._literal()
        if here == "[":
            return _Item(self._characters())
        if here == ".":
            self._at += 1
            return _Item("/(?s:.)/")
        if here == "(":
            return self._group()
        if here in "<!":
            return _Item(self._token())
        if _NAME.match(here):
            at = self._at
            name = self._match(_NAME, "the name of a rule")[0]
            self._asked.setdefault(name, at)
            return _Item(f"@{name}@")
        return None

    def _group(self) -> _Item:
        if self._nesting == MAX_NESTING:
            raise ConfigError(
                f"line {self._line(self._at)} of the grammar: brackets are nested more than "
                f"{MAX_NESTING} deep"
            )
        self._nesting += 1
        self._at += 1
        self._skip(_SPACE_AND_LINES)
        inside = self._alternatives(nested=True)
        if not self._text.startswith(")", self._at):
            raise self._wrong(")")
        self._at += 1
        self._nesting -= 1
        if self._nesting % _MAX_INLINE == _MAX_INLINE - 1 and inside.text:
            name = f"{_GROUP}{len(self._groups)}"
            self._groups[name] = inside.text
            return inside._replace(text=f"@{name}@")
        return inside._replace(text=f"({inside.text})" if inside.text else "")

    def _repeated(self, item: _Item) -> _Item:
        sign = self._text[self._at]
        if sign in "*+?":
            self._at += 1
            return item._replace(text=item.text and f"({item.text}){sign}")
        found = self._match(_REPEAT, "{m}, {m,} or {m,n}")
        low = self._number(found[1])
        high = self._number(found[3]) if found[3] else None if found[2] else low
        if high is not None and high < low:
            raise ConfigError(f"the grammar repeats something {found[0]}, which is impossible")
        most = item.most * max(low, high or 0, 1)
        if most > MAX_REPEAT:
            raise ConfigError(
                f"the grammar repeats something {most} times; at most {MAX_REPEAT} are allowed"
            )
        if not item.text or high == 0:
            return _Item("")
        times = f"{low}" if high == low else f"{low},{'' if high is None else high}"
        return _Item(f"({item.text}){{{times}}}", most)

    def _number(self, digits: str) -> int:
        if len(digits) > 9:
            raise ConfigError(f"the grammar repeats something {digits:.12}... times; at most "
                              f"{MAX_REPEAT} are allowed")  # fmt: skip
        return int(digits)

    def _literal(self) -> _Item:
        self._at += 1
        characters = []
        while not self._text.startswith('"', self._at):
            characters.append(f"/{_escaped(self._character())}/")
        self._at += 1
        text = " ".join(characters)
        return _Item(f"({text})" if len(characters) > 1 else text)

    def _characters(self) -> str:
        """A class of characters; an empty one matches the empty text, as in llama.cpp."""
        self._at += 1
        is_not = self._text.startswith("^", self._at)
        self._at += is_not
        ranges, n = [], 0
        while not self._text.startswith("]", self._at):
            n += 1
            low = high = self._character()
            if self._text.startswith("-", self._at) and self._text[self._at + 1 :][:1] != "]":
                self._at += 1
                high = self._character()
            if low <= high:
                ranges.append(f"{_escaped(low)}-{_escaped(high)}")
        self._at += 1
        if n == 0:
            return ""
        if not ranges and not is_not:
            raise self._wrong("characters in the order of their codes")
        return f"/[{'^' * is_not}{''.join(ranges)}]/" if ranges else "/(?s:.)/"

    def _character(self) -> int:
        """The code of the next character; of an escape the one that it stands for."""
        at = self._at
        if at >= len(self._text):
            raise self._wrong("a character")
        code = ord(self._text[at])
        self._at += 1
        if code == 0x5C:
            letter = self._text[at + 1 : at + 2]
            self._at += 1
            if letter in _HEX:
                digits = self._text[at + 2 : at + 2 + _HEX[letter]]
                if not re.fullmatch(f"[0-9a-fA-F]{{{_HEX[letter]}}}", digits):
                    self._at = at
                    raise self._wrong(f"{_HEX[letter]} hexadecimal digits")
                self._at += len(digits)
                code = int(digits, 16)
            elif letter in _ESCAPES and letter:
                code = ord(_ESCAPES[letter])
            else:
                self._at = at
                raise self._wrong("an escape of GBNF")
        if code > _HIGHEST or 0xD800 <= code < 0xE000:
            self._at = at
            raise self._wrong("a character of Unicode")
        return code

    def _token(self) -> str:
        at = self._at
        found = self._match(_TOKEN, "a token such as <think> or <[12]>")
        token = self._number(found[2]) if found[2] else self._find_token(found[0].lstrip("!"))
        if token is None:
            self._at = at
            raise self._wrong("a token of this model")
        return f"<[{'^' if found[1] else ''}{token}]>"

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._wrong(what)
        self._at = found.end()
        return found

    def _line(self, at: int) -> int:
        return self._text.count("\n", 0, at) + 1

    def _wrong(self, expected: str) -> ConfigError:
        found = repr(self._text[self._at : self._at + 20]) if self._text[self._at :] else "its end"
        return ConfigError(
            f"line {self._line(self._at)} of the grammar: expected {expected}, found {found}"
        )


def _escaped(code: int) -> str:
    """A character in a regular expression."""
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:X}}}"
