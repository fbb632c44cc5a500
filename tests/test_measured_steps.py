from __future__ import annotations

import pytest
from fake_target import FakeTarget

from edge_tr.decode.topk import TopK
from edge_tr.errors import ConfigError
from edge_tr.measuring import steps
from edge_tr.measuring.steps import measure_behind, measure_costs
from edge_tr.measuring.trial import Trial, random_text
from edge_tr.target import Batch, Float32


def test_every_width_is_measured_and_the_cache_left_empty() -> None:
    target = FakeTarget(n_ctx=400, n_batch=64, n_lanes=40)
    table = measure_costs(target, max_width=32, budget_s=0.5)
    assert table.contexts[0] == 64
    assert set(range(1, 9)) <= set(table.widths)
    assert table.row_s >= 0
    assert (target.pos == -1).all()


def test_no_time_still_measures_the_narrow_widths() -> None:
    table = measure_costs(FakeTarget(n_ctx=400, n_batch=64), max_width=40, budget_s=0.0)
    assert table.widths[:8] == tuple(range(1, 9))


@pytest.mark.parametrize("n_lanes", [1, 2, 8])
def test_few_lanes_are_enough(n_lanes: int) -> None:
    target = FakeTarget(n_ctx=200, n_batch=32, n_lanes=n_lanes)
    assert measure_costs(target, max_width=20, budget_s=0.1).widths[0] == 1


