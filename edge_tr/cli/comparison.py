"""Drafted answers beside plain ones: numbers, a table and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge_tr.machine.idle import QUIET

if TYPE_CHECKING:
    from edge_tr.stats import Stats

LEAST_NOISE = 0.03
BUSY = 0.15


@dataclass
class Run:
    """One answer: the text of each of its tokens, and its statistics."""

    name: str
    tokens: list[int]
    pieces: list[str]
    text: str
    stats: Stats
    notices: list[str]

    @property
    def step_s(self) -> float:
        """Seconds of one decode step, everything included."""
        seconds = self.stats.total_s - self.stats.prefill_s
        return seconds / self.stats.n_steps if self.stats.n_steps else 0.0


@dataclass
class Comparison:
    """One drafted run beside the plain runs before and after it."""

    run: Run
    before: Run
    after: Run

    @property
    def plain_tps(self) -> float:
        """Tokens per second of plain decoding around this run."""
        return (self.before.stats.decode_tps + self.after.stats.decode_tps) / 2

    @property
    def speedup(self) -> float:
        """Times as fast as plain decoding."""
        return self.run.stats.decode_tps / self.plain_tps if self.plain_tps else 0.0

    @property
    def step_cost(self) -> float:
        """One verify step in plain steps."""
        plain_s = (self.before.step_s + self.after.step_s) / 2
        return self.run.step_s / plain_s if plain_s else 0.0

    @property
    def noise(self) -> float:
        """Difference of speed that says nothing: that of the two plain runs, at least 3 %."""
        slow, fast = sorted((self.before.stats.decode_tps, self.after.stats.decode_tps))
        return max(LEAST_NOISE, fast / slow - 1 if slow else 0.0)

    @property
    def verdict(self) -> str:
        """faster, slower, or neither beyond the noise."""
        if self.speedup > 1 + self.noise:
            return "faster"
        if self.speedup * (1 + self.noise) < 1:
            return "slower"
        return f"no clear difference, since plain runs differ by {self.noise:.0%}"

    @property
    def first_difference(self) -> int | None:
        """Index of the first token that differs from the plain text, None where none does."""
        plain, drafted = self.before.tokens, self.run.tokens
        if plain == drafted:
            return None
        shorter = min(len(plain), len(drafted))
        return next((i for i in range(shorter) if plain[i] != drafted[i]), shorter)


def table(plain: Run, comparisons: list[Comparison], published: Sequence[Run] = ()) -> list[str]:
    """One line for plain decoding and one for each drafted run.

    ``published`` are plain runs with llama.cpp's own kernels alone; where there are some, they
    have the first line, and all speeds are told in times theirs.
    """
    base = "as llama.cpp" if published else "as plain"
    lines = [
        f"{'':<24}{'tokens':>12}{'times as fast':>16}{'mean accepted':>16}{'one step costs':>17}",
        f"{'':<24}{'per second':>12}{base:>16}{'tokens':>16}{'in plain steps':>17}",
    ]
    tps = plain.stats.decode_tps
    if comparisons:
        tps = sum(c.plain_tps for c in comparisons) / len(comparisons)
    rows = []
    gain = 1.0
    if published:
        own = published_tps(published)
        gain = tps / own if own else 0.0
        step_s = sum(run.step_s for run in published) / len(published)
        steps = step_s / plain.step_s if plain.step_s else 0.0
        rows = [("llama.cpp alone, plain", own, 1.0, published[0].stats.mat, steps)]
    rows.append(("plain decoding", tps, gain, plain.stats.mat, 1.0))
    for c in comparisons:
        stats = c.run.stats
        rows.append((c.run.name, stats.decode_tps, gain * c.speedup, stats.mat, c.step_cost))
    return lines + [f"{n:<24}{t:>12.1f}{s:>16.2f}{m:>16.2f}{k:>17.2f}" for n, t, s, m, k in rows]


def published_tps(runs: Sequence[Run]) -> float:
    """Tokens per second over some runs."""
    return sum(run.stats.decode_tps for run in runs) / len(runs)


def against_published(comparisons: list[Comparison], published: Sequence[Run]) -> str:
    """How much of the fastest run's speed comes from our kernels, and how much from drafting."""
    own = published_tps(published)
    best = max(comparisons, key=lambda c: c.run.stats.decode_tps)
    if not own or not best.plain_tps:
        return ""
    return (
        f"{best.run.name}: {best.run.stats.decode_tps / own:.2f} times as fast as llama.cpp alone, "
        f"{best.plain_tps / own:.2f} by kernels and {best.speedup:.2f} by drafting."
    )


def sentences(comparisons: list[Comparison], others: float | None = None) -> list[str]:
    """Whether the texts are the same, what each tree brought, and whether drafting paid.

    ``others`` are the cores that other programs used meanwhile; None = not known.
    """
    lines = [*_same_text(comparisons), ""]
    for c in comparisons:
        lines += c.run.notices
        stats = c.run.stats
        what = "nothing was drafted"
        if stats.n_drafted:
            what = f"a step yields {stats.mat:.2f} tokens and costs {c.step_cost:.2f} plain steps"
        lines.append(f"{c.run.name}: {what}: {c.verdict}.")
    return [*lines, "", _outcome(comparisons, others)]


def _outcome(comparisons: list[Comparison], others: float | None) -> str:
    best = max(comparisons, key=lambda c: c.speedup)
    if best.run.stats.n_drafted and best.verdict == "faster":
        return f"Drafting paid on this machine: {best.run.name}, {best.speedup:.2f} times as fast."
    noise = max(c.noise for c in comparisons)
    if noise > BUSY:
        reason = f"this machine's own speed changes by {noise:.0%} from answer to answer"
        if others is None:
            reason += ", or it is busy with something else"
        elif others > QUIET:
            reason = f"other programs use {others:.1f} of its cores"
        return f"Whether drafting pays here cannot be told now: {reason}. Try again later."
    return "Drafting did not pay on this machine, with this model and prompt."


def _same_text(comparisons: list[Comparison]) -> list[str]:
    different = [c for c in comparisons if c.first_difference is not None]
    if not different:
        return ["The text is the same each time, token for token."]
    lines = []
    for c in different:
        at = c.first_difference or 0
        drafted, plain = ("".join(run.pieces[at : at + 1]) for run in (c.run, c.before))
        lines += [
            f"{c.run.name}: another text from token {at} on, {drafted!r} where plain decoding "
            f"has {plain!r}:",
            c.run.text,
            "",
        ]
    return [
        *lines,
        "llama.cpp rounds differently in batches of different widths, with this model and build; "
        "`edge-tr run --exact` uses only widths that do not differ.",
    ]


def report(comparisons: list[Comparison]) -> list[dict[str, Any]]:
    """Every number of each drafted run, for JSON."""
    return [
        {
            "name": c.run.name,
            "plain_tps": c.plain_tps,
            "speedup": c.speedup,
            "step_cost": c.step_cost,
            "same_text": c.first_difference is None,
            "first_difference": c.first_difference,
            "verdict": c.verdict,
            "noise": c.noise,
            "notices": c.run.notices,
            "stats": c.run.stats.to_dict(),
        }
        for c in comparisons
    ]
