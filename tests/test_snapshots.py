"""The choice whether a recurrent state gets snapshots, from what was measured."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_target import FakeTarget

from edge_tr.config import N_SNAPSHOTS
from edge_tr.costs.table import CostTable
from edge_tr.errors import CancelledError
from edge_tr.measuring import snapshots
from edge_tr.measuring.lock import measuring_alone
from edge_tr.measuring.snapshots import choose_snapshots


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))


class Machine:
    """Opens fake targets whose steps take what it says.

    Attributes
    ----------
    opened : numbers of snapshots asked for.
    n_measured : measurements.
    """

    def __init__(
        self,
        plain_s: tuple[float, float] = (1.0, 1.0),
        chain_s: float = 2.0,
        *,
        most: int = 99,
        bytes_each: int = 1000,
    ) -> None:
        self.plain_s = {0: plain_s[0]}
        self.other_plain_s = plain_s[1]
        self.chain_s = chain_s
        self.most = most
        self.bytes_each = bytes_each
        self.opened: list[int] = []
        self.n_measured = 0

    def reopen(self, n_snapshots: int) -> Any:
        self.opened.append(n_snapshots)
        n_rewind = min(n_snapshots, self.most)
        machine = self

        class Target(FakeTarget):
            def cost_key(self) -> dict[str, Any]:
                return {"model": "fake", "n_snapshots": n_rewind}

            def snapshot_bytes(self) -> int:
                return machine.bytes_each

        return Target(n_lanes=1, can_rewind=False, n_rewind=n_rewind)

    def measure(self, target: FakeTarget, topk: Any, width: int, *, steady: bool) -> CostTable:
        self.n_measured += 1
        plain_s = self.plain_s.get(target.n_rewind, self.other_plain_s)
        return CostTable((1, width), (0,), ((plain_s, self.chain_s),), steady=steady)

    def choose(self, monkeypatch: pytest.MonkeyPatch, model_bytes: int = 0) -> tuple[int, str]:
        monkeypatch.setattr(snapshots, "measure_two", self.measure)
        target, line = choose_snapshots(self.reopen, model_bytes, k=8, n_threads=1)
        return target.n_rewind, line


def test_snapshots_that_pay_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    n, line = Machine(bytes_each=5_000_000).choose(monkeypatch)
    assert n == N_SNAPSHOTS
    assert f"{N_SNAPSHOTS} tokens" in line
    assert "35 MB" in line


def test_the_choice_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    first = machine.choose(monkeypatch)
    n_measured = machine.n_measured
    assert machine.choose(monkeypatch) == first
    assert machine.n_measured == n_measured > 0


def test_the_state_of_a_busy_machine_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    with measuring_alone():
        monkeypatch.setattr(snapshots, "measuring_alone", partial(measuring_alone, 0.0))
        machine.choose(monkeypatch)
        n_measured = machine.n_measured
        machine.choose(monkeypatch)
    assert machine.n_measured == 2 * n_measured


@pytest.mark.parametrize(
    "machine",
    [
        Machine(plain_s=(1.0, 1.1)),  # a plain step with them takes longer
        Machine(chain_s=7.9),  # a chain costs as much as its tokens alone
    ],
)
def test_snapshots_that_do_not_pay_are_left_out(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, line = machine.choose(monkeypatch)
    assert n == 0
    assert "drafting is off" in line
    assert machine.opened[-1] == 0


def test_a_state_that_cannot_be_rewound_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(most=0)
    assert machine.choose(monkeypatch) == (0, "")
    assert len(machine.opened) == 1


def test_snapshots_take_a_part_of_the_models_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(bytes_each=100_000_000)
    assert machine.choose(monkeypatch, 1_200_000_000)[0] == 3
    assert machine.choose(monkeypatch, 100_000_000)[0] == 0


def test_a_measurement_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()

    def stop(*_: Any, **__: Any) -> CostTable:
        raise CancelledError("the generation was cancelled")

    monkeypatch.setattr(machine, "measure", stop)
    n, line = machine.choose(monkeypatch)
    assert n == 0
    assert "in time" in line
