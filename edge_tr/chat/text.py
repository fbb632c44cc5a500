"""Text from tokens: whole characters, nothing of a stop string, each piece with its tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from edge_tr.stats import Stats


@dataclass(frozen=True)
class Logprob:
    """Natural logarithms of probabilities that the model gave, before any sampler setting.

    Attributes
    ----------
    value : of the token itself.
    top : the most probable tokens and theirs, the best first.
    """

    value: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Token:
    """A generated token.

    Attributes
    ----------
    id : of the vocabulary.
    step : the decode step that it came from, counted from 1; 0 is prefill.
    drafted : whether it is an accepted node of a draft tree (and not the bonus token).
    logprob : where it was asked for.
    """

    id: int
    step: int = 0
    drafted: bool = False
    logprob: Logprob | None = None


@dataclass(frozen=True)
class Piece:
    """A part of the text and the tokens that complete it; a cut character has no text yet.

    Attributes
    ----------
    stats : what the generation had done when the last of the tokens was there.
    """

    text: str
    tokens: tuple[Token, ...]
    stats: Stats = field(default_factory=Stats, compare=False)


class TextBuilder:
    """Turns the bytes of tokens into pieces that may be shown.

    A character that several tokens make up is given out whole, with the last of them; bytes
    that are no UTF-8 become U+FFFD. Text that may be the beginning of a stop string is held
    back until it is clear. The stop string that is complete first ends the text.

    Parameters
    ----------
    stops : strings that end the text and are no part of it; empty ones are ignored.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._tokens: tuple[Token, ...] = ()
        self._stats = Stats()
        self._held: list[Piece] = []
        self.stopped = False

    def add(self, data: bytes, token: Token, stats: Stats | None = None) -> list[Piece]:
        """The pieces that a token's bytes make final; after a stop string there are none.

        Parameters
        ----------
        data, token : the bytes, and what they are of.
        stats : of the generation up to this token.
        """
        self._tokens += (token,)
        self._stats = stats or self._stats
        text = self._decode(data)
        if self.stopped or not text:
            return []
        self._held.append(Piece(text, self._tokens, self._stats))
        self._tokens = ()
        held = "".join(piece.text for piece in self._held)
        end = first_of(held, self._stops)
        if end >= 0:
            self.stopped = True
            pieces = self._release(end)
            self._held = []
            return pieces
        return self._release(len(held) - n_undecided(held, self._stops))

    def finish(self) -> list[Piece]:
        """What was held back, at the end of the tokens; a character that was cut is left out."""
        if self.stopped:
            return []
        pieces, self._held = self._held, []
        if self._tokens:
            pieces.append(Piece("", self._tokens, self._stats))
        self._tokens = ()
        return pieces

    def _release(self, n_characters: int) -> list[Piece]:
        """Give out the first ``n_characters`` of what is held back."""
        pieces = []
        while n_characters and self._held:
            piece = self._held.pop(0)
            if len(piece.text) > n_characters:
                rest = replace(piece, text=piece.text[n_characters:], tokens=())
                piece = replace(piece, text=piece.text[:n_characters])
                self._held.insert(0, rest)
            n_characters -= len(piece.text)
            pieces.append(piece)
        return pieces


def first_of(text: str, markers: Sequence[str]) -> int:
    """Where the marker that is complete first begins in the text; -1 where there is none.

    So the outcome is the same however the text comes in parts.
    """
    found = [(text.find(marker) + len(marker), text.find(marker)) for marker in markers]
    return min((ends for ends in found if ends[1] >= 0), default=(0, -1))[1]


def n_undecided(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of the text that is the beginning of a marker."""
    for n in range(min(len(text), max(map(len, markers), default=1) - 1), 0, -1):
        if any(marker.startswith(text[-n:]) for marker in markers):
            return n
    return 0
