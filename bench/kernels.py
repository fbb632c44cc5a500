"""Our kernels against llama.cpp's own, product by product: ``python -m bench.kernels --json``.

One measurement is all matrix products of some layers of a model's shape, for a number of tokens,
with weights where llama.cpp would put them without our kernels and where it puts them with these:
in one process, in turn, with as many layers as it takes to exceed the last-level cache. The last
line is one JSON object. Nothing else should run on the machine. The whole takes about 25 minutes
on two cores, ``--quick`` about one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import gguf

from edge_tr.llama import kernels
from edge_tr.machine import facts
from edge_tr.models.shapes import SHAPES

from . import peak
from .products import Products, Shape, Weights, weight_bytes

TYPES = ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "F16", "BF16")
SIZES, QUICK_SIZES = ("1b", "8b"), ("1b",)
WIDTHS, QUICK_WIDTHS = (*range(1, 17), 32), (1, 2, 4, 8, 16)
QUICK_TYPES = ("Q4_0", "Q6_K", "F16")
PREFILL = 512
SLOWER = 1.02
"""A cell in which ours takes more than this many times what llama.cpp's takes counts."""

_LEAST_PAIRS, _MOST_PAIRS = 3, 25
_UNCLEAR_PAIRS = 7
_CLEAR = 0.9
_PAIR_S = 0.5
_CACHE_BYTES = 64 << 20  # taken where the system does not say
_MOST_BYTES = 2 << 30


def layer(size: str) -> list[Shape]:
    """Matrices of one layer of the shape models."""
    shape = SHAPES[size]
    n_kv = shape.n_embd // shape.n_head * shape.n_head_kv
    attention = [(shape.n_embd, shape.n_embd), (n_kv, shape.n_embd), (n_kv, shape.n_embd)]
    return [
        *attention,
        (shape.n_embd, shape.n_embd),
        (shape.n_ff, shape.n_embd),
        (shape.n_ff, shape.n_embd),
        (shape.n_embd, shape.n_ff),
    ]