@pytest.mark.parametrize(("n_ctx", "n_batch"), [(256, 2), (64, 4), (65, 64)])
def test_small_contexts_and_batches(n_ctx: int, n_batch: int) -> None:
    target = FakeTarget(n_ctx=n_ctx, n_batch=n_batch)
    table = measure_costs(target, max_width=min(n_batch, n_ctx // 4), budget_s=0.1)
    assert table.widths[0] == 1


def test_progress_is_told() -> None:
    lines: list[str] = []
    measure_costs(FakeTarget(n_ctx=200), max_width=4, budget_s=0.05, progress=lines.append)
    assert lines[0] == "measuring decode steps behind 50 tokens"


@pytest.mark.parametrize("max_width", [0, 1, 33, 1000])
def test_a_width_that_does_not_fit_is_refused(max_width: int) -> None:
    with pytest.raises(ConfigError, match=f"max_width {max_width} is not allowed"):
        measure_costs(FakeTarget(n_ctx=200, n_batch=32), max_width=max_width)


class TimedTarget(FakeTarget):
    """Its decode steps take ``seconds(n_calls, width)`` of a clock of its own."""

    now = 0.0
    n_calls = 0
    busy_until = 0
    first_row_s = row_s = 0.0
    stays_busy = False
    change_s = 0.0
    last_width = 0

    def decode(self, batch: Batch) -> Float32:
        self.n_calls += 1
        busy = self.n_calls < self.busy_until or (self.stays_busy and self.n_calls % 3)
        slow = 3.0 if busy else 1.0
        n_rows = int(batch.logits[: batch.n].sum())
        self.now += self.row_s * (n_rows - 1) + self.first_row_s * (n_rows > 1)
        self.now += slow * (0.010 + 0.002 * batch.n) + self.change_s * (batch.n != self.last_width)
        self.last_width = batch.n
        return super().decode(batch)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> TimedTarget:
    target = TimedTarget(n_ctx=200, n_batch=32)
    monkeypatch.setattr(steps, "perf_counter", lambda: target.now)
    return target


def test_the_seconds_are_those_of_the_steps(timed: TimedTarget) -> None:
    table = measure_costs(timed, max_width=8)
    assert table.seconds[0] == pytest.approx([0.010 + 0.002 * n for n in range(1, 9)])
    assert table.change_s == pytest.approx(0)


def test_first_rows_of_logits_are_told_from_further_ones(timed: TimedTarget) -> None:
    timed.first_row_s, timed.row_s = 0.004, 0.0001
    table = measure_costs(timed, max_width=8)
    assert table.first_rows_s == pytest.approx(0.004 + 0.0007)
    assert table.row_s == pytest.approx(0.0001)


def test_what_a_change_of_the_width_costs_stands_apart(timed: TimedTarget) -> None:
    timed.change_s = 0.003
    table = measure_costs(timed, max_width=8)
    assert table.change_s == pytest.approx(0.003)
    assert table.seconds[0] == pytest.approx([0.010 + 0.002 * n for n in range(1, 9)])


def test_a_machine_that_was_busy_is_measured_again(timed: TimedTarget) -> None:
    lines: list[str] = []
    timed.busy_until = 130  # nearly to the end of the first round
    table = measure_costs(timed, max_width=8, budget_s=4.0, progress=lines.append)
    assert lines[1:] == ["the machine was busy with something else; measuring again"]
    assert table.seconds[0] == pytest.approx([0.010 + 0.002 * n for n in range(1, 9)])
    assert table.steady


def test_costs_of_a_machine_that_stays_busy_say_so(timed: TimedTarget) -> None:
    timed.stays_busy = True
    lines: list[str] = []
    assert not measure_costs(timed, max_width=8, budget_s=1.0, progress=lines.append).steady
    assert lines[-1] == "the machine was busy with something else; the costs may be wrong"


def behind(target: TimedTarget, n_past: int) -> dict[int, float]:
    """Measure behind a text of ``n_past`` tokens; the cache must hold just that afterwards."""
    lanes, tokens = random_text(target)
    Trial(target, 2, lanes, tokens).read(n_past)
    seconds = measure_behind(target, TopK(4), lanes, tokens, target.change_s)
    assert target.assert_only_committed(tokens.tolist()) == n_past == lanes.n_past
    return seconds


@pytest.mark.parametrize("n_past", [2, 100, 192])
def test_steps_behind_a_text_are_measured_and_taken_back(timed: TimedTarget, n_past: int) -> None:
    timed.change_s = 0.003
    assert behind(timed, n_past) == pytest.approx({n: 0.010 + 0.002 * n for n in (1, 2, 4, 8)})


@pytest.mark.parametrize("busy_until", [10, 12, 14, 16])
def test_nothing_is_found_while_the_machine_is_busy(timed: TimedTarget, busy_until: int) -> None:
    timed.busy_until = busy_until  # in the first round, whose steps are the calls 9, 11, 13, 15
    assert behind(timed, 100) == {}


@pytest.mark.parametrize("token_s", [0.0001, 0.001, 0.01])
def test_a_short_measurement_takes_about_the_time_allowed(
    monkeypatch: pytest.MonkeyPatch, token_s: float
) -> None:
    """A plain step takes as long as 8 tokens of a prompt; a slow model's widths to 8 are all."""

    class Slow(TimedTarget):
        def decode(self, batch: Batch) -> Float32:
            self.now += (8 + batch.n) * token_s - 0.010 - 0.002 * batch.n
            return super().decode(batch)

    target = Slow(n_ctx=4096, n_batch=512)
    monkeypatch.setattr(steps, "perf_counter", lambda: target.now)
    table = measure_costs(target, budget_s=1.0, n_tries=1)
    narrow = sum(8 + n for n in range(1, 9)) * token_s
    assert target.now < max(1.25, 0.4 + 1.5 * narrow)
    assert set(range(1, 9)) <= set(table.widths)


@pytest.mark.parametrize(
    ("all_s", "free", "crowded"),
    [
        (0.01, 0.0, False),
        (0.5, 0.0, True),
        (0.5, 1.0, False),  # all threads are too many, whoever else runs
        (0.5, None, False),
    ],
)
def test_half_of_the_threads_faster_and_no_core_free_tell_of_other_programs(
    monkeypatch: pytest.MonkeyPatch, all_s: float, free: float | None, crowded: bool
) -> None:
    target, threads = TimedTarget(n_ctx=200, n_batch=32), [2]
    decode = target.decode

    def slow(batch: Batch) -> Float32:
        target.last_width = 0  # each step is charged
        return decode(batch)

    def set_threads(n: int) -> None:
        threads.append(n)
        target.change_s = all_s if n == 2 else 0.01

    monkeypatch.setattr(target, "decode", slow)
    monkeypatch.setattr(steps, "perf_counter", lambda: target.now)
    assert steps.is_crowded(target, set_threads, 2, lambda: free) is crowded
    assert threads[-1] == 2
    assert (target.pos == -1).all()
