"""The main experiment: every method on every kind of task, in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_tr.bench import summary
from edge_tr.bench.engine import detokenized, measure_costs_anew, warm_up
from edge_tr.bench.methods import ABOUT, OURS, PEERS, Sources, check_methods, main_cases
from edge_tr.bench.pairs import Record, Records
from edge_tr.bench.peers import about_peers, find_peers
from edge_tr.bench.questions import Question
from edge_tr.bench.runner import AGAIN, PLAIN, Runner
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.errors import ConfigError
from edge_tr.measuring.equality import Known
from edge_tr.session import Session

PHASE = "main"


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes
    ----------
    n_tokens : most tokens of an answer.
    n_positions : positions of the control of text equality, as far as the texts go.
    methods : names; none = all.
    """

    n_tokens: int = 128
    n_positions: int = 2000
    methods: tuple[str, ...] = ()


def run_main(
    path: Path,
    context: ContextConfig,
    plan: Plan,
    questions: Sequence[Question],
    sources: Sources,
    records: Records,
    state: Path,
    *,
    n_gpu_layers: int = 0,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure and sum up; see ``Session`` for the errors.

    Parameters
    ----------
    records, state : what an earlier run has measured and learned, gone on with.
    """
    check_methods(plan.methods)
    if not records.all:
        measure_costs_anew(path, context, n_gpu_layers, progress)
    draft = DraftConfig(start="inherited", matrix_path=state / "auto.npz")
    with Session(
        path, context=context, draft=draft, n_gpu_layers=n_gpu_layers, progress=progress
    ) as session:
        cases = main_cases(session, sources, state, plan.methods)
        warm_up(session)
        runner = Runner(
            session, cases, records, n_tokens=plan.n_tokens, phase=PHASE, all_turns=True
        )
        found = runner.run(questions)
        table = summary.rows(found, ABOUT)
        progress("comparing texts")
        report = _equality(session, found, records, plan.n_positions)
        shares = summary.equal_shares(
            found,
            [c.method for c in cases if c.method not in (PLAIN, *OURS)],
            lambda tokens: detokenized(session, tokens),
        )
    methods = summary.by_method(table)
    return {
        "methods": methods,
        "auto_over_best": summary.over_best(methods, "auto", PEERS),
        "violations": sum(r["violations"] for r in report.values()),
        "noise": summary.noise(found, AGAIN),
        "equality": report,
        "equal_texts_of_peers": shares,
        "unavailable": runner.unavailable,
        "rows": table,
        "answers": answers(found),
        "peers": _peers(sources),
    }


def _equality(
    session: Session, found: Sequence[Record], records: Records, n_positions: int
) -> dict[str, dict[str, Any]]:
    """The four numbers of each of our methods; those of finished ones are in the records."""
    reports = {}
    model = session.model.path.name
    known: Known = {}
    for key in OURS:
        record = records.find(model, "equality", key)
        if record is None or record["n_texts"] != len(found):
            report = summary.equality(
                session.target, found, key, n_positions=n_positions, known=known
            )
            if report is None:
                continue
            record = records.append(
                model, "equality", key, n_texts=len(found), result=report.to_dict()
            )
        reports[key] = record["result"]
    return reports


def answers(records: Sequence[Record]) -> list[dict[str, Any]]:
    """What ``bench compare`` needs of each answer: counts and seconds, no texts."""
    kept = ("n_tokens", "n_steps", "prefill_s", "decode_s")
    return [
        {
            "id": record["id"],
            "category": record["category"],
            "n_prompt": record["n_prompt"],
            "outcomes": {
                key: {name: outcome[name] for name in kept}
                for key, outcome in record["outcomes"].items()
                if not outcome.get("error")
            },
        }
        for record in records
    ]


def _peers(sources: Sources) -> dict[str, Any] | None:
    try:
        return about_peers(find_peers(sources.peers))
    except ConfigError:
        return None
