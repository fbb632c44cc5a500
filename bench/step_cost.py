"""What a step of n tokens costs, stock llama.cpp and ours in turn: ``python -m bench.step_cost``.

Milliseconds of ``llama_decode`` of whole models behind 300 and 4,000 tokens, without and with
flash attention, each build in a process of its own; medians. Nothing else should run on the
machine. The five models take about a quarter of an hour on two cores, most of it reading.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from edge_tr import models
from edge_tr.config import ContextConfig
from edge_tr.errors import EdgeTRError
from edge_tr.llama import kernels
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.machine import facts
from edge_tr.measuring.trial import Trial, random_text

from . import builds

MODELS = ("shape-1b-q4_0", "shape-1b-q4_k", "shape-1b-q8_0", "smollm2-q4_0", "gemma3-q4_k_m")
WIDTHS = (1, 2, 4, 8, 16)
NEAR, FAR = 300, 4000
TARGETS = {
    "shape-1b": {"2": 1.12, "4": 1.40, "8": 1.90},
    "smollm2": {"2": 1.25, "4": 1.60, "8": 2.2},
    "gemma3": {"2": 1.25, "4": 1.60, "8": 2.2},
}
"""Most that steps may cost in plain steps of the same build, by the beginning of the name."""

FAR_FACTOR = 1.25
LEAST_GAIN = 0.90
AVX2_TARGETS = {"shape-1b-q4_0": {"2": 1.2, "4": 1.8, "8": 3.2}}

HAS_KERNELS = {"ours": True, "stock": False}
"""Of the builds that are compared."""

Times = dict[int, list[float]]


class Steps:
    """Steps on one model in one build, to be timed; made in a child process.

    Parameters
    ----------
    model : path of the GGUF.
    n_ctx : cells.
    """

    def __init__(self, model: str, n_ctx: int, n_threads: int) -> None:
        self._model = Model(model)
        self._trials = {}
        for flash_attn in (False, True):
            config = ContextConfig(
                n_ctx=n_ctx,
                n_threads=n_threads,
                n_threads_batch=n_threads,
                flash_attn=flash_attn,
                n_lanes=1,
            )
            target = LlamaTarget(self._model, config)
            self._trials[flash_attn] = Trial(target, 1, *random_text(target))

    def kernels(self) -> Any:
        """What the build's kernels say of themselves; None where it has none of ours."""
        return kernels.info() if kernels.active() else None

    def read(self, flash_attn: bool, n_past: int) -> None:
        """Have the cache hold so many tokens."""
        self._trials[flash_attn].read(n_past)

    def seconds(self, flash_attn: bool, widths: list[int], n: int) -> list[list[float]]:
        """Seconds of ``n`` steps of each width, one behind the other after one that is not
        counted; nothing of them stays."""
        trial = self._trials[flash_attn]
        taken = []
        for width in widths:
            taken.append([self._step(trial, width) for _ in range(n + 1)][1:])
        return taken

    def _step(self, trial: Trial, width: int) -> float:
        n_past = trial.lanes.n_past
        tokens = trial.tokens[n_past : n_past + width]
        trial.batch.set_chain(tokens, n_past, want_rows=width)
        started = perf_counter()
        trial.target.decode(trial.batch)
        taken = perf_counter() - started
        trial.lanes.rewind(n_past)
        return taken


def measure(
    model: Path, folders: dict[str, Path | None], plan: argparse.Namespace
) -> dict[str, Any]:
    """Both builds on one model.

    Parameters
    ----------
    folders : of the builds ``ours`` and ``stock``, see ``builds``.

    Returns
    -------
    See ``conclude``; and ``waiting_share``, see ``builds.Remote``.
    """
    n_ctx = max(plan.past) + max(plan.widths) + 1
    arguments = {"model": str(model), "n_ctx": n_ctx, "n_threads": plan.threads}
    with ExitStack() as stack:
        remotes = {
            name: stack.enter_context(
                closing(builds.Remote(folder, "bench.step_cost:Steps", **arguments))
            )
            for name, folder in folders.items()
        }
        for name, remote in remotes.items():
            if bool(remote.call("kernels")) != HAS_KERNELS[name]:
                has = "lacks" if HAS_KERNELS[name] else "has"
                raise EdgeTRError(f"the build {name} {has} kernels of ours")
        times: dict[tuple[int, bool], dict[str, Times]] = {}
        for n_past in sorted(plan.past):
            for flash_attn in plan.flash_attn:
                for remote in remotes.values():
                    remote.call("read", flash_attn=flash_attn, n_past=n_past)
                    builds.settle()
                times[n_past, flash_attn] = in_turn(remotes, flash_attn, plan)
        share = max(remote.waiting_share for remote in remotes.values())
    return conclude(times) | {"waiting_share": share}


