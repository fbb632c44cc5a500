"""What one method made of one prompt, and what every method can do."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Protocol

from edge_tr.target import Int32

PARTS = ("decode_s", "topk_s", "draft_s", "recycle_s", "lanes_s", "sample_s")
"""Kinds of work of a decoder, by their names in ``Stats``."""


@dataclass
class Outcome:
    """One answer: what it holds and what it cost.

    Attributes
    ----------
    n_tokens : tokens of the answer, the first one and the one that ends the text included.
    n_steps : decode steps after prefill.
    prefill_s, decode_s : up to the first token, and from there to the last one.
    tokens : the answer; empty where a program gives its text only.
    text : the text of such a program.
    error : why there is no answer; everything else is empty then.
    n_to_end, to_end_s : tokens up to the one that ends the text, and seconds until it was there;
        all of them where none does.
    stats : counts and seconds of a decoder of the product, see ``Stats``.
    """

    n_tokens: int = 0
    n_steps: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    n_drafted: int = 0
    n_accepted: int = 0
    tokens: list[int] = field(default_factory=list)
    text: str | None = None
    error: str = ""
    n_to_end: int = 0
    to_end_s: float = 0.0
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether it has a speed: a first token and at least one decode step."""
        return self.n_tokens > 1 and self.n_steps > 0 and self.decode_s > 0

    @property
    def tps(self) -> float:
        """Tokens per second after the first one."""
        return (self.n_tokens - 1) / self.decode_s

    @property
    def total_s(self) -> float:
        """Seconds of all of it."""
        return self.prefill_s + self.decode_s

    @property
    def whole_tps(self) -> float:
        """Tokens per second, prefill included."""
        return self.n_tokens / self.total_s

    @property
    def to_end_tps(self) -> float:
        """Tokens per second up to the end of the text, prefill included."""
        return self.n_to_end / self.to_end_s

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by kind of work, where a decoder told them."""
        return {name: self.stats[name] for name in PARTS if name in self.stats}

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is empty is left out."""
        return {
            name: value for name, value in asdict(self).items() if value not in (None, "", {}, [])
        }


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


def collect(steps: Iterator[list[int]], stop_tokens: Collection[int] = frozenset()) -> Outcome:
    """Run a generation to its end against the clock; each list is one decode step, the first
    one is prefill. Nothing ends at a stop token, but when it was there is noted."""
    tokens: list[int] = []
    moments: list[tuple[int, float]] = []
    started = perf_counter()
    for emitted in steps:
        tokens += emitted
        moments.append((len(tokens), perf_counter() - started))
    if not tokens:
        return Outcome()
    prefill_s, total_s = moments[0][1], moments[-1][1]
    n_to_end = next((i + 1 for i, t in enumerate(tokens) if t in stop_tokens), len(tokens))
    return Outcome(
        len(tokens),
        len(moments) - 1,
        prefill_s,
        total_s - prefill_s,
        tokens=tokens,
        n_to_end=n_to_end,
        to_end_s=next(seconds for n, seconds in moments if n >= n_to_end),
    )


def until_end(steps: Iterator[list[int]], stop_tokens: frozenset[int]) -> Iterator[list[int]]:
    """The steps up to the one that ends the text."""
    for emitted in steps:
        yield emitted
        if emitted[-1] in stop_tokens:
            return
