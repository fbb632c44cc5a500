"""Measure T(n): what a decode step of n tokens costs with this model on this machine."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import FIRST_ROWS, CostTable, measured_widths, median_table
from edge_tr.decode.lanes import LaneCache
from edge_tr.decode.topk import TopK
from edge_tr.errors import ConfigError, DecodeError
from edge_tr.measuring.trial import Trial, random_text
from edge_tr.target import Int32, TargetModel

_BEHIND_WIDTHS = (1, 2, 4, 8)
"""Widths that are measured behind a long prompt."""

_PLAIN_S = 0.25
_MOST_PLAIN = 64
"""Seconds, and number, of plain steps in a row at most: where the weights fit the last cache, it
takes some tens of them until a step behind wider ones is as fast as plain decoding."""

_CROWDED = 1.3
"""So many times as fast must half of the threads be for other programs to be what slows all."""

_ROOM = 0.5
"""Part of a core that may be missing where nothing else runs."""

_FEW_TOKENS = 16
"""Tokens that are read at first, to see how fast the model is."""

_STEADY = 0.15
_SPREAD = 1.5
"""A plain step may differ by this share before and after, and the median of a narrow step may be
this many times its shortest one; else the machine was busy."""


def measure_costs(
    target: TargetModel,
    *,
    k: int = 8,
    max_width: int = 81,
    n_threads: int = 1,
    budget_s: float = 4.0,
    n_tries: int = 3,
    progress: Callable[[str], None] = lambda line: None,
) -> CostTable:
    """Time real steps: lanes, batch, decode, top-k, commit; trees of two children a node.

    Clears the target's cache. Plain steps are timed in a row, as plain decoding takes them: those
    behind wider steps find less of the weights in the cache and take up to twice as long. The
    other widths are visited in turn, so that a drift of the machine touches all of them; the most
    important ones first, so that a slow model gets a coarse table in about the time allowed. The
    second context is as long as reading it in a quarter of the time allows, at most 2048 tokens.

    Parameters
    ----------
    k : candidates that the top-k finds in each row.
    max_width : widest step, 2 to the target's batch and a quarter of its context.
    n_threads : threads of the top-k.
    budget_s : seconds to spend, about; every width is measured at least once up to 8 tokens.
    n_tries : how often widths are measured where the machine was busy, each time as long.

    Raises
    ------
    ConfigError : ``max_width`` out of range.
    """
    highest = min(target.n_batch, target.n_ctx // 4)
    if not 2 <= max_width <= highest:
        raise ConfigError(f"max_width {max_width} is not allowed; it must be 2 to {highest}")
    meter = _Meter(target, TopK(k, n_threads), max_width, *random_text(target))
    short = min(64, target.n_ctx // 4)
    stop = perf_counter() + budget_s
    few = min(_FEW_TOKENS, short)
    meter.read(few)
    token_s = (perf_counter() - stop + budget_s) / few
    short = short if token_s * short < budget_s / 4 else few
    meter.read(short)
    first_rows_s, row_s = meter.rows_s(token_s, budget_s / 8)
    meter.change_s = meter.measure_change(perf_counter() + budget_s / 8)
    long = min(2048, target.n_ctx - 2 * max_width - 1, int(budget_s / 4 / token_s))
    contexts = [short, long] if long >= 4 * short else [short]
    widths = measured_widths(max_width)
    samples: dict[tuple[int, int], list[float]] = {}
    plain_s, all_steady = min(_PLAIN_S, budget_s / 16), True
    for n_past in contexts:
        meter.read(n_past)
        progress(f"measuring decode steps behind {n_past} tokens")
        left_s = stop - perf_counter()
        if n_past < contexts[-1]:
            left_s = (left_s - (long - short) * token_s) / 2
        taken, steady = _steady_sample(meter, n_past, widths, left_s, plain_s, n_tries, progress)
        all_steady &= steady
        samples |= taken
    meter.lanes.recover(0)
    more = {"first_rows_s": first_rows_s, "row_s": row_s, "change_s": meter.change_s}
    return median_table(widths, contexts, samples, **more, steady=all_steady)


def is_crowded(
    target: TargetModel,
    set_threads: Callable[[int], object],
    n_threads: int,
    free_cores: Callable[[], float | None],
) -> bool:
    """Whether plain steps are faster with half of the threads, and the other cores have no time
    for more; clears the target's cache, and leaves all threads.

    Parameters
    ----------
    set_threads : is called with the number of threads for the steps that follow.
    n_threads : all of them.
    free_cores : see ``Crowding``; where it does not know, nothing is said to be crowded.
    """
    meter = _Meter(target, TopK(1), 2, *random_text(target))
    meter.read(min(_FEW_TOKENS, target.n_ctx // 4))
    half, seconds = max(1, n_threads // 2), {}
    for n in (n_threads, half):
        set_threads(n)
        seconds[n] = min(meter.step(1) for _ in range(3))
    free: float | None = None
    if _CROWDED * seconds[half] < seconds[n_threads]:
        free_cores()
        meter.plain_steps(_PLAIN_S)
        free = free_cores()
    set_threads(n_threads)
    meter.lanes.recover(0)
    return free is not None and free < n_threads - half - _ROOM


def measure_two(target: TargetModel, topk: TopK, width: int, *, steady: bool = True) -> CostTable:
    """Time plain steps and chains of ``width`` tokens behind a short text; clears the cache.

    Parameters
    ----------
    steady : of the table.
    """
    n_past = min(64, target.n_ctx // 4)
    meter = _Meter(target, topk, width, *random_text(target))
    meter.read(n_past)
    meter.step(width)
    wide = [meter.step(width) for _ in range(3)]
    samples = {(n_past, 1): meter.plain_steps(), (n_past, width): wide}
    meter.lanes.recover(0)
    return median_table([1, width], [n_past], samples, steady=steady)


def extend_costs(
    costs: StepCosts,
    target: TargetModel,
    topk: TopK,
    lanes: LaneCache,
    tokens: Int32,
    max_width: int,
) -> None:
    """Have ``costs`` know what steps take behind the text that the cache holds; nothing is done
    where no draft of that width fits.

    Parameters
    ----------
    topk, lanes, tokens : see ``measure_behind``.
    max_width : most tokens of a step.
    """
    n_past = lanes.n_past
    room = target.n_ctx - n_past
    if min(max_width, costs.max_width, room) < _BEHIND_WIDTHS[-1]:
        return
    try:
        seconds = measure_behind(target, topk, lanes, tokens, costs.change_s)
    except DecodeError:  # the prompt is read without it
        lanes.recover(n_past)
        seconds = {}
    costs.extend(n_past, seconds)


def measure_behind(
    target: TargetModel, topk: TopK, lanes: LaneCache, tokens: Int32, change_s: float = 0.0
) -> dict[int, float]:
    """Time steps of 1, 2, 4 and 8 tokens, twice each, behind the text that the cache holds;
    they are taken back. On a CPU that takes as long as about 18 plain steps.

    Parameters
    ----------
    lanes, tokens : the cache, and its text with the next token. The widest step must fit behind
        it and into a batch.
    change_s : see ``CostTable``.

    Returns
    -------
    Seconds by width; nothing where the machine was busy with something else.
    """
    meter = _Meter(target, topk, _BEHIND_WIDTHS[-1], lanes, tokens)
    meter.change_s = change_s
    taken = [[meter.step(width) for width in _BEHIND_WIDTHS] for _ in range(2)]
    low, high = np.min(taken, axis=0), np.max(taken, axis=0)
    if (high > _SPREAD * low).any():
        return {}
    return dict(zip(_BEHIND_WIDTHS, low.tolist(), strict=True))


def _steady_sample(
    meter: _Meter,
    n_past: int,
    widths: list[int],
    seconds: float,
    plain_s: float,
    n_tries: int,
    progress: Callable[[str], None],
) -> tuple[dict[tuple[int, int], list[float]], bool]:
    """Seconds of steps of each width, and whether the machine was idle, at the last try; each
    takes about ``seconds``, of which plain steps ``plain_s`` before and after."""
    for attempt in range(n_tries):
        stop = perf_counter() + seconds - plain_s
        plain = meter.plain_steps(plain_s)
        taken = _sample(meter, n_past, widths[1:], stop)
        taken[n_past, 1] = plain
        change = float(np.median(meter.plain_steps(plain_s)) / np.median(plain))
        narrow = [s for (_, width), s in taken.items() if width <= 8]
        if abs(change - 1) < _STEADY and all(np.median(s) <= _SPREAD * min(s) for s in narrow):
            return taken, True
        progress(
            "the machine was busy with something else; "
            + ("measuring again" if attempt + 1 < n_tries else "the costs may be wrong")
        )
    return taken, False


def _sample(
    meter: _Meter, n_past: int, widths: list[int], stop: float
) -> dict[tuple[int, int], list[float]]:
    """Seconds of steps of each width until about the time ``stop``."""
    samples: dict[tuple[int, int], list[float]] = {}
    first = [w for w in widths if w <= 8]
    coarse = [w for w in widths if w in (16, 32) or w == widths[-1]]
    for width in first + coarse + (first + coarse + widths) + widths * 8:
        seen = samples.setdefault((n_past, width), [])
        expected_s = width / 8 * max(samples.get((n_past, 8)) or [0.0])
        if (width > 8 or seen) and perf_counter() + expected_s > stop:
            continue
        seen.append(meter.step(width))
    return samples


class _Meter(Trial):
    def __init__(
        self, target: TargetModel, topk: TopK, max_width: int, lanes: LaneCache, tokens: Int32
    ) -> None:
        super().__init__(target, max_width, lanes, tokens)
        self.topk = topk
        self.change_s = 0.0
        self._last_width = 0

    def rows_s(self, token_s: float, most_s: float) -> tuple[float, float]:
        """Seconds that the first rows of logits cost above one, and each further row, from chains
        of 32 tokens, or 8, in about the time ``most_s``; 0 where there is no time for that."""
        n = next((n for n in (32, FIRST_ROWS) if 3 * n * token_s < most_s), 0)
        n = min(n, self.target.n_batch)
        if n == 0:
            return 0.0, 0.0
        stop = perf_counter() + most_s
        first = min(FIRST_ROWS, n)
        seconds: dict[int, list[float]] = {1: [], first: [], n: []}
        for attempt in range(6):
            if attempt > 1 and perf_counter() > stop:
                break
            for want_rows, taken in seconds.items():
                self.make_room(n)
                self.batch.set_chain(self.tokens[:n], self.lanes.n_past, want_rows=want_rows)
                started = perf_counter()
                self.topk(self.target.decode(self.batch))
                taken.append(perf_counter() - started)
                self.lanes.undo(n)
        one_s, first_s, all_s = (float(np.median(seconds[rows][1:])) for rows in (1, first, n))
        return max(0.0, first_s - one_s), max(0.0, all_s - first_s) / max(1, n - first)

    def step(self, width: int) -> float:
        """Decode one tree of ``width`` tokens and take back what can be; seconds, without
        ``change_s`` where the step before was not as wide."""
        self.make_room(width)
        self.grow(width)
        started = perf_counter()
        self.plant()
        self.topk(self.target.decode(self.batch))
        self.lanes.undo(width)
        seconds = perf_counter() - started
        if width != self._last_width:
            seconds = max(seconds / 2, seconds - self.change_s)
        self._last_width = width
        return seconds

    def plain_steps(self, most_s: float = _PLAIN_S) -> list[float]:
        """Seconds of plain steps in a row, the last third of them; at least three are taken."""
        taken: list[float] = []
        while len(taken) < 3 or (sum(taken) < most_s and len(taken) < _MOST_PLAIN):
            taken.append(self.step(1))
        return taken[-(len(taken) // 3) :]

    def measure_change(self, stop: float) -> float:
        """Seconds that a step takes longer when it is not as wide as the one before, from steps
        until about the time ``stop``; 0 where there is no time for one of each width."""
        widths = (1, 2, 1, self.max_width // 8 + 2)
        pairs: list[tuple[float, float]] = []
        for width in 5 * widths:
            if perf_counter() > stop:
                break
            pairs.append((self.step(width), self.step(width)))
        if len(pairs) < len(widths):
            return 0.0
        return max(0.0, float(np.median([changed - same for changed, same in pairs])))
