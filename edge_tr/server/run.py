"""Listen, answer, and stop at a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from edge_tr.errors import ConfigError
from edge_tr.server.app import make_app
from edge_tr.server.config import ServerConfig
from edge_tr.server.connection import Connection
from edge_tr.server.service import Service

_SECONDS_TO_STOP = 1
"""How long open connections may take once the server is asked to stop."""

_SECONDS_TO_END = 1.8
"""After this long from a signal the process ends, whatever still runs in native code."""


def listen(config: ServerConfig) -> socket.socket:
    """A socket that listens where the configuration says.

    Raises
    ------
    ConfigError : the address is taken, or is not of this machine.
    """
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config.host} port {config.port}: {error.strerror or error}"
        ) from None


class Server(uvicorn.Server):
    """Answers on a socket until it is asked to stop; then what is being answered is cancelled."""

    def __init__(self, service: Service) -> None:
        super().__init__(
            uvicorn.Config(
                make_app(service),
                log_level="warning",
                access_log=False,
                server_header=False,
                http=Connection,
                ws="none",
                timeout_graceful_shutdown=_SECONDS_TO_STOP,
            )
        )
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: threading.Timer | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it; the loop is kept, so that ``stop`` can reach it."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def stop(self) -> None:
        """Stop soon; from any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._service.worker.stop)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at a signal."""
        if self._end is None:
            self._end = threading.Timer(_SECONDS_TO_END, os._exit, (0,))
            self._end.daemon = True
            self._end.start()
        self.stop()

    def ended(self) -> None:
        """All that runs has ended and is saved, so the process need not be ended."""
        if self._end is not None:
            self._end.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hear SIGINT and SIGTERM. uvicorn raises them again at the end, which would leave the
        caller no time to save and close."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
