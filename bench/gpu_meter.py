"""T(n) on a GPU, taken apart: whole steps, the call of llama.cpp, its queueing, top-k, lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from edge_tr.costs.table import measured_widths
from edge_tr.decode.topk import TopK
from edge_tr.llama.library import lib
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.trial import Trial, random_text
from edge_tr.target import Float32, Int32

_WARM = 2
"""Steps of a width before the first one that counts: a CUDA graph is captured at the second."""

_ROUNDS = 5


class StepMeter(Trial):
    """Times decode steps of random tokens: trees in which every node has two children.

    Parameters
    ----------
    target : its cache is cleared.
    max_width : widest step.
    n_threads : threads of the top-k.
    """

    target: LlamaTarget

    def __init__(self, target: LlamaTarget, *, max_width: int, n_threads: int = 1) -> None:
        super().__init__(target, max_width, *random_text(target))
        self.topk: Callable[[Float32], tuple[Int32, Float32]] = TopK(8, n_threads)

    def step(self, width: int) -> dict[str, float]:
        """One step of ``width`` tokens, taken back afterwards; milliseconds of its parts."""
        n_past = self.lanes.n_past
        t0 = perf_counter()
        self._plant(width)
        t1 = perf_counter()
        logits = self.target.decode(self.batch)
        t2 = perf_counter()
        self.topk(logits)
        t3 = perf_counter()
        self.lanes.rewind(n_past)
        t4 = perf_counter()
        parts = {"step": t4 - t0, "decode": t2 - t1, "topk": t3 - t2, "lanes": t4 - t3 + t1 - t0}
        return {name: 1e3 * seconds for name, seconds in parts.items()}

    def one_row(self, width: int) -> dict[str, float]:
        """The same without top-k, one row of logits brought back; milliseconds."""
        return self._bare(width, 1)

    def no_row(self, width: int) -> dict[str, float]:
        """The same without logits: how long llama.cpp takes to queue the work, and in all."""
        return self._bare(width, 0)

    def rows(self, width: int) -> Float32:
        """float32[width, n_vocab]; the logits of a step, valid until the next one."""
        self._plant(width)
        logits = self.target.decode(self.batch)
        self.lanes.rewind(self.lanes.n_past)
        return logits

    def _bare(self, width: int, n_rows: int) -> dict[str, float]:
        n_past = self.lanes.n_past
        self._plant(width)
        self.batch.logits[: width - n_rows] = 0
        t0 = perf_counter()
        self.target.decode(self.batch)
        t1 = perf_counter()
        lib.llama_synchronize(self.target.pointer)
        t2 = perf_counter()
        self.lanes.rewind(n_past)
        return {"queue": 1e3 * (t1 - t0), "decode": 1e3 * (t2 - t0)}

    def _plant(self, width: int) -> None:
        self.grow(width)
        self.plant()


def staircase(
    meter: StepMeter, n_past: int, *, stop: float, widths: Iterable[int]
) -> dict[str, Any]:
    """Medians of steps behind ``n_past`` tokens, in milliseconds, by width.

    Every width is repeated until it is warm and then measured, so that the graphs of the back
    end are reused; ``changing`` measures what a step costs when each differs from the one
    before. A width that no longer fits before ``stop`` (of ``perf_counter``) is left out.
    """
    started, before = perf_counter(), meter.lanes.n_past
    meter.read(n_past)
    prefill_tps = (n_past - before) / (perf_counter() - started)
    taken: dict[str, dict[int, float]] = {}
    for width in widths:
        if perf_counter() > stop:
            break
        whole = medians(meter.step, width)
        bare = medians(meter.one_row, width)
        queue = medians(meter.no_row, width)
        columns = {f"{name}_ms": ms for name, ms in whole.items()}
        columns |= {"one_row_ms": bare["decode"], "no_row_ms": queue["decode"]}
        columns["queue_ms"] = queue["queue"]
        for name, ms in columns.items():
            taken.setdefault(name, {})[width] = ms
    seen = sorted(taken.get("step_ms", ()))
    table: dict[str, Any] = {"n_past": n_past, "widths": seen, "prefill_tps": prefill_tps}
    table |= {name: [round(by[w], 4) for w in seen] for name, by in taken.items()}
    if seen and perf_counter() < stop:
        table["again_ms"] = medians(meter.step, 1)["step"]
        table["changing_ms"] = _changing(meter, [w for w in (2, 4, 8, 16, 32, 64) if w in seen])
    return table


def coarse_first(max_width: int) -> list[int]:
    """All widths, those around the steps of known kernels first."""
    first = measured_widths(max_width)
    return first + [w for w in range(1, max_width + 1) if w not in first]


def medians(step: Callable[[int], dict[str, float]], width: int) -> dict[str, float]:
    """Median of each part of a warm step of ``width`` tokens."""
    taken = [step(width) for _ in range(_WARM + _ROUNDS)][_WARM:]
    return {name: float(np.median([t[name] for t in taken])) for name in taken[0]}


def _changing(meter: StepMeter, widths: Sequence[int]) -> dict[str, float]:
    medians = {}
    for width in widths:
        taken = []
        for i in range(2 * _ROUNDS):
            ms = meter.step(width + i % 2 if width < meter.max_width else width - i % 2)["step"]
            if i % 2 == 0:
                taken.append(ms)
        medians[str(width)] = round(float(np.median(taken)), 4)
    return medians


def topk_threads(meter: StepMeter, n_threads: Sequence[int]) -> dict[str, dict[str, float]]:
    """Milliseconds of the host's top-k by threads and rows, on logits of a real step."""
    table: dict[str, dict[str, float]] = {}
    logits = meter.rows(meter.max_width)
    for n in n_threads:
        topk = TopK(8, n)
        for n_rows in sorted({w for w in (1, 8, 16, 32, 64) if w < len(logits)} | {len(logits)}):
            rows = logits[:n_rows]
            seconds = []
            for _ in range(3 + _ROUNDS):
                started = perf_counter()
                topk(rows)
                seconds.append(perf_counter() - started)
            column = table.setdefault(f"{n} threads", {})
            column[f"{n_rows} rows"] = round(1e3 * float(np.median(seconds[3:])), 4)
    return table
