"""A connection whose client may close its half and still get its answer."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_PROBES_S = (0.05, 0.5)
"""Seconds after the client's half was closed."""

EVENTS = "sends_events"
"""Set in the state of a request whose answer is a stream of events."""


class Connection(H11Protocol):
    """uvicorn's connection; it closes at once where a client closes its half.

    Such a client may be gone altogether, which only writing tells, and which no write would tell
    soon where the next token takes long. So something is sent to find out that every client
    skips: ``100 Continue`` before an answer, a comment in a stream of events.
    """

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the other half open while an answer is due."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        cycle.keep_alive = False
        for delay_s in _PROBES_S:
            asyncio.get_running_loop().call_later(delay_s, self._probe)
        return True

    def _probe(self) -> None:
        cycle = self.cycle
        if self.transport.is_closing() or cycle.response_complete:
            return
        if cycle.response_started:
            if cycle.scope["state"].get(EVENTS):
                self.transport.write(self.conn.send(h11.Data(data=b":\n\n")) or b"")
        elif cycle.scope["http_version"] == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
