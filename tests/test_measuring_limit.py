"""Measuring ends after some time; with more threads than cores that is soon, and told before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_target import FakeTarget

from edge_tr.config import DraftConfig
from edge_tr.drafting import Drafting
from edge_tr.measuring import limit
from edge_tr.measuring.limit import time_limit

WARNING = "600 threads on 2 cores make decode steps slow"


class Crowded(FakeTarget):
    """A target of 600 threads."""

    n_threads = 600

    def cost_key(self) -> dict[str, Any]:
        return {"model": "crowded"}


class Clock:
    """Stands in for ``threading.Timer``: its time is up when ``fire`` is called."""

    started: Clock | None = None

    def __init__(self, seconds: float, call: Callable[..., None], args: tuple[bool]) -> None:
        self.seconds, self._call, self._args = seconds, call, args
        self.cancelled = self.daemon = False

    def start(self) -> None:
        Clock.started = self

    def cancel(self) -> None:
        self.cancelled = True

    def fire(self) -> None:
        if not self.cancelled:
            self._call(*self._args)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("edge_tr.measuring.limit.threading.Timer", Clock)
    monkeypatch.setattr(limit, "_usable_cores", lambda: 2)


@pytest.mark.parametrize(("n_threads", "expected"), [(1, 300.0), (2, 300.0), (3, 5.0), (600, 5.0)])
def test_more_threads_than_cores_get_less_time(n_threads: int, expected: float) -> None:
    target = Crowded()
    target.n_threads = n_threads
    seconds, warning = time_limit(target)
    assert seconds == expected
    assert warning == (
        f"{n_threads} threads on 2 cores make decode steps slow" if expected == 5.0 else ""
    )


def opened(target: Crowded, told: list[str], at_call: int) -> Drafting:
    """A target that is opened; the time for measuring is up in one of its steps."""

    def step() -> None:
        if target.n_calls == at_call:
            assert Clock.started is not None
            Clock.started.fire()

    target.on_decode = step
    return Drafting(target, DraftConfig(start="empty"), "f" * 32, progress=told.append)


@pytest.mark.parametrize("at_call", [1, 3, 40])
def test_measuring_that_takes_too_long_ends_and_says_so(at_call: int) -> None:
    target, told = Crowded(n_ctx=400, n_batch=64), list[str]()
    drafting = opened(target, told, at_call)
    assert Clock.started is not None
    assert Clock.started.seconds == 5.0
    assert told[0] == f"{WARNING}; measuring them for 5 s at most"
    assert target.n_calls == at_call
    assert drafting.decoder.drafter is None
    assert drafting.notices == [
        WARNING,
        "drafting is off: what decode steps cost here was not known after 5 s",
    ]


def test_a_model_whose_measuring_ended_early_answers() -> None:
    target = Crowded(n_ctx=400, n_batch=64)
    drafting = opened(target, [], at_call=3)
    steps = drafting.decoder.generate([1, 2, 3], max_tokens=5)
    expected = target.model.generate([1, 2, 3], 400, max_tokens=5)
    assert [token for step in steps for token in step] == expected
