"""What chains bring on hybrids: ``python -m bench.hybrid --json``.

What decode steps of a hybrid cost is measured, without snapshots of its recurrent state and with
them; nothing else should run on the machine meanwhile. The texts are those of a dense model, with
what it accepts, of chains as long as the snapshots allow, at these costs: its speed-ups are an
**expectation** for a hybrid that writes as predictably, not a measurement of one. "lowest_ratio"
is the least speed-up of a text, over plain decoding without snapshots; 1 where they do not pay
and are left out.

``--costs FILE`` keeps what was measured and takes it from there, ``--measure`` ends with it;
``--recorded FILE`` takes the texts from a recording of ``bench.by_cost``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.by_cost import answer_all
from bench.recorded_rows import RecordedTarget
from edge_tr import models
from edge_tr.bench.prompts import copy_prompts
from edge_tr.bench.questions import load_questions, sample
from edge_tr.config import N_SNAPSHOTS, ContextConfig, DraftConfig
from edge_tr.costs.table import CostTable
from edge_tr.decode.topk import TopK
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.machine.facts import n_cores
from edge_tr.measuring.snapshots import snapshots_pay
from edge_tr.measuring.steps import measure_costs, measure_two
from edge_tr.session import Session
from edge_tr.target import Int32, TargetModel

MODEL = "shape-lfm2_1.2b-q4_0"
_K = 8


class ChainTarget:
    """A dense target that verifies only chains, and gives up at most as many tokens as a hybrid."""

    can_rewind = False
    n_lanes = 1

    def __init__(self, target: TargetModel, n_rewind: int) -> None:
        self._target = target
        self.n_rewind = n_rewind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def seq_rm(self, lane: int, first: int, last: int) -> None:
        """All lanes of the dense target: the others hold nothing."""
        self._target.seq_rm(-1, first, last)


def measure(name: str, n_snapshots: int, n_threads: int, budget_s: float) -> dict[str, CostTable]:
    """Costs of a hybrid without snapshots, and with them: "plain" and "two" of steps of one token
    and of as many as a chain has at most, "chains" of every width. Both are measured twice, in
    turn, and the faster ones are kept.

    Raises
    ------
    ModelError and its kinds : the model cannot be opened.
    """
    found: dict[str, CostTable] = {}
    topk = TopK(_K, n_threads)
    with closing(Model(models.path(name, _say))) as model:
        for _ in range(2):
            for kind, n in (("plain", 0), ("two", n_snapshots)):
                with closing(LlamaTarget(model, _context(n_threads, n))) as target:
                    table = measure_two(target, topk, n_snapshots + 1)
                    old = found.setdefault(kind, table)
                    if table.seconds[0][0] < old.seconds[0][0]:
                        found[kind] = table
        with closing(LlamaTarget(model, _context(n_threads, n_snapshots))) as target:
            found["chains"] = measure_costs(
                target,
                max_width=target.n_rewind + 1,
                n_threads=n_threads,
                budget_s=budget_s,
                progress=_say,
            )
    return found


def _context(n_threads: int, n_snapshots: int) -> ContextConfig:
    return ContextConfig(
        n_threads=n_threads, n_threads_batch=n_threads, n_snapshots=n_snapshots, n_ctx=4096
    )


def expect(
    target: TargetModel, tables: dict[str, CostTable], prompts: Sequence[tuple[str, Int32]], n: int
) -> dict[str, Any]:
    """Expected speed-ups of texts of ``n`` tokens, by kind and all together.

    Parameters
    ----------
    target, prompts : the dense model, and its prompts with their kinds.
    tables : see ``measure``.
    """
    chains = tables["chains"]
    n_snapshots = chains.widths[-1] - 1
    slower, faster = (tables["two"].seconds[0][i] / tables["plain"].seconds[0][i] for i in (0, 1))
    pays, _line = snapshots_pay(tables["plain"], tables["two"])
    found = answer_all(ChainTarget(target, n_snapshots), chains, prompts, n)
    for numbers in found.values():
        for name in ("total", "mean", "median", "q10", "lowest"):
            numbers[name] = round(numbers[name] / slower, 4)
    steps = {
        "without": _steps(tables["plain"]),
        "with": _steps(tables["two"]),
        "every_width": _steps(chains),
    }
    return {
        "n_snapshots": n_snapshots,
        "pays": pays,
        "plain_step_with_snapshots": round(slower, 4),
        "chain_step_with_snapshots": round(faster, 4),
        "steps_ms": steps,
        "expected": found,
        "lowest_ratio": found["all"]["lowest"] if pays else 1.0,
    }


def _steps(table: CostTable) -> dict[str, float]:
    """Milliseconds by width, behind the first context."""
    pairs = zip(table.widths, table.seconds[0], strict=True)
    return {str(width): round(1000 * seconds, 3) for width, seconds in pairs}


def _costs(name: str, options: argparse.Namespace) -> dict[str, CostTable]:
    path: Path | None = options.costs
    kept = json.loads(path.read_text()) if path is not None and path.exists() else {}
    if name not in kept:
        tables = measure(name, options.snapshots, options.threads, options.budget)
        kept[name] = {kind: table.to_dict() for kind, table in tables.items()}
        if path is not None:
            path.write_text(json.dumps(kept, indent=1) + "\n")
    return {kind: CostTable.from_dict(table) for kind, table in kept[name].items()}


def _prompts(session: Session, options: argparse.Namespace) -> list[tuple[str, Int32]]:
    """Questions of every category, and texts to copy with edits."""
    room = session.target.n_ctx - options.tokens
    questions = sample(load_questions(options.questions), options.per_category, half="measured")
    prompts = [
        ("question", session.prompt_tokens(question.turns[0])[-room:]) for question in questions
    ]
    copied = copy_prompts(session.prompt_tokens, room)[: options.copies]
    return prompts + [("copy", prompt.tokens) for prompt in copied]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure each hybrid, then answer for it."""
    tables = {name: _costs(name, options) for name in options.model or [MODEL]}
    if options.measure:
        return {name: {k: _steps(t) for k, t in of.items()} for name, of in tables.items()}
    if options.recorded is not None:
        target = RecordedTarget(options.recorded)
        prompts = target.prompts
        found = {n: expect(target, of, prompts, options.tokens) for n, of in tables.items()}
    else:
        context = ContextConfig(n_threads=options.threads, n_threads_batch=options.threads)
        draft = DraftConfig(speculative="off", start="empty")
        with Session(models.path(options.dense, _say), context=context, draft=draft) as session:
            prompts = _prompts(session, options)
            found = {
                name: expect(session.target, of, prompts, options.tokens)
                for name, of in tables.items()
            }
    lowest = min(of["lowest_ratio"] for of in found.values())
    return {"models": found, "lowest_ratio": lowest, "is_expectation": True}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, answer and print; with ``--json`` one JSON object at the end."""
    parser = argparse.ArgumentParser(prog="python -m bench.hybrid", description=__doc__)
    parser.add_argument("--model", action="append", help=f"a hybrid, {MODEL}; may be repeated")
    parser.add_argument("--dense", default=models.DEFAULT, help="whose texts are taken")
    parser.add_argument("--recorded", type=Path, help="take the texts from this file")
    parser.add_argument("--costs", type=Path, help="keep what is measured in this file")
    parser.add_argument("--measure", action="store_true", help="only measure")
    parser.add_argument("--snapshots", type=int, default=N_SNAPSHOTS)
    parser.add_argument("--budget", type=float, default=8.0, help="seconds for every width")
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=n_cores())
    parser.add_argument("--questions", type=Path, help="directory of Spec-Bench and MBPP")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = run(options)
    for name, of in found.items() if options.measure else found["models"].items():
        print(f"{name}: {json.dumps(of)}")
    if options.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
