"""What a decode step costs on this machine now: the table, corrected by the steps taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from edge_tr.costs.crowding import Crowding
from edge_tr.costs.table import CostTable, Float64
from edge_tr.errors import ConfigError

_RATE_STEPS = 64
"""Steps over which the long-run rate is averaged."""

_CORRECTION = 0.1
"""Least share of a new observation in a correction; half is forgotten in 7 steps."""

_DRIFT_STEPS = 32
"""Plain steps over which their cost is compared with what was measured."""

_DRIFT_WIDE_STEPS = 12
"""Steps of a width after which its correction is believed."""

_DRIFT = 1.33
"""Factor on a measured cost from which on the table is no longer believed."""

_FAR = 4
"""A context is far when it is this many times as long as the longest one measured: what was off by
little there is off by much here."""

_FAR_TOKENS = 2048
"""Shorter contexts are never far."""

_SURPRISE = 1.5
"""A step counts for at most this many times its expected seconds."""

_BELIEVED = 0.5
"""Share in a correction of a step that was shorter by more than that factor."""


class StepCosts:
    """Seconds of a decode step: a measured table, corrected by the steps really taken.

    Each width has a factor on the table. A plain step corrects all of them, since it shows what
    the machine does now; a wider step corrects its own and a little its neighbours', where the
    table was wrong. A width that is thought too dear is not tried, so that a drafter should take
    a plain step and a short draft now and then.

    Parameters
    ----------
    table : what was measured; None knows nothing beforehand and learns from the steps alone.
    max_width : widest step that will be asked for.
    on_drift : called once, when plain steps, or steps of another width beside plain ones, have
        come to take a third more or a quarter less than was measured; the table should be
        measured anew when there is time.
    on_extend : called with the table when it has got another context, which should be kept.
    crowding : hears of each step what it took over what it should take, and changes the number of
        threads; None leaves it as it is.

    Attributes
    ----------
    rate : generated tokens per second over the last steps of the text; 0 before the first one. It
        is what a second is worth.
    change_s : see ``CostTable``; 0 without one.
    """

    def __init__(
        self,
        table: CostTable | None = None,
        max_width: int = 1,
        on_drift: Callable[[], None] = lambda: None,
        on_extend: Callable[[CostTable], object] = lambda table: None,
        crowding: Crowding | None = None,
    ) -> None:
        self.table = self._measured = table
        self.max_width = max_width
        self.rate = 0.0
        self._pace = 1.0
        self._factor = np.ones(max_width + 1)
        self._n_seen = np.zeros(max_width + 1, dtype=np.int64)
        width = np.arange(max_width + 1)
        self._n_plain = np.maximum(1, width)
        self._share = 0.25 ** np.abs(width[:, None] - width[None, :])
        self._share[:, :2] = 0.0
        self._tokens = self._seconds = 0.0
        self._seen: dict[int, float] = {}
        self._row = np.zeros(0)
        self._row_of = -1
        self.change_s = table.change_s if table is not None else 0.0
        self._last_width = 1
        self._log_drift = 0.0
        self._on_drift: Callable[[], None] | None = on_drift
        self._on_extend = on_extend
        self.crowding = crowding
        self._n_tried = 0

    def n_seen(self, width: int) -> int:
        """How many steps of this width were observed."""
        return int(self._n_seen[width])

    def steady(self, n_past: int) -> Float64:
        """float64[max_width + 1]; what a step of each width costs behind ``n_past`` tokens when
        it is as wide as the step before it. Never more than as many plain steps: what was measured
        or seen then was disturbed, or the tokens are better had one by one.

        Raises
        ------
        ConfigError : no table was given.
        """
        row = self._table_row(n_past)
        seconds: Float64 = np.minimum(row * self._factor, row[1] * self._n_plain) * self._pace
        return seconds

    def next_step(self, n_past: int) -> Float64:
        """float64[max_width + 1]; what the next step costs, by its width, from 1 on.

        Raises
        ------
        ConfigError : no table was given.
        """
        seconds = self.steady(n_past) + self.change_s
        if self._last_width <= self.max_width:
            seconds[self._last_width] -= self.change_s
        return seconds

    def _table_row(self, n_past: int) -> Float64:
        if self.table is None:
            raise ConfigError("the costs of this machine were not measured")
        if self._row_of != n_past // 32:
            self._row_of = n_past // 32
            self._row = self.table.at(n_past, self.max_width)
        return self._row

    def is_far(self, n_past: int) -> bool:
        """Whether steps should be measured behind so many tokens, once, with ``extend`` after."""
        if self.table is None:
            return False
        return n_past >= max(_FAR_TOKENS, _FAR * self.table.contexts[-1], 2 * self._n_tried)

    def extend(self, n_past: int, seconds: Mapping[int, float]) -> None:
        """Take what steps of some widths cost behind ``n_past`` tokens into the table; nothing
        where they could not be measured."""
        self._n_tried = n_past
        if self.table is None or self._measured is None or not seconds:
            return
        usual = {width: s / self._pace for width, s in seconds.items()}
        self._measured = self._measured.extended(n_past, usual)
        if self._on_drift is not None:
            self._on_extend(self._measured)
        # What was learned about a width stays, and must not count twice here.
        own = {width: s / float(self._factor[width]) for width, s in usual.items()}
        self.table = self.table.extended(n_past, own)
        self._row_of = -1

    def begin(self) -> None:
        """A text begins, whose prompt is read now."""
        if self.crowding is not None:
            used = self.crowding.n_used
            self.crowding.begin()
            if self.crowding.n_used != used:
                self._n_seen[1] = 0  # as in ``observe``

    def forget_rate(self) -> None:
        """Another text begins, in which a second may be worth less."""
        self.rate = self._tokens = self._seconds = 0.0

    def observe(self, n_tokens: int, n_past: int, seconds: float, n_emitted: int) -> None:
        """Take note of one step of ``n_tokens`` tokens that emitted ``n_emitted``."""
        keep = 1 - 1 / _RATE_STEPS
        self._tokens = keep * self._tokens + n_emitted
        self._seconds = keep * self._seconds + seconds
        self.rate = self._tokens / self._seconds
        known = self._seen.get(n_tokens, seconds)
        self._seen[n_tokens] = known + 0.2 * (seconds - known)
        if self.table is not None and n_tokens <= self.max_width:
            measured = float(self._table_row(n_past)[n_tokens])
            row = self._row
            usual_s = min(measured * float(self._factor[n_tokens]), n_tokens * float(row[1]))
            self._factor[n_tokens] = usual_s / measured
            if self.crowding is not None and self.crowding.observe(seconds / usual_s):
                self._n_seen[1] = 0  # some plain steps will tell what they cost now
            is_usual = self.crowding is None or self.crowding.is_usual
            if n_tokens == 1 == self._last_width and is_usual:
                self._follow_drift(seconds / measured)
            expected = usual_s * self._pace
            if n_tokens != self._last_width:
                expected += self.change_s
            surprise = self._surprise(seconds / expected, int(self._n_seen[n_tokens]))
            self._n_seen[n_tokens] += 1
            if n_tokens == 1:
                # Behind a wider step a plain one is slower than in a row.
                if self._last_width == 1:
                    self._pace *= math.exp(surprise)
            else:
                self._factor *= np.exp(surprise * self._share[n_tokens])
                if self._n_seen[n_tokens] >= _DRIFT_WIDE_STEPS and is_usual:
                    self._tell_drift(math.log(self._factor[n_tokens]))
        self._last_width = n_tokens

    @staticmethod
    def _surprise(ratio: float, n_seen: int) -> float:
        """Logarithm of the correction that a step asks for which took ``ratio`` times what was
        expected. One that took far longer says little: something else ran. One that was far
        shorter says that it can be."""
        if ratio < 1 / _SURPRISE:
            return _BELIEVED * math.log(ratio)
        return max(_CORRECTION, 0.4 / (1 + n_seen)) * math.log(min(ratio, _SURPRISE))

    def _follow_drift(self, ratio: float) -> None:
        """Take note of a plain step that took ``ratio`` times as long as was measured."""
        weight = 1 / min(self._n_seen[1] + 1, _DRIFT_STEPS)
        self._log_drift += weight * (math.log(ratio) - self._log_drift)
        if self._n_seen[1] >= _DRIFT_STEPS:
            self._tell_drift(self._log_drift)

    def _tell_drift(self, log_drift: float) -> None:
        if abs(log_drift) > math.log(_DRIFT) and self._on_drift is not None:
            self._on_drift()
            self._on_drift = None

    def token_s(self) -> float:
        """Seconds that one more token in a batch costs, roughly: the slope between the
        narrowest and the widest step seen. Infinite before two widths were seen."""
        if len(self._seen) < 2:
            return float("inf")
        low, high = min(self._seen), max(self._seen)
        return max(0.0, (self._seen[high] - self._seen[low]) / (high - low))