def last_level_cache(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache that the system reports; 64 MiB where it reports none."""
    sizes = [path.read_text().strip() for path in folder.glob("index*/size")]
    units = {"K": 1 << 10, "M": 1 << 20}
    return max((int(s[:-1]) * units[s[-1]] for s in sizes if s[-1:] in units), default=_CACHE_BYTES)


def n_layers(layer_bytes: int, cache_bytes: int) -> int:
    """Layers that exceed the cache, or as many as fit into 2 GiB; at least one."""
    return max(1, min(cache_bytes * 5 // 4 // layer_bytes + 1, _MOST_BYTES // layer_bytes))


def in_turn(first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float]:
    """Median seconds of two that take turns, the order turned round from pair to pair.

    Stops after half a second where the first is clearly faster, and goes on for three, and for
    seven pairs, where it is not.
    """
    first(), second()
    pairs: list[tuple[float, float]] = []
    started = perf_counter()
    while len(pairs) < _MOST_PAIRS:
        if len(pairs) % 2:
            other = second()
            pairs.append((first(), other))
        else:
            pairs.append((first(), second()))
        if len(pairs) < _LEAST_PAIRS:
            continue
        one, two = (median(side) for side in zip(*pairs, strict=True))
        clear = one < _CLEAR * two
        spent_s = perf_counter() - started
        if spent_s > (_PAIR_S if clear else 6 * _PAIR_S) and (
            clear or len(pairs) >= _UNCLEAR_PAIRS
        ):
            break
    return median(p[0] for p in pairs), median(p[1] for p in pairs)


def measure(
    types: Sequence[str], sizes: Sequence[str], widths: Sequence[int], threads: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Every cell, see ``cell``."""
    cache = last_level_cache()
    for name in types:
        kind = gguf.GGMLQuantizationType[name]
        for size in sizes:
            one = layer(size)
            shapes = one * n_layers(weight_bytes(kind, one), cache)
            yield from _cells(kind, size, shapes, [(n, t) for t in threads for n in widths])
            yield from _cells(kind, size, one, [(PREFILL, max(threads))])


def _cells(
    kind: gguf.GGMLQuantizationType,
    size: str,
    shapes: Sequence[Shape],
    wanted: Sequence[tuple[int, int]],
) -> Iterator[dict[str, Any]]:
    with (
        closing(Weights(kind, shapes, ours=True)) as ours,
        closing(Weights(kind, shapes, ours=False)) as own,
    ):
        for n, n_threads in wanted:
            with closing(Products(ours, n)) as first, closing(Products(own, n)) as second:
                taken = in_turn(
                    partial(first.seconds, n_threads), partial(second.seconds, n_threads)
                )
            yield cell(kind, size, shapes, n, n_threads, taken) | {"llama.cpp": own.buffer_type}


def cell(
    kind: gguf.GGMLQuantizationType,
    size: str,
    shapes: Sequence[Shape],
    n: int,
    n_threads: int,
    seconds: tuple[float, float],
) -> dict[str, Any]:
    """One measurement: milliseconds of a layer, what was read and multiplied in a second.

    Parameters
    ----------
    shapes : all matrices of one computation, in whole layers.
    n : tokens.
    seconds : of our kernels, and of llama.cpp's own.
    """
    ours_s, own_s = seconds
    n_layers = len(shapes) // len(layer(size))
    bytes_read = weight_bytes(kind, shapes)
    return {
        "type": kind.name,
        "shape": size,
        "threads": n_threads,
        "n": n,
        "ms": round(ours_s / n_layers * 1e3, 4),
        "llama_ms": round(own_s / n_layers * 1e3, 4),
        "ratio": round(ours_s / own_s, 4),
        "gbs": round(bytes_read / ours_s / 1e9, 2),
        "gmacs": round(sum(prod(s) for s in shapes) * n / ours_s / 1e9, 1),
        "weights_mb": round(bytes_read / 1e6),
    }


def summary(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The verdict: cells in which ours is slower, and the speed of prefilling."""
    small = [c for c in cells if c["n"] != PREFILL]
    slower = [c for c in small if c["ratio"] > SLOWER]
    prefill: dict[str, float] = {}
    for found in cells:
        if found["n"] == PREFILL:
            speed = round(1 / found["ratio"], 4)
            prefill[found["type"]] = min(speed, prefill.get(found["type"], speed))
    return {
        "bench": "kernels",
        "n_cells": len(small),
        "slower": len(slower),
        "slower_cells": [[c["type"], c["shape"], c["threads"], c["n"], c["ratio"]] for c in slower],
        "prefill_ratio": min(prefill.values(), default=None),
        "prefill": prefill,
    }


def line(found: dict[str, Any], peaks: dict[str, float] | None) -> str:
    """A cell for a person, beside the peaks of the machine with as many threads."""
    text = (
        f"{found['type']:<7}{found['shape']:<4}{found['threads']} threads {found['n']:>4} tokens:"
        f"{found['llama_ms']:>10.3f} ms llama.cpp{found['ms']:>10.3f} ms ours, {found['ratio']:.3f}"
        f", {found['gbs']:.1f} GB/s, {found['gmacs']:.0f} G multiply-adds/s"
    )
    if peaks:
        floats = found["type"] in ("F16", "BF16")
        most = peaks["float_gmacs" if floats else "int8_gmacs"]
        text += f" ({found['gbs'] / peaks['read_gbs']:.0%}, {found['gmacs'] / most:.0%} of peak)"
    return text + ("  SLOWER" if found["n"] != PREFILL and found["ratio"] > SLOWER else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--quick", action="store_true", help="few types and widths, one shape")
    parser.add_argument("--types", nargs="+", choices=TYPES, help="only these types")
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, help="only these shapes")
    parser.add_argument("--widths", nargs="+", type=int, help="only these numbers of tokens")
    parser.add_argument("--threads", nargs="+", type=int, help="default: 1 and 2; quick: 2")
    options = parser.parse_args(arguments)
    if not kernels.info() or not kernels.active():
        print("error: this build has no kernels of ours to compare", file=sys.stderr)
        return 1
    types = options.types or (QUICK_TYPES if options.quick else TYPES)
    sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    widths = options.widths or (QUICK_WIDTHS if options.quick else WIDTHS)
    threads = options.threads or ((2,) if options.quick else (1, 2))
    started = perf_counter()
    peaks = {n: peak.measure(n) for n in threads}
    for n, found in peaks.items():
        print(f"peak of {n} threads: {found}", flush=True)
    cells = []
    for found in measure(types, sizes, widths, threads):
        cells.append(found)
        print(line(found, peaks[found["threads"]]), flush=True)
    result = summary(cells) | {
        "peaks": peaks,
        "cache_mb": round(last_level_cache() / 1e6),
        "kernels": kernels.info(),
        "machine": {"processor": facts.processor(), "load": os.getloadavg()},
        "seconds": round(perf_counter() - started),
        "cells": cells,
    }
    shown = {key: result[key] for key in ("n_cells", "slower_cells", "prefill", "seconds")}
    print("\n".join(f"{key}: {value}" for key, value in shown.items()))
    print(f"slower: {result['slower']}\nprefill_ratio: {result['prefill_ratio']}")
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
