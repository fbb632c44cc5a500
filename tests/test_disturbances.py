"""A moment's disturbance does not turn drafting off for long, nor on where it does not pay."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from fake_target import FakeTarget, HashModel

from edge_tr.costs.crowding import Crowding
from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import CostTable
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.grown_tree import GrownTreeDrafter

PLAIN_S = 0.004
WIDTHS = (1, 2, 4, 8, 16, 32)
STAIRCASES = {
    "ours": (1, 1.1, 1.4, 2.0, 3.2, 5.7),
    "steep": (1, 1.6, 2.9, 4.8, 8.0, 16.0),
    "level": (1, 1.0, 1.0, 1.0, 1.0, 1.0),
}
N_TOKENS = 2500
SETTLED = 64
"""Steps after a disturbance."""


def table(ratios: tuple[float, ...]) -> CostTable:
    return CostTable(WIDTHS, (0,), (tuple(PLAIN_S * ratio for ratio in ratios),))


class Clocked(StepCosts):
    """Steps take what a table says, and longer while something disturbs.

    Attributes
    ----------
    log : of each step when it began, its seconds without a disturbance, its tokens.
    """

    def __init__(
        self, true: CostTable, believed: CostTable, slow: Callable[[float, int], float]
    ) -> None:
        super().__init__(believed, WIDTHS[-1])
        self._true, self._slow, self.now = true.at(0, WIDTHS[-1]), slow, 0.0
        self.log: list[tuple[float, float, int]] = []

    def observe(self, n_tokens: int, n_past: int, seconds: float, n_emitted: int) -> None:
        true_s = float(self._true[n_tokens])
        self.log.append((self.now, true_s, n_emitted))
        seconds = true_s * self._slow(self.now, n_tokens)
        self.now += seconds
        super().observe(n_tokens, n_past, seconds, n_emitted)


def answer(
    ratios: tuple[float, ...],
    slow: Callable[[float, int], float] = lambda now, n: 1.0,
    believed: CostTable | None = None,
) -> Clocked:
    """The log of a text that repeats itself from time to time."""
    costs = Clocked(table(ratios), believed or table(ratios), slow)
    drafter = GrownTreeDrafter(
        Candidates(AdjacencyMatrix(60)), n_ctx=2600, costs=costs, max_nodes=7, max_lanes=16
    )
    target = FakeTarget(HashModel(60, seed=3, memory=2), n_ctx=2600, n_lanes=16)
    list(Decoder(target, drafter, costs=costs).generate([1, 2, 3], max_tokens=N_TOKENS))
    return costs


def speed(costs: Clocked, first_token: int) -> float:
    """Tokens per undisturbed second of the steps from a token on."""
    made = np.cumsum([n for _, _, n in costs.log])
    steps = [step for step, n in zip(costs.log, made, strict=True) if n > first_token]
    return sum(n for _, _, n in steps) / sum(s for _, s, _ in steps)


def share_after(costs: Clocked, ratios: tuple[float, ...], end_s: float) -> float:
    """Speed from 64 steps after a time on, over that of the same tokens without a disturbance."""
    n_before = sum(start < end_s for start, _, _ in costs.log)
    first_token = sum(n for _, _, n in costs.log[: n_before + SETTLED])
    assert first_token < N_TOKENS - 100
    return speed(costs, first_token) / speed(answer(ratios), first_token)


@pytest.mark.parametrize("ratios", STAIRCASES.values(), ids=STAIRCASES)
@pytest.mark.parametrize("factor", [3.0, 10.0, 500.0])
@pytest.mark.parametrize("when_s", [0.0, 0.05, 0.3])
def test_one_slow_step(ratios: tuple[float, ...], factor: float, when_s: float) -> None:
    left = [1]

    def slow(now: float, n: int) -> float:
        if now >= when_s and left:
            left.clear()
            return factor
        return 1.0

    costs = answer(ratios, slow)
    assert not left
    assert share_after(costs, ratios, when_s + PLAIN_S * factor) >= 0.95


@pytest.mark.parametrize("ratios", STAIRCASES.values(), ids=STAIRCASES)
@pytest.mark.parametrize(("when_s", "long_s"), [(0.0, 0.2), (0.3, 0.2), (0.0, 0.8), (0.2, 0.8)])
def test_some_time_in_which_all_steps_take_twice_as_long(
    ratios: tuple[float, ...], when_s: float, long_s: float
) -> None:
    costs = answer(ratios, lambda now, n: 2.0 if when_s <= now < when_s + long_s else 1.0)
    assert share_after(costs, ratios, when_s + long_s) >= 0.95


DEARER, PLAIN_DEARER, SOME_DEARER = (1, 3, 3, 3, 3, 3), (2, 1, 1, 1, 1, 1), (1, 1, 4, 1, 4, 1)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *product(STAIRCASES, [PLAIN_DEARER, SOME_DEARER]),
        *product(["ours", "level"], [DEARER]),
    ],
)
def test_costs_that_were_measured_while_the_machine_was_busy(
    name: str, wrong: tuple[float, ...]
) -> None:
    ratios = STAIRCASES[name]
    believed = table(tuple(r * w for r, w in zip(ratios, wrong, strict=True)))
    costs = answer(ratios, believed=believed)
    assert share_after(costs, ratios, 0.0) >= 0.95


def test_no_width_is_taken_for_dearer_than_as_many_plain_steps() -> None:
    costs = StepCosts(table((1, 9, 9, 9, 9, 40)), 32)
    steady = costs.steady(0)
    assert (steady[2:] <= np.arange(2, 33) * steady[1] + 1e-12).all()


class Threads:
    """A machine of four cores and what other programs take of them."""

    def __init__(self, others: float = 0.0, *, tells: bool = True) -> None:
        self.others, self._tells = others, tells
        self.crowding = Crowding(4, self.set, self.free)
        self.n = 4
        self.n_changes = 0

    def set(self, n: int) -> None:
        self.n = n
        self.n_changes += 1

    def free(self) -> float | None:
        return max(0.0, 4 - self.others - self.n) if self._tells else None

    def steps(self, n: int) -> float:
        """What so many steps take, in steps with all threads on an idle machine."""
        total = 0.0
        for _ in range(n):
            ratio = 4 / self.n if self.n + self.others <= 4 else 15.0
            total += ratio
            self.crowding.observe(ratio)
        return total


@pytest.mark.parametrize("tells", [True, False])
def test_fewer_threads_while_another_program_computes(tells: bool) -> None:
    machine = Threads(tells=tells)
    machine.steps(100)
    assert machine.n == 4
    machine.others = 1.0
    machine.steps(20)
    assert machine.n == 2
    assert machine.steps(4000) < 1.1 * 2 * 4000
    machine.others = 0.0
    machine.steps(1100)
    assert machine.n == 4
    assert not machine.crowding.observe(1.0)


def test_two_very_slow_steps_at_the_start_are_enough_for_fewer_threads() -> None:
    machine = Threads()
    changed = [machine.crowding.observe(ratio) for ratio in (30.0, 1.0, 30.0, 30.0)]
    assert changed == [False, False, False, True]
    assert machine.n == 2


def test_one_slow_step_changes_no_thread() -> None:
    machine = Threads()
    machine.steps(50)
    for _ in range(10):
        machine.crowding.observe(10.0)
        machine.steps(20)
    assert machine.n_changes == 0


def test_fewer_threads_that_do_not_help_are_left_again_and_for_long() -> None:
    machine = Threads(others=4.0)
    machine.steps(1000)
    assert machine.n_changes <= 8
    machine.others = 0.0
    machine.steps(300)
    assert machine.n == 4
