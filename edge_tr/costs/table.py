"""What a decode step costs on a machine: the measured seconds of each width and context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from edge_tr.errors import ConfigError

Float64 = np.ndarray[Any, np.dtype[np.float64]]

LESSON = 0.01
"""Tokens that later steps gain from what one more drafted node teaches the matrix."""

FIRST_ROWS = 8
"""The first rows of logits cost more than further ones, which share the reading of the weights."""


@dataclass(frozen=True)
class CostTable:
    """Measured seconds of one decode step, T(n).

    Attributes
    ----------
    widths : numbers of tokens in a step, rising, the first is 1.
    contexts : numbers of past tokens, rising.
    seconds : seconds[context][width]; medians of whole steps (lanes, decode, top-k, commit) that
        are as wide as the step before them.
    first_rows_s : seconds that the logits of a prompt's last ``FIRST_ROWS`` tokens cost, above
        those of the last one alone.
    row_s : seconds that each further row of logits costs while a prompt is read.
    change_s : seconds that a step takes longer when it is not as wide as the one before:
        llama.cpp then builds its graph anew.
    steady : False where the machine did something else too while it was measured.

    Raises
    ------
    ConfigError : sizes that do not match, widths that do not rise from 1, a time not above 0.
    """

    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    first_rows_s: float = 0.0
    row_s: float = 0.0
    change_s: float = 0.0
    steady: bool = True

    def __post_init__(self) -> None:
        for name, values in (("widths", self.widths), ("contexts", self.contexts)):
            if not values or any(a >= b for a, b in pairwise(values)):
                raise ConfigError(f"{name} {list(values)} of a cost table must rise")
        if self.widths[0] != 1 or self.contexts[0] < 0:
            raise ConfigError("the widths of a cost table begin at 1, its contexts at 0 or more")
        if len(self.seconds) != len(self.contexts) or any(
            len(row) != len(self.widths) for row in self.seconds
        ):
            raise ConfigError("a cost table has one time for each of its contexts and widths")
        if not all(0 < s < float("inf") for row in self.seconds for s in row):
            raise ConfigError("every time of a cost table must be above 0 seconds")

    def at(self, n_past: int, max_width: int) -> Float64:
        """float64[max_width + 1]; seconds of 0 to ``max_width`` tokens behind ``n_past``.

        Linear between the measured widths and contexts, and beyond them with the last slope,
        never falling. Entry 0 repeats entry 1.
        """
        table = np.array(self.seconds)
        low = high = table[0]
        share = 0.0
        if len(self.contexts) > 1:
            i = int(np.clip(np.searchsorted(self.contexts, n_past), 1, len(self.contexts) - 1))
            low, high = table[i - 1], np.maximum(table[i], table[i - 1])
            share = (n_past - self.contexts[i - 1]) / (self.contexts[i] - self.contexts[i - 1])
        row = low + max(0.0, share) * (high - low)
        wanted = np.arange(max_width + 1, dtype=np.float64)
        wanted[0] = 1
        seconds: Float64 = np.interp(wanted, self.widths, row)
        if max_width > self.widths[-1] and len(row) > 1:
            slope = max(0.0, (row[-1] - row[-2]) / (self.widths[-1] - self.widths[-2]))
            over = np.maximum(0.0, wanted - self.widths[-1])
            seconds += slope * over
        return seconds

    def extended(self, n_past: int, seconds: Mapping[int, float]) -> CostTable:
        """The table with one more context, behind all others.

        Parameters
        ----------
        n_past : the context.
        seconds : of some widths, 1 among them. Each is some times what the longest context took
            before; that factor is interpolated between them, and beyond the widest it stays.

        Raises
        ------
        ConfigError : a context not above the last one, or no plain step.
        """
        if 1 not in seconds:
            raise ConfigError(
                f"seconds of {sorted(seconds)} tokens are not enough; 1 must be there"
            )
        widths = sorted(seconds)
        last = np.interp(widths, self.widths, self.seconds[-1])
        dearer = np.log([seconds[width] for width in widths]) - np.log(last)
        row = np.array(self.seconds[-1]) * np.exp(np.interp(self.widths, widths, dearer))
        return replace(
            self,
            contexts=(*self.contexts, n_past),
            seconds=(*self.seconds, tuple(row.tolist())),
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``from_dict`` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> CostTable:
        """Read what ``to_dict`` wrote.

        Raises
        ------
        ConfigError : something else than a cost table.
        """
        try:
            return cls(
                tuple(int(n) for n in data["widths"]),
                tuple(int(n) for n in data["contexts"]),
                tuple(tuple(float(s) for s in row) for row in data["seconds"]),
                float(data.get("first_rows_s", 0.0)),
                float(data.get("row_s", 0.0)),
                float(data.get("change_s", 0.0)),
                bool(data.get("steady", True)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"this is not a cost table: {error}") from error


def measured_widths(max_width: int) -> list[int]:
    """Widths worth measuring: every one to 16, then around the steps that kernels take."""
    widths = [*range(1, 17), 20, 24, 28, 32, 33, 40, 48, 56, 64, 65, 81, 96, 128]
    return [n for n in widths if n < max_width] + [max_width]


def median_table(
    widths: Sequence[int],
    contexts: Sequence[int],
    samples: dict[tuple[int, int], list[float]],
    **others: Any,
) -> CostTable:
    """The table of the medians of ``samples[context, width]``; a width without samples in some
    context is left out. ``others`` are further fields of the table."""
    known = [w for w in widths if all(samples.get((c, w)) for c in contexts)]
    return CostTable(
        tuple(known),
        tuple(contexts),
        tuple(tuple(float(np.median(samples[c, w])) for w in known) for c in contexts),
        **others,
    )
