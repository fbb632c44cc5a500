"""Server-sent events, and work that ends when the client is gone."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge_tr.errors import EdgeTRError
from edge_tr.server.connection import EVENTS
from edge_tr.server.errors import error_body
from edge_tr.server.worker import Job

logger = logging.getLogger("edge_tr.server")


@asynccontextmanager
async def ends_with(receive: Receive, job: Job[Any]) -> AsyncIterator[None]:
    """Cancel the job when the client disconnects or the block is left."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        job.cancel()


class EventStream(Response):
    """Sends each object as one event while it comes, then ``[DONE]``.

    An error after the first byte cannot change the status any more, so it is sent as an event.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[dict[str, Any]], job: Job[Any]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._job = events, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"][EVENTS] = True
        async with ends_with(receive, self._job):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for data in self._lines():
                body = f"data: {data}\n\n".encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _lines(self) -> AsyncIterator[str]:
        try:
            async for event in self._events:
                yield json.dumps(event)
        except Exception as error:
            if not isinstance(error, EdgeTRError):
                logger.exception("a stream failed")
            yield json.dumps(error_body(error)[1])
        else:
            yield "[DONE]"
