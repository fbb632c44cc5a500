"""One thread that answers requests in turn: a queue with a limit, each job can be cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import closing
from queue import SimpleQueue
from typing import Generic, TypeVar

from edge_tr.errors import CancelledError

T = TypeVar("T")


class QueueFullError(Exception):
    """As many requests wait as may."""


class Job(Generic[T]):
    """Work whose results are awaited one by one: ``async for result in job``.

    Parameters
    ----------
    work : makes the results.
    interrupt : makes the work raise CancelledError soon, even if it has not begun; from any thread.
    """

    def __init__(
        self, work: Callable[[], Generator[T, None, None]], interrupt: Callable[[], object]
    ) -> None:
        self._work, self._interrupt = work, interrupt
        self._loop = asyncio.get_running_loop()
        self._results: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue()
        self.cancelled = False

    def run(self) -> None:
        """Do the work, in the worker's thread."""
        try:
            if self.cancelled:
                raise CancelledError("the request was cancelled")
            with closing(self._work()) as results:
                for result in results:
                    self._put((result,))
                    if self.cancelled:
                        raise CancelledError("the request was cancelled")
            end: Exception | None = None
        except Exception as error:  # raised again where the results are awaited
            end = error
        self._put(end)

    def cancel(self) -> None:
        """End the work soon. Results still come until it ends."""
        self.cancelled = True
        self._interrupt()

    def _put(self, result: tuple[T] | Exception | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._results.put_nowait, result)

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            result = await self._results.get()
            if result is None:
                return
            if isinstance(result, Exception):
                raise result
            yield result[0]


class Worker:
    """Runs jobs one after the other.

    Parameters
    ----------
    max_waiting : jobs that may wait while one runs.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._queue: SimpleQueue[Job[object] | None] = SimpleQueue()
        self._jobs: list[Job[object]] = []
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="edge-tr-worker", daemon=True)
        self._thread.start()

    @property
    def n_jobs(self) -> int:
        """Jobs that run or wait, those that were cancelled left out."""
        return sum(not job.cancelled for job in tuple(self._jobs))

    def submit(
        self, work: Callable[[], Generator[T, None, None]], interrupt: Callable[[], object]
    ) -> Job[T]:
        """A job that does the work when its turn comes; called in the event loop.

        Parameters
        ----------
        work, interrupt : see ``Job``.

        Raises
        ------
        QueueFullError : as many wait as may.
        CancelledError : the worker stops.
        """
        job = Job(work, interrupt)
        with self._lock:
            if self._stopping:
                raise CancelledError("the server is stopping")
            if self.n_jobs > self._max_waiting:
                raise QueueFullError
            self._jobs.append(job)  # type: ignore[arg-type]
            self._queue.put(job)  # type: ignore[arg-type]
        return job

    def stop(self) -> None:
        """Cancel every job and take no more."""
        with self._lock:
            self._stopping = True
            jobs = list(self._jobs)
        for job in jobs:
            job.cancel()

    def join(self) -> None:
        """Wait until the jobs in the queue are done, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job.run()
            finally:
                with self._lock:
                    self._jobs.remove(job)
