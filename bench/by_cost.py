"""What automatic mode's choices are worth by a cost table: ``python -m bench.by_cost``.

Each step is taken to cost what the table says, so the figures do not depend on what else the
machine does, and two states of the code can be told apart to the last digit: run both with the
same ``--costs``. The prompts are questions that no benchmark measures, and requests to copy what
they hold, in a fixed mixed order; what was learned is kept from one to the next. A speed-up found
here is an expectation, not a measurement.

``--record FILE`` keeps the rows of the model; ``--recorded FILE`` answers from them, in a second
instead of minutes, at every table of ``cost_tables.json`` beside this file and of
``edge_tr/costs``, or at those whose names hold one of the words that ``--tables`` gives.
``--wrong`` has automatic mode begin with tables of which every entry is a fifth too high, too
low, or the one and the other in turn, and pays what the true ones say.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.fit_prior import copies
from bench.recorded_rows import RecordedTarget, RecordingTarget
from edge_tr import models
from edge_tr.bench.prompts import copy_prompts
from edge_tr.bench.questions import load_questions, sample
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.costs.expected import PUBLIC_TABLES, read_costs
from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import CostTable
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.history import History
from edge_tr.files.whole_file import write_whole
from edge_tr.machine.facts import n_cores
from edge_tr.measuring.steps import measure_costs
from edge_tr.session import Session
from edge_tr.target import Int32, TargetModel

TABLES = Path(__file__).parent / "cost_tables.json"
"""Measured here, and made up."""

_PLAIN_S, _FIRST_ROWS_S, _ROW_S = 0.01, 0.0005, 0.0001
_WRONG = 0.2
_RECORDED_NODES = 31


class TableCosts(StepCosts):
    """Takes every step to have cost what a table says.

    Parameters
    ----------
    table, max_width : see ``StepCosts``; what is believed at first.
    true : what steps cost; None = what is believed.

    Attributes
    ----------
    total_s, plain_s : seconds of the steps seen, and of plain steps that emit as many tokens.
    n_emitted : tokens of the steps seen. Steps without asking the drafter are not seen.
    """

    total_s = plain_s = 0.0
    n_emitted = 0

    def __init__(self, table: CostTable, max_width: int, true: CostTable | None = None) -> None:
        super().__init__(table, max_width)
        self._true = StepCosts(true or table, max_width)

    def is_far(self, n_past: int) -> bool:
        """Never: nothing is measured."""
        return False

    def token_s(self) -> float:
        """So many that all is kept that can be, whatever lane calls take."""
        return float("inf")

    def observe(self, n_tokens: int, n_past: int, seconds: float, n_emitted: int) -> None:
        """See ``StepCosts``; ``seconds`` is not looked at."""
        true = self._true
        seconds = float(true.next_step(n_past)[min(n_tokens, self.max_width)])
        self.total_s += seconds
        self.plain_s += n_emitted * self.plain_step_s(n_past)
        self.n_emitted += n_emitted
        true.observe(n_tokens, n_past, seconds, n_emitted)
        super().observe(n_tokens, n_past, seconds, n_emitted)

    def plain_step_s(self, n_past: int) -> float:
        """Seconds of a plain step."""
        return float(self._true.steady(n_past)[1])


def costs_from(path: Path | None, session: Session) -> CostTable:
    """The table of a file; measured now, and written there, where there is none."""
    if path is not None and path.exists():
        return CostTable.from_dict(json.loads(path.read_text()))
    table = measure_costs(session.target, progress=_say)
    if path is not None:
        text = json.dumps(table.to_dict(), indent=1) + "\n"
        write_whole(path, lambda stream: stream.write(text.encode()))
    return table


def tables_of(words: Sequence[str]) -> dict[str, CostTable]:
    """The named tables whose names hold one of the words, all without any; a plain step takes
    10 ms."""
    found = {}
    for costs in [*read_costs(TABLES), *read_costs(PUBLIC_TABLES)]:
        if not words or any(word in costs.name for word in words):
            seconds = tuple(_PLAIN_S * ratio for ratio in costs.ratio)
            found[costs.name] = CostTable(costs.widths, (0,), (seconds,), _FIRST_ROWS_S, _ROW_S)
    return found


def wrong_tables(table: CostTable) -> dict[str, CostTable]:
    """What one may take a table for whose entries above one token are all a fifth off."""
    n = len(table.widths)
    turns = np.where(np.arange(n) % 2, 1 + _WRONG, 1 - _WRONG)
    ways = {
        "high": np.full(n, 1 + _WRONG),
        "low": np.full(n, 1 - _WRONG),
        "high, low": turns,
        "low, high": 2 - turns,
    }
    found = {}
    for name, factors in ways.items():
        factors[0] = 1.0
        rows = tuple(tuple((np.array(row) * factors).tolist()) for row in table.seconds)
        found[name] = replace(table, seconds=rows)
    return found


def answer_all(
    target: TargetModel,
    table: CostTable,
    prompts: Sequence[tuple[str, Int32]],
    n_tokens: int,
    believed: CostTable | None = None,
    *,
    n_history: int = DraftConfig.n_history,
) -> dict[str, Any]:
    """Answer texts of several kinds; what each kind and all together cost, see ``summarise``.

    Parameters
    ----------
    believed : the table that automatic mode starts with, where it is another.
    n_history : tokens of earlier texts that it looks for matches in.
    """
    costs = TableCosts(believed or table, table.widths[-1], table)
    candidates = Candidates(AdjacencyMatrix(target.n_vocab))
    drafter = GrownTreeDrafter(
        candidates,
        n_ctx=target.n_ctx,
        costs=costs,
        max_nodes=table.widths[-1] - 1,
        max_lanes=target.n_lanes,
        history=History(n_history),
    )
    decoder = Decoder(target, drafter, costs=costs)
    rows: dict[str, list[list[float]]] = {}
    for kind, prompt in prompts:
        costs.total_s = costs.plain_s = 0.0
        costs.n_emitted = 0
        for _ in decoder.generate(prompt, max_tokens=n_tokens):
            pass
        stats = decoder.stats
        counts = [stats.n_steps, stats.n_drafted, stats.n_accepted]
        unseen = stats.n_tokens - 1 - costs.n_emitted  # the first token came with the prompt
        unseen_s = unseen * costs.plain_step_s(len(prompt) + n_tokens // 2)
        seconds = [costs.plain_s + unseen_s, costs.total_s + unseen_s]
        rows.setdefault(kind, []).append([*seconds, *counts])
    found = {kind: summarise(np.array(of_kind)) for kind, of_kind in sorted(rows.items())}
    return found | {"all": summarise(np.array([row for kind in rows.values() for row in kind]))}


def answer_wrongly(
    target: TargetModel, table: CostTable, prompts: Sequence[tuple[str, Int32]], n_tokens: int
) -> dict[str, Any]:
    """The same by wrong tables; "share_of_gain" is the lowest share that remains of the gain that
    the true one brings, all texts together."""
    found = {"true": answer_all(target, table, prompts, n_tokens)["all"]}
    for name, believed in wrong_tables(table).items():
        found[name] = answer_all(target, table, prompts, n_tokens, believed)["all"]
    gains = {name: numbers["mean"] - 1 for name, numbers in found.items()}
    true = gains.pop("true")
    share = min(gains.values()) / true if true > 0 else 1.0
    return found | {"share_of_gain": round(share, 4)}


def record(
    session: Session, prompts: Sequence[tuple[str, Int32]], n_tokens: int
) -> RecordingTarget:
    """Answer with a tree of many nodes at every step, and keep the rows of all of them."""
    target = RecordingTarget(session.target)
    candidates = Candidates(AdjacencyMatrix(target.n_vocab))
    drafter = GrownTreeDrafter(
        candidates,
        n_ctx=target.n_ctx,
        max_nodes=_RECORDED_NODES,
        max_lanes=min(_RECORDED_NODES, target.n_lanes),
    )
    decoder = Decoder(target, drafter)
    for i, (kind, prompt) in enumerate(prompts):
        _say(f"{i + 1} of {len(prompts)}: {kind}")
        for _ in decoder.generate(prompt, max_tokens=n_tokens):
            pass
    return target


def summarise(rows: Any) -> dict[str, float]:
    """Speed-ups of texts, and how much was drafted.

    Parameters
    ----------
    rows : float64[n, 5]; plain seconds, seconds, steps, drafted and accepted tokens of each text.
    """
    ratios = rows[:, 0] / rows[:, 1]
    plain_s, total_s, n_steps, n_drafted, n_accepted = rows.sum(axis=0)
    found = {
        "n_texts": len(rows),
        "total": plain_s / total_s,
        "mean": ratios.mean(),
        "median": np.median(ratios),
        "q10": np.quantile(ratios, 0.1),
        "lowest": ratios.min(),
        "n_below_0.98": (ratios < 0.98).sum(),
        "mat": 1 + n_accepted / n_steps,
        "drafted_per_step": n_drafted / n_steps,
        "acceptance_rate": n_accepted / max(1, n_drafted),
    }
    return {name: round(float(value), 4) for name, value in found.items()}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _prompts(session: Session, options: argparse.Namespace) -> list[tuple[str, Int32]]:
    """Questions of all categories and requests to copy of one half, in a fixed mixed order."""
    target, half = session.target, options.half
    room = target.n_ctx - options.tokens
    questions = sample(load_questions(options.questions), options.per_category, half=half)
    texts = [("question", question.turns[0]) for question in questions]
    if half == "calibration":
        texts += [("copy", text) for text in copies(options.questions)[: options.copies]]
    prompts = [(kind, session.prompt_tokens(text)[-room:]) for kind, text in texts]
    if half == "measured":
        copied = copy_prompts(session.prompt_tokens, room)[: options.copies]
        prompts += [("copy", prompt.tokens) for prompt in copied]
    random.Random(3).shuffle(prompts)
    return prompts


def _from_recording(options: argparse.Namespace) -> dict[str, Any]:
    target = RecordedTarget(options.recorded)
    found = {}
    for name, table in tables_of(options.tables).items():
        answer = answer_wrongly if options.wrong else answer_all
        found[name] = answer(target, table, target.prompts, options.tokens)
    return found


def _from_model(options: argparse.Namespace) -> dict[str, Any]:
    context = ContextConfig(n_threads=options.threads, n_threads_batch=options.threads)
    draft = DraftConfig(speculative="off", start="empty")
    with Session(models.path(options.model), context=context, draft=draft) as session:
        prompts = _prompts(session, options)
        if options.record:
            record(session, prompts, options.tokens).save(options.record, prompts)
            return {"recorded": len(prompts)}
        table = costs_from(options.costs, session)
        return answer_all(session.target, table, prompts, options.tokens)


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer, and print a table; with ``--json`` one JSON object after it."""
    parser = argparse.ArgumentParser(prog="python -m bench.by_cost", description=__doc__)
    parser.add_argument("--model", default=models.DEFAULT)
    parser.add_argument("--costs", type=Path, help="JSON of a cost table; made if it is missing")
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--copies", type=int, default=12, help="requests to copy")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=n_cores())
    parser.add_argument("--questions", type=Path, help="directory of Spec-Bench and MBPP")
    parser.add_argument("--half", choices=("calibration", "measured"), default="calibration")
    parser.add_argument("--record", type=Path, help="keep the rows of the model in this file")
    parser.add_argument("--recorded", type=Path, help="answer from the rows of this file")
    parser.add_argument("--tables", nargs="*", default=(), help="words of names of tables")
    parser.add_argument("--wrong", action="store_true", help="begin with wrong tables")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = _from_recording(options) if options.recorded else _from_model(options)
    for line in _lines(found):
        print(line)
    if options.json:
        print(json.dumps(found))
    return 0


def _lines(found: dict[str, Any], name: str = "") -> list[str]:
    """A line for each dictionary of numbers, named by the keys that lead to it."""
    numbers = {key: value for key, value in found.items() if not isinstance(value, dict)}
    lines = [f"{name}: " + ", ".join(f"{key} {value:g}" for key, value in numbers.items())]
    for key, value in found.items():
        if isinstance(value, dict):
            lines += _lines(value, f"{name}, {key}" if name else key)
    return lines if numbers else lines[1:]


if __name__ == "__main__":
    sys.exit(main())
