"""What automatic mode's choices are worth by a cost table: ``python -m bench.by_cost``.

Each step is taken to cost what the table says, so the figures do not depend on what else the
machine does, and two states of the code can be told apart to the last digit: run both with the
same ``--costs``. The prompts are questions that no benchmark measures, and requests to copy what
they hold, in a fixed mixed order; what was learned is kept from one to the next. A speed-up found
here is an expectation, not a measurement.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.fit_prior import copies
from edge_tr import models
from edge_tr.bench.questions import load_questions, sample
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import CostTable
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.files.whole_file import write_whole
from edge_tr.machine.facts import n_cores
from edge_tr.measuring.steps import measure_costs
from edge_tr.session import Session


class TableCosts(StepCosts):
    """Takes every step to have cost what the table says.

    Attributes
    ----------
    total_s, plain_s : seconds of the steps seen, and of plain steps that emit as many tokens.
    n_emitted : tokens of the steps seen. Steps without asking the drafter are not seen.
    """

    total_s = plain_s = 0.0
    n_emitted = 0

    def is_far(self, n_past: int) -> bool:
        """Never: nothing is measured."""
        return False

    def observe(self, n_tokens: int, n_past: int, seconds: float, n_emitted: int) -> None:
        """See ``StepCosts``; ``seconds`` is not looked at."""
        seconds = float(self.next_step(n_past)[min(n_tokens, self.max_width)])
        self.total_s += seconds
        self.plain_s += n_emitted * float(self.steady(n_past)[1])
        self.n_emitted += n_emitted
        super().observe(n_tokens, n_past, seconds, n_emitted)


def costs_from(path: Path | None, session: Session) -> CostTable:
    """The table of a file; measured now, and written there, where there is none."""
    if path is not None and path.exists():
        return CostTable.from_dict(json.loads(path.read_text()))
    table = measure_costs(session.target, progress=_say)
    if path is not None:
        text = json.dumps(table.to_dict(), indent=1) + "\n"
        write_whole(path, lambda stream: stream.write(text.encode()))
    return table


def answer_all(
    session: Session, table: CostTable, prompts: Sequence[tuple[str, str]], n_tokens: int
) -> dict[str, Any]:
    """Answer texts of several kinds; what each kind cost, see ``summarise``."""
    target = session.target
    costs = TableCosts(table, table.widths[-1])
    candidates = Candidates(AdjacencyMatrix(target.n_vocab))
    drafter = GrownTreeDrafter(
        candidates,
        n_ctx=target.n_ctx,
        costs=costs,
        max_nodes=table.widths[-1] - 1,
        max_lanes=target.n_lanes,
    )
    decoder = Decoder(target, drafter, costs=costs)
    rows: dict[str, list[list[float]]] = {}
    for i, (kind, text) in enumerate(prompts):
        _say(f"{i + 1} of {len(prompts)}: {kind}")
        costs.total_s = costs.plain_s = 0.0
        costs.n_emitted = 0
        prompt = session.prompt_tokens(text)[-(target.n_ctx - n_tokens) :]
        for _ in decoder.generate(prompt, max_tokens=n_tokens):
            pass
        stats = decoder.stats
        counts = [stats.n_steps, stats.n_drafted, stats.n_accepted]
        unseen = stats.n_tokens - 1 - costs.n_emitted  # the first token came with the prompt
        unseen_s = unseen * float(costs.steady(len(prompt) + n_tokens // 2)[1])
        seconds = [costs.plain_s + unseen_s, costs.total_s + unseen_s]
        rows.setdefault(kind, []).append([*seconds, *counts])
    return {kind: summarise(np.array(found)) for kind, found in sorted(rows.items())}


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
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    context = ContextConfig(n_threads=options.threads, n_threads_batch=options.threads)
    draft = DraftConfig(speculative="off", start="empty")
    questions = sample(load_questions(options.questions), options.per_category, half="calibration")
    prompts = [("question", question.turns[0]) for question in questions]
    prompts += [("copy", text) for text in copies(options.questions)[: options.copies]]
    random.Random(3).shuffle(prompts)
    with Session(models.path(options.model), context=context, draft=draft) as session:
        table = costs_from(options.costs, session)
        found = answer_all(session, table, prompts, options.tokens)
    for kind, numbers in found.items():
        print(f"{kind}: " + ", ".join(f"{name} {value:g}" for name, value in numbers.items()))
    if options.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
