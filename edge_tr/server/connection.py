"""A connection whose client may close its half and still get its answer."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

_PROBES_S = (0.05, 0.5)
"""Seconds after the client's half was closed."""


class Connection(H11Protocol):
    """uvicorn's connection; it closes at once where a client closes its half.

    Such a client may be gone altogether, which only writing tells: ``100 Continue``, which every
    client of HTTP/1.1 skips, is sent to find out.
    """

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the other half open while an answer is due and not begun."""
        cycle = self.cycle
        if cycle is None or cycle.response_started:
            return False  # of a stream that was begun the client wants no more
        cycle.keep_alive = False
        if cycle.scope["http_version"] == "1.1":
            for delay_s in _PROBES_S:
                asyncio.get_running_loop().call_later(delay_s, self._probe)
        return True

    def _probe(self) -> None:
        cycle = self.cycle
        if not self.transport.is_closing() and not cycle.response_started:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
