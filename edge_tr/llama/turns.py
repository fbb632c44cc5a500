"""Whose turn it is with an object that serves one caller at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from edge_tr.errors import CancelledError, ModelError

_Item = TypeVar("_Item")
_Sent = TypeVar("_Sent")


class Turn:
    """One call or one stream. A stream keeps its turn until it ends, also between two items."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.cancelled = False


class Turns:
    """Lets one turn run at a time; other threads wait until it has ended.

    A thread that opened a stream and did not end it may start something else, since it would
    wait for itself: the stream gives way and goes on when it is asked for its next item. A
    generator may be advanced by several threads in turn.

    Parameters
    ----------
    interrupt : makes what runs now stop soon; called from other threads.
    used : a block in which the object is there and not unloaded.
    """

    def __init__(
        self,
        interrupt: Callable[[], object],
        used: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._interrupt = interrupt
        self._used = used
        self._condition = threading.Condition()
        self._pid = os.getpid()
        self._open: list[Turn] = []
        self._waiting: list[Turn] = []
        self._running: Turn | None = None
        self._closed = False

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that opened the object."""
        return os.getpid() != self._pid

    @property
    def is_usable(self) -> bool:
        """Whether the object is open, in the process that opened it."""
        return not self._closed and not self.is_forked

    @property
    def cancelled(self) -> bool:
        """Whether the turn that is running was cancelled."""
        return self._running is not None and self._running.cancelled

    @contextmanager
    def run(self, turn: Turn | None = None) -> Iterator[None]:
        """Run a part of a turn, or a whole one without ``turn``; waits until it may.

        Raises
        ------
        ModelError : the object is closed, or this process is a fork.
        CancelledError : the turn was cancelled while it waited.
        """
        self._check_usable()
        thread = threading.get_ident()
        if self._running is not None and self._running.thread == thread:
            yield
            return
        with self._used(), self._alone(turn, thread):
            yield

    @contextmanager
    def _alone(self, turn: Turn | None, thread: int) -> Iterator[None]:
        whole = turn is None
        turn = turn or Turn()
        with self._condition:
            turn.thread = thread
            self._waiting.append(turn)
            try:
                self._condition.wait_for(lambda: self._may_run(turn) or turn.cancelled)
            finally:
                self._waiting.remove(turn)
            self._check_usable()
            if turn.cancelled:
                raise CancelledError("the generation was cancelled")
            if turn in self._open:
                self._open.remove(turn)
            self._open.append(turn)
            self._running = turn
        try:
            yield
        finally:
            with self._condition:
                self._running = None
                if whole:
                    self._open.remove(turn)
                self._condition.notify_all()

    def _may_run(self, turn: Turn) -> bool:
        if self._closed:
            return True
        if self._running is not None:
            return False
        return not self._open or self._open[-1] is turn or self._open[-1].thread == turn.thread

    def _check_usable(self) -> None:
        if self.is_forked:
            raise ModelError(
                f"the model was opened by process {self._pid} and cannot be used in a fork of it; "
                "open it again in this process"
            )
        if self._closed:
            raise ModelError("the model is closed; open it again")

    def stream(
        self, items: Generator[_Item, _Sent, None], turn: Turn | None = None
    ) -> Generator[_Item, _Sent, None]:
        """The items of a generator, each made in one turn that lasts until the end."""
        turn = turn or Turn()
        sent: Any = None
        self._check_usable()
        try:
            with self._used():
                while True:
                    with self.run(turn):
                        try:
                            item = items.send(sent)
                        except StopIteration:
                            return
                    sent = yield item
        finally:
            items.close()
            self._end(turn)

    def _end(self, turn: Turn) -> None:
        if self.is_forked:
            return
        with self._condition:
            if turn in self._open:
                self._open.remove(turn)
            self._condition.notify_all()

    def cancel(self, thread: int | None = None) -> bool:
        """Cancel the turn that is running or open, or the one of a thread; False if there is
        none."""
        with self._condition:
            turns = [*self._waiting, *self._open] if thread is not None else self._open
            chosen = [t for t in turns if thread is None or t.thread == thread]
            if chosen:
                self._cancel(chosen[-1])
            return bool(chosen)

    def cancel_turn(self, turn: Turn) -> None:
        """Cancel this turn, even before it begins."""
        with self._condition:
            self._cancel(turn)

    def _cancel(self, turn: Turn) -> None:
        turn.cancelled = True
        if turn in self._open and self._running in (None, turn):
            self._interrupt()
        self._condition.notify_all()

    def close(self) -> bool:
        """Let nobody run any more, stop who runs and wait for that; False if it already was."""
        with self._condition:
            if self._closed:
                return False
            self._closed = True
            thread = threading.get_ident()
            if self._running is not None and self._running.thread != thread:
                self._running.cancelled = True
                self._interrupt()
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._running is None)
            self._condition.notify_all()
        return True
