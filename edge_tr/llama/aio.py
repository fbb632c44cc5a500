"""An iterator of slow items, for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_END: Any = object()


async def iterate(
    start: Callable[[], Generator[_Item, Any, Any]], cancel: Callable[[int], object]
) -> AsyncIterator[_Item]:
    """Items of a generator that runs in a thread of its own.

    Parameters
    ----------
    start : makes the generator, in that thread too.
    cancel : makes the thread of this ident stop soon; called when the task is cancelled while it
        waits for an item.
    """
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(1, "edge-tr-stream")
    thread = await loop.run_in_executor(pool, threading.get_ident)

    async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
        call = loop.run_in_executor(pool, function, *args)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            while not call.done():  # it may not have come to what can be cancelled yet
                cancel(thread)
                await asyncio.wait({call}, timeout=0.05)
            with suppress(Exception):  # what the cancelled call raised
                call.result()
            raise

    try:
        items = await in_thread(start)
        try:
            while (item := await in_thread(next, items, _END)) is not _END:
                yield item
        finally:
            await loop.run_in_executor(pool, items.close)
    finally:
        pool.shutdown(wait=False)
