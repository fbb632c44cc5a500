"""Run the parts of a measurement within a budget, each in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, perf_counter, sleep, strftime
from typing import Any

from bench.gpu_expect import conclude, summarise
from bench.gpu_parts import write_model

_GRACE_S = 15.0
"""Seconds that a part may run over its time before it is ended."""


@dataclass(frozen=True)
class Part:
    """One measurement.

    Attributes
    ----------
    needs_s : it is skipped where less time is left.
    most_s : time that it may take.
    """

    name: str
    run: Callable[..., None]
    needs_s: float
    most_s: float
    options: dict[str, Any] = field(default_factory=dict)


class Writer(threading.Thread):
    """Writes the shape models one after the other, each in a process of its own."""

    def __init__(self, directory: Path, wanted: Sequence[tuple[str, str, str]]) -> None:
        super().__init__(daemon=True)
        self.directory = directory
        self.seconds: dict[str, float] = {}
        self._wanted = wanted
        self._stopped = False
        self._process: Any = None

    def path(self, name: str) -> Path:
        """Where a model is once it is whole."""
        return self.directory / f"{name}.gguf"

    def run(self) -> None:
        for name, size, quantisation in self._wanted:
            if self._stopped:
                return
            started = monotonic()
            self._process = processes().Process(
                target=write_model, args=(self.path(name), size, quantisation)
            )
            self._process.daemon = True
            self._process.start()
            self._process.join()
            self.seconds[name] = round(monotonic() - started, 2)

    def stop(self) -> None:
        """Leave what is not written yet."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()
        self.join()


class Bench:
    """Runs parts until the budget is spent and keeps the file of results up to date."""

    def __init__(self, out: Path, scratch: Path, budget_s: float, name: str = "") -> None:
        self.scratch = scratch
        self.parts: dict[str, dict[str, Any]] = {}
        self.skipped: dict[str, str] = {}
        self.written_s: dict[str, float] = {}
        self._summary: dict[str, Any] = {}
        self._out = out
        self._name = name
        self._stop = monotonic() + budget_s
        self._started = (monotonic(), strftime("%Y-%m-%d %H:%M:%S"))

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self._stop - monotonic()

    @property
    def path(self) -> Path:
        """The file of results, named after the device."""
        name = self._name or self.parts.get("facts", {}).get("device", "unknown device")
        return self._out / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".json")

    def run(self, part: Part) -> None:
        """Run one part, or note why not."""
        if self.left_s < part.needs_s:
            self.skipped[part.name] = f"needs {part.needs_s:.0f} s, {self.left_s:.0f} s were left"
            self.save()
            return
        seconds = min(part.most_s, self.left_s - 2)
        found = self.parts[part.name] = {}
        started = monotonic()
        receive, send = processes().Pipe(duplex=False)
        process = processes().Process(
            target=_child, args=(send, part.run, seconds, self.scratch, part.options)
        )
        process.daemon = True
        process.start()
        send.close()
        try:
            while True:
                if not receive.poll(max(0.0, started + seconds + _GRACE_S - monotonic())):
                    found["error"] = f"ended after {monotonic() - started:.0f} s"
                    break
                try:
                    name, value = receive.recv()
                except EOFError:
                    process.join()
                    break
                found[name] = value
                self.save()
        finally:
            _kill(process)
        process.join()
        receive.close()
        if process.exitcode and "error" not in found:
            found["error"] = f"the process ended with {process.exitcode}"
        found["wall_s"] = round(monotonic() - started, 1)
        self.save()
        error = found.get("error", "").strip().splitlines()[-1:]
        _note(f"{monotonic() - self._started[0]:6.1f} s  {part.name}  {' '.join(error)}")

    def finish(self) -> dict[str, Any]:
        """Conclude from all parts, save, and return what the last line says."""
        failed = [name for name, found in self.parts.items() if "error" in found]
        facts = {"device": self.parts.get("facts", {}).get("device"), "file": self.path.name}
        self._summary = facts | {"failed": failed, "skipped": list(self.skipped)}
        self._summary |= conclude(self.parts)
        self.save()
        return {name: v for name, v in self._summary.items() if name not in ("expected", "bound")}

    def save(self) -> None:
        """Write the file of results; the old one stays until the new one is whole."""
        summaries = {n: summarise(p["rows"]) for n, p in self.parts.items() if p.get("rows")}
        results = {"started": self._started[1], "command": sys.argv, "summary": self._summary}
        results |= {"arms": summaries, "written_s": self.written_s}
        results |= {"skipped": self.skipped, "parts": self.parts}
        self._out.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".tmp")
        partial.write_text(json.dumps(results, indent=1, default=str) + "\n")
        partial.replace(self.path)


def processes() -> Any:
    """How processes are made: forked from a clean one, since a GPU does not survive a fork."""
    return multiprocessing.get_context("forkserver")


def _kill(process: Any) -> None:
    """End what is left of a part: its process, and programs that it started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _child(
    send: Connection,
    run: Callable[..., None],
    seconds: float,
    scratch: Path,
    options: dict[str, Any],
) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    for name in ("CACHE", "DATA"):
        os.environ[f"EDGE_TR_{name}_DIR"] = str(scratch / name.lower())
    stop = perf_counter() + seconds
    try:
        run(lambda name, value: send.send((name, value)), stop, **options)
    except Exception:
        send.send(("error", traceback.format_exc()))
    send.close()


def run_all(bench: Bench, parts: Sequence[Part], writer: Writer) -> None:
    """Run the parts in order; one whose model is not written yet lets the next go first."""
    pending = list(parts)
    while pending:
        missing = [p for p in pending if not p.options["model"].exists()]
        ready = [p for p in pending if p not in missing]
        bench.written_s = dict(writer.seconds)
        if ready:
            pending.remove(ready[0])
            bench.run(ready[0])
        elif not writer.is_alive() or bench.left_s < min(p.needs_s for p in missing):
            for part in missing:
                bench.skipped[part.name] = f"{part.options['model'].name} is not there"
            pending.clear()
        else:
            sleep(0.05)


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
