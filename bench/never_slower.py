"""Automatic mode against plain decoding: ``python -m bench.never_slower --json``.

Every question is answered by plain decoding of stock llama.cpp, plain decoding of our build,
automatic mode and, in turn or always, a second stock arm and the best fixed setting: one after the
other, the order turned round from question to question. All answers are greedy and of the same
length, end of text ignored; "to end" looks at the part before it only. Plain is the faster of a
bare ``llama_decode`` loop and the stock ``llama_cpp.Llama``, both of a stock build in a process of
its own, which sleeps while another arm runs. Prefixes that a prompt shares with the one before
(the chat template) are reused in every arm.

Automatic mode starts with an empty matrix and inherits it from question to question; its costs
are measured when the run starts, so nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_tr import models
from edge_tr.bench.pairs import Records
from edge_tr.bench.prompts import Prompt, adversarial_prompts, copy_prompts, question_prompts
from edge_tr.bench.questions import Half, Question, load_questions, sample
from edge_tr.config import ContextConfig
from edge_tr.errors import EdgeTRError
from edge_tr.llama.library import system_info, version
from edge_tr.machine import facts

from . import builds
from .cells import summary, table
from .model_run import ModelRun, Plan

FULL = ("smollm2-q4_0", "smollm2-f16", "smollm2-q4_1", "gemma3-q4_k_m")
QUICK = FULL[:2]
SMOKE = ("tiny-llama",)
N_CTX = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is 0 once it has measured, whatever came out."""
    options = _parser().parse_args(arguments)
    try:
        if options.out is None:
            with tempfile.TemporaryDirectory() as directory:
                result = run(options, Path(directory))
        else:
            result = run(options, options.out)
    except EdgeTRError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        again = "run it again with the same --out to go on" if options.out else "nothing is kept"
        print(f"\nstopped; {again}", file=sys.stderr)
        return 130
    print("\n".join(table(result)))
    if options.json:
        print(json.dumps(result))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.never_slower", description=__doc__)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        "--quick",
        action="store_true",
        help=f"only {' and '.join(QUICK)}, 10 questions of each category; under 40 minutes on 2 "
        "cores",
    )
    sizes.add_argument(
        "--smoke",
        action="store_true",
        help="a tiny model, one question of each category, few tokens: whether it runs at all",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--model", action="append", help="measure this model; may be repeated")
    parser.add_argument("--per-category", type=int, help="questions of each category")
    parser.add_argument("--tokens", type=int, help="generated tokens of each answer")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--flash-attn",
        action=argparse.BooleanOptionalAction,
        help="in every arm (default: as edge_tr decides, and in the stock build as is faster)",
    )
    parser.add_argument("--cache-type", default="f16", help="of the KV cache, in every arm")
    parser.add_argument("--questions", type=Path, help="directory of Spec-Bench and MBPP")
    parser.add_argument(
        "--out", type=Path, help="keep the measurements here; a stopped run goes on from them"
    )
    return parser


def run(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Measure every model and sum up.

    Raises
    ------
    EdgeTRError : a model, a question or the record of an earlier run cannot be used.
    """
    names = options.model or (SMOKE if options.smoke else QUICK if options.quick else FULL)
    paths = {name: models.path(name, lambda line: print(line, file=sys.stderr)) for name in names}
    per_category = options.per_category or (1 if options.smoke else 10 if options.quick else 12)
    plan = Plan(n_tokens=options.tokens or 128, every_arm=not options.quick)
    if options.smoke:
        plan = Plan(n_tokens=options.tokens or 12, n_copies=1, least_copied=0.0, n_positions=24)
    context = ContextConfig(
        n_ctx=N_CTX,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        flash_attn=options.flash_attn,
        type_k=options.cache_type,
        type_v=options.cache_type,
    )
    settings = {
        "models": list(names),
        "per_category": per_category,
        "plan": vars(plan),
        "context": vars(context),
        "questions": str(options.questions) if options.questions else None,
        "build": [version(), system_info()],
        "stock_build": str(builds.stock()),
    }
    records = Records(out / "pairs.jsonl", settings)
    questions = load_questions(options.questions)
    for name in names:
        with ModelRun(name, paths[name], context, plan, records, out) as model:
            _measure(model, questions, per_category, smoke=options.smoke)
    about = {"processor": facts.processor(), "cores": facts.n_cores(), "load": _load()}
    return summary(records, names) | {"settings": settings, "machine": about}


def _measure(
    run: ModelRun, questions: Sequence[Question], per_category: int, *, smoke: bool
) -> None:
    session, plan = run.session, run.plan
    room = session.target.n_ctx - plan.n_tokens - 1

    def prompts_of(half: Half, n: int) -> list[Prompt]:
        return question_prompts(sample(questions, n, half=half), run.tokenize, room)

    tuning = prompts_of("calibration", 1)
    if smoke:
        tuning = tuning[:2]
    plain = run.choose_plain(tuning)
    fixed = run.choose_fixed(tuning, grown=plan.every_arm)
    measured = prompts_of("measured", per_category) + adversarial_prompts(
        per_category, run.tokenize, room, session.target.n_vocab, session.stop_tokens
    )
    run.measure(measured, plain, fixed)
    copies = copy_prompts(run.tokenize, room)
    if smoke:
        copies = copies[:1]
    run.measure_copies(copies, plain)
    run.compare_texts(measured + copies)


def _load() -> list[float]:
    """Load averages, so that a busy machine shows; empty where the system has none."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else []


if __name__ == "__main__":
    sys.exit(main())
