"""Counts and seconds of one generation."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass
class Stats:
    """What one generation did.

    ``n_tokens`` counts every generated token, the one that prefill yields too; a decode step
    is one call of the target after prefill. ``n_accepted`` leaves the bonus token out. Both grow
    while tokens come one by one: each is of step number ``n_steps`` (0 is prefill), and an accepted
    node where ``n_accepted`` grew with it.
    ``accepted_by_depth[d]`` counts the steps whose accepted path reached depth d + 1, and
    ``drafted_by_depth[d]`` those that had a node there. Durations are seconds of wall time.
    """

    n_prompt: int = 0
    n_reused: int = 0
    n_tokens: int = 0
    n_steps: int = 0
    n_plain_steps: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_redone: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    topk_s: float = 0.0
    lanes_s: float = 0.0
    sample_s: float = 0.0
    recycle_s: float = 0.0
    total_s: float = 0.0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)

    @property
    def mat(self) -> float:
        """Mean accepted tokens: generated tokens per decode step; plain decoding is 1.00.

        The token that prefill yields is left out, since no decode step made it. 0 before the
        first step.
        """
        return (self.n_tokens - 1) / self.n_steps if self.n_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """n_accepted / n_drafted; 0 when nothing was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Of the steps that had a node at a depth, the share whose accepted path reached it; for
        depths 1, 2 and so on."""
        accepted = self.accepted_by_depth + [0] * len(self.drafted_by_depth)
        return [a / d for a, d in zip(accepted, self.drafted_by_depth, strict=False)]

    @property
    def decode_tps(self) -> float:
        """Generated tokens per second after prefill; 0 before the first step."""
        seconds = self.total_s - self.prefill_s
        return (self.n_tokens - 1) / seconds if self.n_steps and seconds > 0 else 0.0

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens read per second, those reused from the cache left out."""
        return (self.n_prompt - self.n_reused) / self.prefill_s if self.prefill_s else 0.0

    def copy(self) -> Stats:
        """What they are now; it does not change any more."""
        return replace(
            self,
            drafted_by_depth=self.drafted_by_depth.copy(),
            accepted_by_depth=self.accepted_by_depth.copy(),
        )

    def count_depths(self, drafted: int, accepted: int) -> None:
        """Count one step whose tree was ``drafted`` deep and whose path ``accepted`` long."""
        for counts, reached in (
            (self.drafted_by_depth, drafted),
            (self.accepted_by_depth, accepted),
        ):
            counts.extend([0] * (reached - len(counts)))
            for depth in range(reached):
                counts[depth] += 1

    def to_dict(self) -> dict[str, Any]:
        """Every field and rate, for JSON."""
        rates = {
            name: getattr(self, name)
            for name in (
                "mat",
                "acceptance_rate",
                "acceptance_by_depth",
                "decode_tps",
                "prefill_tps",
            )
        }
        return asdict(self) | rates
