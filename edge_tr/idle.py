"""Something that takes much memory is given back while nobody uses it."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from edge_tr.errors import ConfigError

logger = logging.getLogger("edge_tr")


class Idle:
    """Frees something after some time without a use, and has it back before the next one.

    Uses may overlap, in any thread; who comes while it is being freed or brought back waits.

    Parameters
    ----------
    idle_s : seconds without a use after which it is freed; None never frees it.
    free, restore : methods that give it back and bring it back; the object that they belong to is
        not kept alive.
    clock : seconds of some clock.

    Attributes
    ----------
    idle_s : as given.
    is_asleep : whether it is freed now.

    Raises
    ------
    ConfigError : ``idle_s`` is not above 0.
    """

    def __init__(
        self,
        idle_s: float | None,
        free: Callable[[], Any],
        restore: Callable[[], Any],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if idle_s is not None and not 0 < idle_s < threading.TIMEOUT_MAX:
            raise ConfigError(
                f"idle_unload_s {idle_s} is not allowed; it must be above 0", field="idle_unload_s"
            )
        self.is_asleep = False
        self.idle_s = idle_s
        self._free, self._restore = weakref.WeakMethod(free), weakref.WeakMethod(restore)
        self._clock = clock
        self._lock = threading.Lock()
        self._n_users = 0
        self._last = clock()
        self._ended = threading.Event()

    def watch(self) -> None:
        """Begin to free it in time, in a thread that ends with this object."""
        if self.idle_s is not None:
            self._last = self._clock()
            weakref.finalize(self, self._ended.set)
            arguments = weakref.ref(self), self._ended
            threading.Thread(
                target=_watch, args=arguments, name="edge-tr-idle", daemon=True
            ).start()

    @contextmanager
    def used(self) -> Iterator[None]:
        """It is there, and stays there, inside the block.

        Raises
        ------
        Exception : it cannot be brought back; the next use tries again.
        """
        if self.idle_s is None:
            yield
            return
        with self._lock:
            restore = self._restore()
            if self.is_asleep and restore is not None:
                restore()
                self.is_asleep = False
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1
                self._last = self._clock()

    def check(self) -> float:
        """Free it where it is time; the seconds until it may be time again."""
        assert self.idle_s is not None
        with self._lock:
            left = self._last + self.idle_s - self._clock()
            if self.is_asleep or self._n_users or self._ended.is_set():
                return self.idle_s
            free = self._free()
            if left > 0 or free is None:
                return max(left, 0.0)
            try:
                free()
            except Exception:
                logger.exception("the model could not be unloaded")
                self._last = self._clock()
            else:
                self.is_asleep = True
            return self.idle_s

    def close(self) -> None:
        """Free nothing from now on; waits for what is being freed."""
        self._ended.set()
        with self._lock:
            pass


def _watch(reference: weakref.ref[Idle], ended: threading.Event) -> None:
    wait_s = 0.0
    while not ended.wait(wait_s):
        idle = reference()
        if idle is None:
            return
        wait_s = max(idle.check(), 0.01)
        del idle
