"""Measure T(n): what a decode step of n tokens costs with this model on this machine."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from .cost import CostTable, measured_widths, median_table
from .draft import Draft
from .errors import ConfigError
from .lanes import LaneCache
from .target import Batch, Int32, TargetModel
from .topk import TopK

_STEADY = 0.15
"""A plain step may differ by this share before and after; else the machine was busy."""


def measure_costs(
    target: TargetModel,
    *,
    k: int = 8,
    max_width: int = 81,
    n_threads: int = 1,
    budget_s: float = 4.0,
    seed: int = 0,
    progress: Callable[[str], None] = lambda line: None,
) -> CostTable:
    """Time real steps: lanes, batch, decode, top-k, commit; trees of two children a node.

    Clears the target's cache. The widths are visited in turn, so that a drift of the machine
    touches all of them; the most important ones first, so that a slow model gets a coarse table
    in about the time allowed. The second context is as long as reading it in a third of the
    time allows, at most 2048 tokens.

    Parameters
    ----------
    k : candidates that the top-k finds in each row.
    max_width : widest step, 2 to the target's batch and a quarter of its context.
    n_threads : threads of the top-k.
    budget_s : seconds to spend, about; every width is measured at least once up to 8 tokens.

    Raises
    ------
    ConfigError : ``max_width`` out of range.
    """
    highest = min(target.n_batch, target.n_ctx // 4)
    if not 2 <= max_width <= highest:
        raise ConfigError(f"max_width {max_width} is not allowed; it must be 2 to {highest}")
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, target.n_vocab, target.n_ctx).astype(np.int32)
    meter = _Meter(target, tokens, TopK(k, n_threads), max_width)
    short = min(64, target.n_ctx // 4)
    token_s = meter.read(short) / short
    row_s = meter.row_s(min(48, target.n_batch))
    meter.change_s = meter.measure_change()
    room = target.n_ctx - 2 * max_width - 1
    long = min(2048, room, int(budget_s / 3 / token_s))
    contexts = [short, long] if long >= 4 * short else [short]
    widths = measured_widths(max_width)
    samples: dict[tuple[int, int], list[float]] = {}
    for n_past in contexts:
        meter.read(n_past)
        progress(f"measuring decode steps behind {n_past} tokens")
        for attempt in range(3):
            context_s = budget_s * (2 / 3) / len(contexts)
            taken = _sample(meter, n_past, widths, perf_counter() + context_s)
            plain_s = float(np.median(taken[n_past, 1]))
            again_s = float(np.median([meter.step(1) for _ in range(5)]))
            steady = abs(again_s / plain_s - 1) < _STEADY
            if steady or attempt == 2:
                break
            progress("the machine was busy with something else; measuring again")
        samples |= taken
    meter.lanes.recover(0)
    return median_table(widths, contexts, samples, row_s, meter.change_s)


def _sample(
    meter: _Meter, n_past: int, widths: list[int], stop: float
) -> dict[tuple[int, int], list[float]]:
    """Seconds of steps of each width until about the time ``stop``."""
    samples: dict[tuple[int, int], list[float]] = {}
    meter.step(1)
    first = [w for w in widths if w <= 8]
    coarse = [w for w in widths if w in (16, 32) or w == widths[-1]]
    for width in first + coarse + (first + coarse + widths) + widths * 8:
        seen = samples.setdefault((n_past, width), [])
        expected_s = width / 8 * max(samples.get((n_past, 8)) or [0.0])
        if (width > 8 or seen) and perf_counter() + expected_s > stop:
            continue
        seen.append(meter.step(width))
    return samples


class _Meter:
    def __init__(self, target: TargetModel, tokens: Int32, topk: TopK, max_width: int) -> None:
        self.target = target
        self.tokens = tokens
        self.topk = topk
        self.lanes = LaneCache(target)
        self.lanes.recover(0)
        self.batch = Batch(target.n_batch, target.n_lanes)
        self.draft = Draft(max_width)
        self.change_s = 0.0
        self._last_width = 0

    def read(self, n_past: int) -> float:
        """Extend the past to ``n_past`` tokens; the seconds it took."""
        started = perf_counter()
        while self.lanes.n_past < n_past:
            first = self.lanes.n_past
            n = min(self.target.n_batch, n_past - first)
            self.batch.set_chain(self.tokens[first : first + n], first, want_rows=1)
            self.target.decode(self.batch)
            self.lanes.extend(n)
        return perf_counter() - started

    def row_s(self, n: int) -> float:
        """Seconds that one more row of logits costs, from chains of ``n`` tokens."""
        n_past = self.lanes.n_past
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(3):
            for want_rows, taken in ((1, seconds[0]), (n, seconds[1])):
                self.batch.set_chain(self.tokens[:n], n_past, want_rows=want_rows)
                started = perf_counter()
                self.topk(self.target.decode(self.batch))
                taken.append(perf_counter() - started)
                self.lanes.rewind(n_past)
        return max(0.0, float(np.median(seconds[1]) - np.median(seconds[0])) / (n - 1))

    def step(self, width: int) -> float:
        """Decode one tree of ``width`` tokens and take it back; seconds, without ``change_s``
        where the step before was not as wide."""
        n_past, draft, batch = self.lanes.n_past, self.draft, self.batch
        draft.reset(int(self.tokens[n_past]), n_past=n_past)
        arity = 2 if self.target.n_lanes > width // 2 else 1
        for i in range(1, width):
            draft.parent[i] = (i - 1) // arity
            draft.depth[i] = draft.depth[draft.parent[i]] + 1
            draft.token[i] = self.tokens[n_past - i % n_past]
        draft.n = width
        started = perf_counter()
        draft.plan()
        self.lanes.sync(draft.n_lanes)
        draft.fill(batch, self.tokens[n_past : n_past + 1])
        self.topk(self.target.decode(batch))
        self.lanes.rewind(n_past)
        seconds = perf_counter() - started
        if width != self._last_width:
            seconds = max(seconds / 2, seconds - self.change_s)
        self._last_width = width
        return seconds

    def measure_change(self) -> float:
        """Seconds that a step takes longer when it is not as wide as the one before."""
        widths = (1, 2, 1, self.draft.capacity // 8 + 2)
        pairs = [(self.step(width), self.step(width)) for _ in range(5) for width in widths]
        return max(0.0, float(np.median([changed - same for changed, same in pairs])))
