"""Tokens a second while other programs compute: ``python -m bench.busy --json``.

Each arm is a process of its own that answers one prompt greedily for some seconds: automatic mode
as it comes, and automatic mode with each fixed choice of threads (all, half, one) and of how
threads wait for each other (as the build has it, or asleep). Beside it run 0, 1 and 2 processes
that compute, and once a second edge_tr that answers all the time; they end with the measurement.
``share`` of a cell is the speed of automatic mode over that of the best fixed choice,
``over_one_thread`` over that of one thread. Speeds are the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from edge_tr import models
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.errors import ConfigError
from edge_tr.machine.facts import n_cores
from edge_tr.session import Session

_SPIN = "while True: pass"
_MOST_S = 600
_PROMPT = "Write a letter to a friend about a walk in the mountains, with all that happened."


def answer(model: str, n_threads: int, seconds: float) -> dict[str, float]:
    """Answer again and again for some seconds; tokens per second, and the threads at the end."""
    context = ContextConfig(n_ctx=2048, n_threads=n_threads, n_threads_batch=n_threads)
    draft = DraftConfig(start="empty", n_history=0)
    with Session(models.path(model), context=context, draft=draft) as session:
        try:
            prompt = session.prompt_tokens(_PROMPT)
        except ConfigError:  # a timing shape has no tokenizer
            prompt = np.arange(1, 33, dtype=np.int32)
        n_tokens, started = 0, perf_counter()
        while perf_counter() - started < seconds:
            for step in session.decoder.generate(prompt, max_tokens=400):
                n_tokens += len(step)
                if perf_counter() - started >= seconds:
                    break
        taken_s = perf_counter() - started
        return {"tps": n_tokens / taken_s, "n_threads": session.target.n_threads}


def arms() -> dict[str, tuple[int, bool]]:
    """Threads, 0 = ours to choose, and whether waiting threads sleep."""
    counts = sorted({1, max(1, n_cores() // 2), n_cores()})
    fixed = {f"{n} threads": (n, False) for n in counts}
    asleep = {f"{n} threads, asleep": (n, True) for n in counts if n > 1}
    return {"automatic": (0, False)} | fixed | asleep


def measure(model: str, n_threads: int, asleep: bool, seconds: float) -> float:
    """Tokens per second of one arm in a process of its own; 0 where it does not answer."""
    environment = dict(os.environ)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        environment.pop(name, None)
    if asleep:
        environment["OMP_WAIT_POLICY"] = "passive"
    command = [sys.executable, "-m", "bench.busy", "--model", model, "--seconds", str(seconds)]
    done = subprocess.run(
        [*command, "--one", str(n_threads)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_MOST_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"an arm ended with {done.returncode}: {done.stderr[-500:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["tps"])


@contextmanager
def beside(commands: Sequence[Sequence[str]]) -> Iterator[None]:
    """Run commands meanwhile."""
    running = [subprocess.Popen(c, stdout=subprocess.DEVNULL) for c in commands]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def cells(model: str) -> dict[str, list[list[str]]]:
    """What runs beside, by its name."""
    other = [sys.executable, "-m", "bench.busy", "--model", model, "--one", "0"]
    spin = [sys.executable, "-c", _SPIN]
    return {
        "nothing": [],
        "one process": [spin],
        "two processes": [spin, spin],
        "another edge_tr": [[*other, "--seconds", str(_MOST_S)]],
    }


def measure_cell(
    model: str, commands: list[list[str]], seconds: float, rounds: int
) -> dict[str, Any]:
    """All arms of one cell, in turn."""
    taken: dict[str, list[float]] = {name: [] for name in arms()}
    with beside(commands):
        for _ in range(rounds):
            for name, (n_threads, asleep) in arms().items():
                taken[name].append(measure(model, n_threads, asleep, seconds))
    tps = {name: round(median(values), 2) for name, values in taken.items()}
    best = max(value for name, value in tps.items() if name != "automatic")
    return {
        "tps": tps,
        "share": round(tps["automatic"] / best, 3),
        "over_one_thread": round(tps["automatic"] / tps["1 threads"], 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print; with ``--json`` the last line is one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.busy", description=__doc__)
    parser.add_argument("--model", action="append", help="may be repeated")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each arm")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    names = options.model or ["smollm2-q4_0", "gemma3-q4_k_m", "shape-1b-q4_0"]
    if options.one is not None:
        print(json.dumps(answer(names[0], options.one, options.seconds)))
        return 0
    found: dict[str, Any] = {}
    for model in names:
        answer(model, 0, 1.0)  # what steps cost here is measured now, with nothing beside
        found[model] = {}
        for name, commands in cells(model).items():
            cell = measure_cell(model, commands, options.seconds, options.rounds)
            found[model][name] = cell
            print(f"{model}, {name} beside: {cell}", flush=True)
    shares = [cell["share"] for cells_ in found.values() for cell in cells_.values()]
    print(f"lowest share: {min(shares)}")
    if options.json:
        print(json.dumps({"bench": "busy", "share": min(shares), "cells": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
