"""Medians and what can be said about them without assuming a distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, inf, isfinite
from statistics import median
from typing import Any


@dataclass(frozen=True)
class MedianBounds:
    """A median of independent values and its one-sided 95 % bounds by order statistics.

    Whatever the distribution, each value lies above the true median with probability 1/2.
    ``upper`` is the smallest value of the sample that the true median does not exceed in at
    least 95 % of samples; ``lower`` likewise. Under 5 values cannot say it: infinite.
    """

    n: int
    median: float
    lower: float
    upper: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON, where an infinite bound is null."""
        bounds = {"lower": self.lower, "upper": self.upper}
        return {
            "n": self.n,
            "median": round(self.median, 4),
            **{k: round(v, 4) if isfinite(v) else None for k, v in bounds.items()},
        }


def median_bounds(values: Sequence[float], *, confidence: float = 0.95) -> MedianBounds:
    """Median and bounds of at least one value."""
    ordered = sorted(values)
    n = len(ordered)
    missed = 0.0
    rank = 0  # how many of the largest values the bound may leave out
    while rank <= n:
        missed += comb(n, rank) / 2**n
        if missed > 1 - confidence:
            break
        rank += 1
    lower, upper = (-inf, inf) if rank == 0 else (ordered[rank - 1], ordered[n - rank])
    return MedianBounds(n, median(ordered), lower, upper)
