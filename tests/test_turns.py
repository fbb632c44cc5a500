from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from edge_tr.errors import CancelledError, ModelError
from edge_tr.llama.turns import Turns


def counting(turns: Turns, log: list[str], name: str) -> Generator[int, None, None]:
    for i in range(3):
        log.append(name)
        yield i


def wait_for_waiting(turns: Turns) -> None:
    while not turns._waiting:
        threading.Event().wait(0.001)


@pytest.fixture
def turns() -> Turns:
    return Turns(lambda: None)


def test_a_call_waits_for_a_stream_of_another_thread(turns: Turns) -> None:
    log: list[str] = []
    stream = turns.stream(counting(turns, log, "stream"))
    next(stream)

    def call() -> None:
        with turns.run():
            log.append("call")

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        wait_for_waiting(turns)
        assert list(stream) == [1, 2]
        future.result()
    assert log == ["stream"] * 3 + ["call"]


def test_a_closed_stream_ends_its_turn(turns: Turns) -> None:
    stream = turns.stream(counting(turns, [], ""))
    next(stream)
    stream.close()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: list(turns.stream(counting(turns, [], "")))).result()


def test_streams_of_one_thread_take_turns(turns: Turns) -> None:
    log: list[str] = []
    streams = [turns.stream(counting(turns, log, name)) for name in "ab"]
    assert list(zip(*streams, strict=True)) == [(0, 0), (1, 1), (2, 2)]
    assert log == ["a", "b"] * 3


def test_a_run_inside_a_run(turns: Turns) -> None:
    with turns.run(), turns.run():
        pass
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: list(turns.stream(counting(turns, [], "")))).result()


def test_an_error_ends_the_turn(turns: Turns) -> None:
    def failing() -> Generator[int, None, None]:
        yield 1
        raise KeyError

    stream = turns.stream(failing())
    next(stream)
    with pytest.raises(KeyError):
        next(stream)
    assert turns._open == []


def test_cancel_reaches_the_open_turn_and_not_the_waiting_one() -> None:
    interrupted: list[bool] = []
    turns = Turns(lambda: interrupted.append(True))
    stream = turns.stream(counting(turns, [], ""))
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        future: Future[list[int]] = pool.submit(lambda: list(turns.stream(counting(turns, [], ""))))
        wait_for_waiting(turns)
        turns.cancel()
        with pytest.raises(CancelledError):
            next(stream)
        assert future.result() == [0, 1, 2]
    assert interrupted == [True]


def test_cancel_of_one_thread_that_waits(turns: Turns) -> None:
    stream = turns.stream(counting(turns, [], ""))
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(threading.get_ident).result()
        future = pool.submit(lambda: list(turns.stream(counting(turns, [], ""))))
        wait_for_waiting(turns)
        turns.cancel(thread)
        with pytest.raises(CancelledError):
            future.result()
    assert list(stream) == [1, 2]


def test_close_turns_away_who_waits(turns: Turns) -> None:
    stream = turns.stream(counting(turns, [], ""))
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: list(turns.stream(counting(turns, [], ""))))
        wait_for_waiting(turns)
        assert turns.close()
        with pytest.raises(ModelError, match="closed"):
            future.result()
    assert not turns.close()
