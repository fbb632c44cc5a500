"""Shows that something takes its time: a line with the seconds so far."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from edge_tr.cli.output import note

_TICK_S = 0.2
_CLEAR = "\r\x1b[K"


@contextmanager
def loading(path: Path) -> Iterator[Callable[[str], None]]:
    """While a model is opened: on a terminal a line that counts seconds, else one line.

    Gives a function that shows further lines in between.
    """
    size = f"{path.stat().st_size / 1e6:.0f} MB" if path.exists() else "missing"
    what = f"loading {path.name} ({size})"
    if not sys.stderr.isatty():
        note(what)
        yield note
        return
    done = threading.Event()
    started = perf_counter()

    def tick() -> None:
        while not done.wait(_TICK_S):
            print(
                f"\redge-tr: {what} {perf_counter() - started:.1f} s",
                end="",
                file=sys.stderr,
                flush=True,
            )

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()

    def tell(line: str) -> None:
        print(_CLEAR, end="", file=sys.stderr)
        note(line)

    try:
        yield tell
    finally:
        done.set()
        thread.join()
        print(_CLEAR, end="", file=sys.stderr, flush=True)
