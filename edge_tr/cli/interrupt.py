"""Ctrl-C while llama.cpp computes: the work runs in a thread, the main thread hears signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from edge_tr.cli.output import note

if TYPE_CHECKING:
    from edge_tr.answer import Answer
    from edge_tr.session import Session
    from edge_tr.target import Int32

T = TypeVar("T")


class Interruptible:
    """Runs one job that Ctrl-C can stop.

    While a model is being opened the first Ctrl-C ends the process; nothing is there to keep.
    Once text is generated it cancels the generation, a second one changes nothing, and a third
    one ends the process even if the first is still waited for.

    Parameters
    ----------
    session : open already, so that the first Ctrl-C stops what it generates.
    """

    def __init__(self, session: Session | None = None) -> None:
        self._session = session
        self._n_signals = 0

    def run(self, job: Callable[[], T]) -> T:
        """Run the job in a thread, and return what it returns or raise what it raises."""
        outcome: list[T] = []
        failure: list[BaseException] = []
        done = threading.Event()

        def work() -> None:
            try:
                outcome.append(job())
            except BaseException as error:  # raised again below, in the main thread
                failure.append(error)
            finally:
                done.set()

        in_main = threading.current_thread() is threading.main_thread()
        previous = signal.signal(signal.SIGINT, self._on_signal) if in_main else None
        try:
            threading.Thread(target=work, daemon=True).start()
            while not done.wait(0.1):  # Windows hears signals only between waits
                pass
        finally:
            if in_main:
                signal.signal(signal.SIGINT, previous)
        if failure:
            raise failure[0]
        return outcome[0]

    def watch(self, session: Session) -> None:
        """From now on Ctrl-C stops what this session generates, or is about to."""
        self._session = session

    def answer(self, session: Session, prompt: Int32, **config: Any) -> Answer:
        """``session.answer``, which Ctrl-C makes raise CancelledError from now on.

        Parameters
        ----------
        config : of ``AnswerConfig``.
        """
        from edge_tr.answer import AnswerConfig

        self.watch(session)
        answer = session.answer(prompt, AnswerConfig(**config))
        if self._n_signals:
            answer.cancel()
        return answer

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        self._n_signals += 1
        if self._session is None or self._n_signals > 2:
            note("interrupted")
            os._exit(130)
        self._session.cancel()
