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
    start: Callable[[], Generator[_Item, Any, Any]], cancel: Callable[[int], None]
) -> AsyncIterator[_Item]:
    """Items of a generator that runs in a thread of its own.

    Parameters
    ----------
    start : makes the generator.
    cancel : makes the thread of this ident stop soon; called when the task is cancelled while it
        waits for an item.
    """
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(1, "edge-tr-stream")
    try:
        thread = await loop.run_in_executor(pool, threading.get_ident)
        items = start()
        try:
            while True:
                item = loop.run_in_executor(pool, next, items, _END)
                try:
                    value = await asyncio.shield(item)
                except asyncio.CancelledError:
                    cancel(thread)
                    with suppress(Exception):  # what the cancelled generator raises
                        await item
                    raise
                if value is _END:
                    return
                yield value
        finally:
            await loop.run_in_executor(pool, items.close)
    finally:
        pool.shutdown(wait=False)
