"""How many threads a text begins with, and what tells of programs that run beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from edge_tr.costs.crowding import Crowding
from edge_tr.costs.running import StepCosts
from edge_tr.machine import idle


class Machine:
    """Cores for us at each look; notes the threads that were set."""

    def __init__(self, n_cores: int | None, n_threads: int = 4) -> None:
        self.n_cores = n_cores
        self.own: list[int] = []
        self.threads: list[int] = []
        self.crowding = Crowding(n_threads, self.threads.append, lambda: 0.0, self.look)

    def look(self, wanted: int, own: int) -> int | None:
        self.own.append(own)
        return self.n_cores


@pytest.mark.parametrize(("n_cores", "n_used"), [(4, 4), (9, 4), (3, 3), (1, 1), (0, 1), (None, 4)])
def test_a_text_begins_with_threads_for_the_cores_that_are_left(
    n_cores: int | None, n_used: int
) -> None:
    machine = Machine(n_cores)
    StepCosts(crowding=machine.crowding).begin()
    assert machine.crowding.n_used == n_used
    assert machine.threads == [n_used] * (n_used < 4)


def test_own_threads_that_still_look_for_work_are_not_another_program() -> None:
    machine = Machine(4)
    machine.crowding.begin()
    machine.crowding.observe(1.0)
    machine.crowding.begin()
    assert machine.own == [0, 3]


def test_fewer_threads_stay_until_all_are_tried_again() -> None:
    machine = Machine(2)
    machine.crowding.begin()
    machine.n_cores = 4
    machine.crowding.begin()
    for _ in range(40):
        machine.crowding.observe(1.5)
    assert machine.threads == [2]


@pytest.mark.parametrize(
    ("running", "own", "expected", "n_looks"),
    [
        ([1], 0, 4, 1),
        ([3, 3, 1], 0, 4, 3),
        ([3] * 6, 0, 2, 6),
        ([3] * 6, 2, 4, 1),
        ([9] * 6, 0, 0, 6),
        ([3, 2, 3, 3, 3, 3], 0, 3, 6),
    ],
)
def test_other_programs_are_those_that_run_at_every_look(
    monkeypatch: pytest.MonkeyPatch, running: Sequence[int], own: int, expected: int, n_looks: int
) -> None:
    looks = iter(running)

    class Load:
        def read_text(self) -> str:
            return f"0.00 0.01 0.05 {next(looks)}/150 4242\n"

    monkeypatch.setattr(idle, "_LOAD", Load())
    monkeypatch.setattr(idle, "sleep", lambda s: None)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert idle.cores_now(4, own) == expected
    assert len(running) - len(list(looks)) == n_looks


def test_a_system_that_does_not_tell_has_no_number_of_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(idle, "_LOAD", tmp_path / "missing")
    assert idle.cores_now(4) is None


@pytest.mark.parametrize(
    ("used", "expected", "n_told"),
    [([0.1], True, 0), ([1.0, 0.9, 0.2], True, 1), ([1.0] * 9, False, 1), ([None], None, 0)],
)
def test_a_quiet_second_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    used: Sequence[float | None],
    expected: bool | None,
    n_told: int,
) -> None:
    now, seconds = [0.0], iter(used)
    told: list[float] = []

    def pass_by(s: float) -> None:
        now[0] += s

    monkeypatch.setattr(idle, "sleep", pass_by)
    monkeypatch.setattr(idle, "monotonic", lambda: now[0])
    monkeypatch.setattr(idle, "BusyCores", lambda: lambda: next(seconds))
    assert idle.wait_until_quiet(5.0, lambda: told.append(now[0])) is expected
    assert len(told) == n_told


def test_our_own_work_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now, own, idle_s = [10.0], [1.0], [100.0]
    monkeypatch.setattr(idle, "monotonic", lambda: now[0])
    monkeypatch.setattr(idle, "process_time", lambda: own[0])
    monkeypatch.setattr(idle, "_idle_s", lambda: idle_s[0])
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    others = idle.BusyCores()
    now[0], own[0], idle_s[0] = 12.0, 4.0, 102.0
    assert others() == pytest.approx(4 - 1.0 - 1.5)
    now[0], own[0], idle_s[0] = 13.0, 8.0, 103.0
    assert others() == 0.0