def in_turn(
    remotes: dict[str, builds.Remote], flash_attn: bool, plan: argparse.Namespace
) -> dict[str, Times]:
    """Seconds by build and width; the order of the builds turns round from round to round, and
    the widths come in another order, the same for both."""
    found: dict[str, Times] = {name: {width: [] for width in plan.widths} for name in remotes}
    shuffled = Random(0)
    for i in range(plan.rounds):
        widths = shuffled.sample(plan.widths, len(plan.widths))
        for name in list(remotes) if i % 2 else list(remotes)[::-1]:
            builds.settle()
            taken = remotes[name].call(
                "seconds", flash_attn=flash_attn, widths=widths, n=plan.steps
            )
            for width, seconds in zip(widths, taken, strict=True):
                found[name][width] += seconds
    return found


def conclude(times: dict[tuple[int, bool], dict[str, Times]]) -> dict[str, Any]:
    """Times of one model in plain steps.

    Parameters
    ----------
    times : by past tokens and flash attention: by build and width, seconds.

    Returns
    -------
    ``t`` by width, in ours' own plain step behind the same text; ``ms`` and ``stock_ms``, medians;
    ``t1_over_stock``. With ``_far`` behind the longer of two texts, with ``_flash`` with flash
    attention.
    """
    near = min(n_past for n_past, _ in times)
    found: dict[str, Any] = {}
    for (n_past, flash_attn), by_build in times.items():
        ms = {
            name: {width: 1e3 * median(seconds) for width, seconds in taken.items()}
            for name, taken in by_build.items()
        }
        ours, stock = ms["ours"], ms["stock"]
        ending = ("_far" if n_past > near else "") + ("_flash" if flash_attn else "")
        found[f"t1_over_stock{ending}"] = round(ours[1] / stock[1], 4)
        found[f"t{ending}"] = {str(w): round(v / ours[1], 3) for w, v in ours.items() if w > 1}
        found[f"ms{ending}"] = {str(w): round(v, 3) for w, v in ours.items()}
        found[f"stock_ms{ending}"] = {str(w): round(v, 3) for w, v in stock.items()}
    return found


def missed(
    found: dict[str, dict[str, Any]], targets: dict[str, dict[str, float]]
) -> list[list[Any]]:
    """Model, key, width, value and the most it should be, where a target is not met."""
    wrong: list[list[Any]] = []
    for name, result in found.items():
        own = next((t for start, t in targets.items() if name.startswith(start)), {})
        for key, value in result.items():
            if key.startswith("t1_over_stock") and "_far" not in key and value > LEAST_GAIN:
                wrong.append([name, key, 1, value, LEAST_GAIN])
            if key == "t" or key.startswith("t_"):
                factor = FAR_FACTOR if "_far" in key else 1.0
                for width, most in own.items():
                    if value.get(width, 0) > most * factor:
                        wrong.append([name, key, int(width), value[width], round(most * factor, 3)])
    return wrong


def table(name: str, result: dict[str, Any]) -> list[str]:
    """A model for a person."""
    lines = [f"{name}"]
    for key, ours in result.items():
        if key.startswith("ms"):
            ending = key.removeprefix("ms")
            stock, steps = result[f"stock_ms{ending}"], result[f"t{ending}"]
            where = f"{ending.replace('_', ' ').strip() or 'near'}"
            lines.append(
                f"  {where:<10} ours / stock at one token {result[f't1_over_stock{ending}']:.3f}; "
                "ms by tokens, ours "
                + " ".join(f"{w}:{ms:.2f}" for w, ms in ours.items())
                + ", stock "
                + " ".join(f"{w}:{ms:.2f}" for w, ms in stock.items())
                + "; T "
                + " ".join(f"{w}:{t:.2f}" for w, t in steps.items())
            )
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.step_cost", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="only these")
    parser.add_argument("--past", nargs="+", type=int, default=[NEAR, FAR], help="one or two")
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--rounds", type=int, default=6, help="of both builds (default 6)")
    parser.add_argument("--steps", type=int, default=3, help="of each width in a round")
    parser.add_argument("--threads", type=int, default=facts.n_cores())
    parser.add_argument(
        "--flash-attn", choices=("off", "on", "both"), default="both", help="(default both)"
    )
    parser.add_argument(
        "--avx2", action="store_true", help="builds for AVX2 and FMA alone; made where missing"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = _parser().parse_args(arguments)
    options.flash_attn = {"off": [False], "on": [True], "both": [False, True]}[options.flash_attn]
    options.widths = sorted({1, *options.widths})
    flags = builds.AVX2 if options.avx2 else ()
    targets = AVX2_TARGETS if options.avx2 else TARGETS
    found = {}
    try:
        folders = {"ours": builds.ours(flags), "stock": builds.stock(flags)}
        for name in options.models:
            path = models.path(name, lambda line: print(line, file=sys.stderr))
            found[name] = measure(path, folders, options)
            print("\n".join(table(name, found[name])), flush=True)
    except EdgeTRError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result = {
        "bench": "step_cost",
        "models": found,
        "missed": missed(found, targets),
        "settings": vars(options),
        "machine": {"processor": facts.processor(), "cores": facts.n_cores()},
    }
    for line in result["missed"]:
        print("missed: {} {} {} tokens: {} instead of at most {}".format(*line))
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
