"""What one method made of one prompt, and what every method can do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Protocol

from edge_tr.target import Int32


@dataclass
class Outcome:
    """One answer: what it holds and what it cost.

    Attributes
    ----------
    n_tokens : tokens of the answer, the first one and the one that ends the text included.
    n_steps : decode steps after prefill.
    prefill_s, decode_s : up to the first token, and from there to the last one.
    tokens : the answer; None where a program gives its text only.
    text : the text of such a program.
    error : why there is no answer; everything else is empty then.
    parts : seconds by kind of work, where the method tells them.
    """

    n_tokens: int = 0
    n_steps: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    n_drafted: int = 0
    n_accepted: int = 0
    tokens: list[int] | None = None
    text: str | None = None
    error: str = ""
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether it has a speed: a first token and at least one decode step."""
        return self.n_tokens > 1 and self.n_steps > 0 and self.decode_s > 0

    @property
    def tps(self) -> float:
        """Tokens per second after the first one."""
        return (self.n_tokens - 1) / self.decode_s

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is empty is left out."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "", {})}


class Method(Protocol):
    """One way of generating the greedy answer to a prompt."""

    def answer(self, prompt: Int32, n_tokens: int) -> Outcome:
        """Read the whole prompt, none of it from a cache, and generate up to ``n_tokens``
        tokens; the text ends with the model's end of text.

        Raises
        ------
        EdgeTRError : the method cannot go on at all.
        """

    def save(self) -> None:
        """Keep what was learned, so that a stopped run goes on with it."""

    def close(self) -> None:
        """Free what the method holds."""


def collect(steps: Iterator[list[int]]) -> Outcome:
    """Run a generation to its end against the clock; each list is one decode step, the first
    one is prefill."""
    tokens: list[int] = []
    prefill_s = now = 0.0
    n_steps = -1
    started = perf_counter()
    for emitted in steps:
        now = perf_counter() - started
        if not tokens:
            prefill_s = now
        tokens += emitted
        n_steps += 1
    return Outcome(len(tokens), max(0, n_steps), prefill_s, now - prefill_s, tokens=tokens)


def until_end(steps: Iterator[list[int]], stop_tokens: frozenset[int]) -> Iterator[list[int]]:
    """The steps up to the one that ends the text."""
    for emitted in steps:
        yield emitted
        if emitted[-1] in stop_tokens:
            return
