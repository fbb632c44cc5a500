"""How drafted texts compare with plain ones, and what llama.cpp's own rounding explains.

A target model rounds differently in batches of different widths, so that two tokens that are
almost equally probable can change places. The control is how far apart the same text's logits
are with nothing drafted; a first difference where plain decoding saw a gap of more than twice
the control is a violation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_tr.decode.lanes import LaneCache
from edge_tr.errors import ConfigError
from edge_tr.target import Batch, Float32, Int32, TargetModel

Known = dict[tuple[bytes, tuple[int, ...]], list[tuple[int, int, float]]]
"""The two best tokens of each row of a text and their gap, by prompt and text."""


@dataclass(frozen=True)
class TextPair:
    """One prompt and what plain and drafted decoding made of it, greedy."""

    name: str
    prompt: Int32
    plain: Sequence[int]
    drafted: Sequence[int]

    @property
    def first_difference(self) -> int | None:
        """Index of the first token that differs, None where none does.

        Raises
        ------
        ConfigError : texts of different lengths; they cannot be compared.
        """
        if len(self.plain) != len(self.drafted):
            raise ConfigError(
                f"{self.name}: {len(self.plain)} plain and {len(self.drafted)} drafted tokens "
                "cannot be compared"
            )
        pairs = enumerate(zip(self.plain, self.drafted, strict=True))
        return next((i for i, (a, b) in pairs if a != b), None)


@dataclass(frozen=True)
class Difference:
    """A first difference and the gap of the two best logits there under one-token decoding."""

    name: str
    index: int
    gap: float


@dataclass(frozen=True)
class EqualityReport:
    """The four numbers of an honest report.

    Attributes
    ----------
    n_texts, n_identical : texts compared, and those that are equal token for token.
    differences : the others.
    control : largest change of the difference of the two best logits between one-token
        decoding and batches of ``control_widths``, over ``n_positions``, nothing drafted.
    """

    n_texts: int
    n_identical: int
    differences: tuple[Difference, ...]
    control: float
    control_widths: tuple[int, ...]
    n_positions: int

    @property
    def violations(self) -> tuple[Difference, ...]:
        """First differences that the control does not explain."""
        return tuple(d for d in self.differences if d.gap > 2 * self.control)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "n_texts": self.n_texts,
            "identical_share": round(self.n_identical / self.n_texts, 4),
            "first_difference_gaps": [round(d.gap, 4) for d in self.differences],
            "control": round(self.control, 4),
            "control_widths": list(self.control_widths),
            "control_positions": self.n_positions,
            "violations": len(self.violations),
        }


def compare_texts(
    target: TargetModel,
    pairs: Sequence[TextPair],
    *,
    widths: Sequence[int],
    n_positions: int = 2000,
    more_texts: Sequence[Int32] = (),
    known: Known | None = None,
) -> EqualityReport:
    """Compare drafted with plain texts; clears the target's cache.

    Parameters
    ----------
    target : the model in the configuration of both, not used by a decoder now.
    widths : tokens in a batch, those of the drafted steps; the control takes them in turn.
    n_positions : least number of positions of the control, as far as the texts go.
    more_texts : int32[n] each, texts for the control where the plain ones do not suffice.
    known : what one-token decoding found in texts, written; calls over the same texts share it.

    Raises
    ------
    ConfigError : nothing to compare, texts of different lengths, or no width.
    """
    if not pairs or not widths:
        raise ConfigError("there are no texts to compare, or no widths to compare them at")
    scorer = _Scorer(target, {} if known is None else known)
    differences = []
    for pair in pairs:
        index = pair.first_difference
        if index is not None:
            *_, (_, _, gap) = scorer.best_two(pair.prompt, pair.plain[:index])
            differences.append(Difference(pair.name, index, gap))
    control, n_scored = 0.0, 0
    texts = [(pair.prompt, pair.plain[:-1]) for pair in pairs]
    for prompt, text in [*texts, *((more[:1], more[1:].tolist()) for more in more_texts)]:
        if n_scored >= n_positions:
            break
        control = max(control, scorer.largest_change(prompt, text, widths))
        n_scored += len(text) + 1
    return EqualityReport(
        n_texts=len(pairs),
        n_identical=len(pairs) - len(differences),
        differences=tuple(differences),
        control=control,
        control_widths=tuple(widths),
        n_positions=n_scored,
    )


class _Scorer:
    def __init__(self, target: TargetModel, known: Known) -> None:
        self.target = target
        self.known = known
        self.lanes = LaneCache(target)
        self.batch = Batch(target.n_batch, target.n_lanes)

    def rows(self, prompt: Int32, text: Sequence[int], widths: Sequence[int]) -> Iterator[Float32]:
        """The row after the prompt and after each token of the text, read in batches of the
        ``widths`` in turn; each is valid until the next one is asked for."""
        self.lanes.recover(0)
        for first in range(0, len(prompt), self.target.n_batch):
            read = self._read(prompt[first : first + self.target.n_batch], 1)
        yield read[0]
        tokens = np.array(text, dtype=np.int32)
        first = turn = 0
        while first < len(tokens):
            chunk = tokens[first : first + widths[turn % len(widths)]]
            yield from self._read(chunk, len(chunk))
            first += len(chunk)
            turn += 1

    def _read(self, chunk: Int32, want_rows: int) -> Float32:
        self.batch.set_chain(chunk, self.lanes.n_past, want_rows=want_rows)
        rows = self.target.decode(self.batch)
        self.lanes.extend(len(chunk))
        return rows

    def best_two(self, prompt: Int32, text: Sequence[int]) -> list[tuple[int, int, float]]:
        """The two best tokens of each row under one-token decoding, and their gap."""
        best = []
        for row in self.rows(prompt, text, [1]):
            first, second = np.argpartition(row, -2)[[-1, -2]]
            best.append((int(first), int(second), float(row[first] - row[second])))
        return best

    def largest_change(self, prompt: Int32, text: Sequence[int], widths: Sequence[int]) -> float:
        """Largest change of the difference between the two tokens that are best under
        one-token decoding."""
        key = (prompt.tobytes(), tuple(text))
        if key not in self.known:
            self.known[key] = self.best_two(prompt, text)
        best = self.known[key]
        batched = self.rows(prompt, text, widths)
        return max(
            abs(gap - float(row[first] - row[second]))
            for (first, second, gap), row in zip(best, batched, strict=True)
        )
