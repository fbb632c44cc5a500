"""Statistics of a generation in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge_tr.stats import Stats

ENDS = {
    "stop": "the text ended",
    "length": "--max-tokens reached",
    "context": "the context is full",
    "interrupted": "interrupted",
    "error": "failed",
}
"""Why a generation ended, by its finish reason."""


def statistics(stats: Stats, finish_reason: str) -> list[str]:
    """Lines that tell what one generation did.

    Parameters
    ----------
    stats : counts and seconds of the generation.
    finish_reason : why it ended.
    """
    if not stats.n_tokens:
        return [
            f"no answer to a prompt of {_count(stats.n_prompt, 'token')}: {ENDS[finish_reason]}"
        ]
    reused = f", {stats.n_reused} reused from the cache" if stats.n_reused else ""
    seconds = max(0.0, stats.total_s - stats.prefill_s)
    return [
        f"prefill: {_count(stats.n_prompt, 'token')} in {stats.prefill_s:.2f} s "
        f"({stats.prefill_tps:.1f} tok/s{reused})",
        f"decode:  {_count(stats.n_tokens, 'token')}, {_count(stats.n_steps, 'decode step')} in "
        f"{seconds:.2f} s ({stats.decode_tps:.1f} tok/s); {ENDS[finish_reason]}",
        f"drafts:  {_drafts(stats)}; mean accepted tokens {stats.mat:.2f}",
    ]


def _drafts(stats: Stats) -> str:
    if not stats.n_drafted:
        return "nothing was drafted"
    n_drafting = stats.n_steps - stats.n_plain_steps
    return (
        f"{_count(stats.n_drafted, 'node')} in {_count(n_drafting, 'step')}, "
        f"{stats.n_accepted} accepted (acceptance rate {stats.acceptance_rate:.2f})"
    )


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
