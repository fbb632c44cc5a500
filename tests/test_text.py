"""Text from tokens: characters, stop strings, and which tokens a piece holds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_tr.chat.text import Piece, TextBuilder, Token


def pieces(parts: list[bytes], stops: list[str]) -> tuple[list[Piece], bool]:
    """What a builder gives for tokens of these bytes, and whether a stop string ended it."""
    builder = TextBuilder(stops)
    found: list[Piece] = []
    for i, part in enumerate(parts):
        found += builder.add(part, Token(i))
        if builder.stopped:
            break
    return found + builder.finish(), builder.stopped


def joined(parts: list[bytes], stops: list[str]) -> str:
    return "".join(piece.text for piece in pieces(parts, stops)[0])


def cut(data: bytes, seed: int) -> list[bytes]:
    """The bytes in parts of 1 to 5."""
    rng = random.Random(seed)
    parts = []
    while data:
        n = rng.randint(1, 5)
        parts.append(data[:n])
        data = data[n:]
    return parts


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="ab c\n😀中", max_size=40),
    stops=st.lists(st.text(alphabet="ab c\n😀中", min_size=1, max_size=10), max_size=4),
    seed=st.integers(0, 1000),
)
def test_text_ends_before_the_stop_that_is_complete_first(
    text: str, stops: list[str], seed: int
) -> None:
    expected = text
    for n in range(len(text) + 1):  # as if it came character by character
        complete = [n - len(stop) for stop in stops if text[:n].endswith(stop)]
        if complete:
            expected = text[: min(complete)]
            break
    assert joined(cut(text.encode(), seed), stops) == expected


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="abc", max_size=40), seed=st.integers(0, 1000))
def test_no_beginning_of_a_stop_is_shown_before_it_is_clear(text: str, seed: int) -> None:
    stop = "abcabcabca"
    builder, shown = TextBuilder([stop]), ""
    for part in cut((text + stop).encode(), seed):
        shown += "".join(piece.text for piece in builder.add(part, Token(0)))
        assert (text + stop).startswith(shown)
        assert stop not in shown
        assert shown == "" or len(shown) <= (text + stop).index(stop)


def test_a_character_comes_whole() -> None:
    found, _ = pieces([b"a", b"\xf0\x9f", b"\x98\x80"], [])
    assert found == [Piece("a", (Token(0),)), Piece("😀", (Token(1), Token(2)))]


def test_a_character_that_the_end_cuts_is_left_out() -> None:
    assert joined([b"a", b"\xf0\x9f"], []) == "a"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert joined([b"a\xff", b"b"], []) == "a\ufffdb"


def test_text_held_back_is_shown_at_the_end() -> None:
    assert joined([b"12", b"3"], ["234"]) == "123"


def test_each_token_is_in_one_piece() -> None:
    found, _ = pieces([b"ab", b"cd", b"\xe4\xb8", b"\xad", b"e"], ["cdx", "dz"])
    assert [token.id for piece in found for token in piece.tokens] == [0, 1, 2, 3, 4]


def test_an_empty_stop_is_ignored() -> None:
    assert pieces([b"ab"], [""])[1] is False


@pytest.mark.parametrize("part", [b"", b"x"])
def test_nothing_comes_after_a_stop(part: bytes) -> None:
    builder = TextBuilder(["b"])
    builder.add(b"abc", Token(0))
    assert builder.add(part, Token(1)) + builder.finish() == []
