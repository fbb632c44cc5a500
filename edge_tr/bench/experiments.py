"""The paper's experiments that vary one thing: ours and the paper's setting side by side."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edge_tr.bench import summary
from edge_tr.bench.engine import EngineMethod, PlainMethod, engine_method, engine_on, paper_draft
from edge_tr.bench.main_table import answers
from edge_tr.bench.outcome import Method
from edge_tr.bench.pairs import Record, Records
from edge_tr.bench.questions import Question
from edge_tr.bench.runner import AGAIN, PLAIN, Case, Runner
from edge_tr.config import SamplingConfig
from edge_tr.drafts.template import TreeTemplate
from edge_tr.session import Session

PAPER, AUTO = "paper", "auto"
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_SEED = 1


@dataclass(frozen=True)
class Setup:
    """What the cases of an experiment are made of.

    Attributes
    ----------
    session : in automatic mode; its target serves every decoder.
    other_questions : questions that are not measured, to learn from.
    n_tokens : most tokens of an answer.
    state : directory for what methods have learned; a file that is there is gone on with.
    """

    session: Session
    other_questions: Sequence[Question]
    n_tokens: int
    state: Path

    def automatic(self, setting: str = "", **draft: Any) -> EngineMethod:
        """Automatic mode from an empty start, inherited; see ``engine_method``."""
        return self._inherited(AUTO, setting, draft)

    def recycling(
        self, setting: str = "", template: TreeTemplate | None = None, **draft: Any
    ) -> EngineMethod:
        """The paper's way, with another tree or whatever else is given."""
        return self._inherited(PAPER, setting, paper_draft(template, **draft))

    def _inherited(self, method: str, setting: str, draft: dict[str, Any]) -> EngineMethod:
        file = self.state / f"{setting} {method}.npz".strip().replace(" ", "-")
        start = {"start": "inherited"} if file.exists() else {}
        return engine_method(self.session, **draft | start, matrix_path=file)

    def plain(self) -> Method:
        """Plain decoding."""
        return PlainMethod(self.session)

    def engine_plain(self, sampling: SamplingConfig | None = None) -> EngineMethod:
        """Plain decoding on our decode loop, which can sample and times its parts."""
        return engine_method(self.session, speculative="off", sampling=sampling)


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes
    ----------
    title, about : for the report.
    cases : the cases to measure, plain decoding first.
    parts : report the time per step by kind of work.
    """

    title: str
    about: str
    cases: Callable[[Setup], list[Case]]
    parts: bool = False


def run_experiment(
    name: str,
    setup: Setup,
    questions: Sequence[Question],
    records: Records,
) -> dict[str, Any]:
    """Measure one experiment on a session in automatic mode."""
    experiment = EXPERIMENTS[name]
    runner = Runner(
        setup.session, experiment.cases(setup), records, n_tokens=setup.n_tokens, phase=name
    )
    found = runner.run(questions)
    if name == "start":
        found = _merged(found, _run_shuffled(setup, questions, records))
    return {
        "rows": summary.rows(found),
        "noise": summary.noise(found, AGAIN),
        "unavailable": runner.unavailable,
        "answers": answers(found),
    }


def _framed(setup: Setup, cases: Sequence[Case]) -> list[Case]:
    return [Case(PLAIN, setup.plain), *cases, Case(AGAIN, setup.plain)]


def _start_cases(setup: Setup) -> list[Case]:
    paper = paper_draft()
    return _framed(
        setup,
        [
            Case(PAPER, partial(_fresh, setup, paper, "empty"), "empty"),
            Case(PAPER, partial(setup.recycling, "random", start="random"), "random"),
            Case(PAPER, partial(setup.recycling, "inherited"), "inherited"),
            Case(PAPER, partial(_from_file, setup, paper, PAPER), "file"),
            Case(AUTO, partial(_fresh, setup, {}, "empty"), "empty"),
            Case(AUTO, partial(setup.automatic, "random", start="random"), "random"),
            Case(AUTO, partial(setup.automatic, "inherited"), "inherited"),
            Case(AUTO, partial(_from_file, setup, {}, AUTO), "file"),
        ],
    )


def _fresh(setup: Setup, draft: dict[str, Any], start: str, file: Path | None = None) -> Method:
    """A method that starts anew at every answer, learned rows of a file included."""
    session = setup.session
    return EngineMethod(
        session, lambda: engine_on(session, start=start, matrix_path=file, **draft).decoder
    )


def _from_file(setup: Setup, draft: dict[str, Any], method: str) -> Method:
    """Each answer starts with what the method has learned from questions that are not measured."""
    session = setup.session
    file = setup.state / f"learned-{method}.npz"
    if not file.exists():
        learner = engine_method(session, matrix_path=file, **draft)
        room = session.target.n_ctx - setup.n_tokens - 1
        for question in setup.other_questions:
            learner.answer(session.prompt_tokens(question.turns[0])[-room:], setup.n_tokens)
        learner.save()
    return _fresh(setup, draft, "inherited", file)


def _run_shuffled(setup: Setup, questions: Sequence[Question], records: Records) -> list[Record]:
    """The inherited start once more, with the questions in another order."""
    shuffled = list(questions)
    random.Random(_SEED).shuffle(shuffled)
    cases = [
        Case(PAPER, partial(setup.recycling, "shuffled"), "shuffled"),
        Case(AUTO, partial(setup.automatic, "shuffled"), "shuffled"),
    ]
    runner = Runner(setup.session, cases, records, n_tokens=setup.n_tokens, phase="start-shuffled")
    return runner.run(shuffled)


def _merged(records: Sequence[Record], more: Sequence[Record]) -> list[Record]:
    """The outcomes of both, by prompt."""
    by_id = {record["id"]: record for record in more}
    return [
        record | {"outcomes": record["outcomes"] | by_id[record["id"]]["outcomes"]}
        for record in records
    ]


def _update_cases(setup: Setup) -> list[Case]:
    return _framed(
        setup,
        [
            Case(PAPER, partial(setup.recycling, "all"), "all nodes"),
            Case(PAPER, partial(setup.recycling, "accepted", update="accepted"), "accepted only"),
            Case(AUTO, setup.automatic, "automatic"),
        ],
    )


def trees() -> Iterator[tuple[str, TreeTemplate]]:
    """The trees of the experiment: by nodes, by breadth and by depth."""
    paper = TreeTemplate.paper()
    for n in (3, 7, 15, 31, 80):
        yield f"nodes {n}", paper.prefix(n)
    for breadth in (1, 2, 4, 8):
        yield f"breadth {breadth}", TreeTemplate.from_breadths([breadth, 1, 1, 1])
    for depth in (1, 2, 3, 4):
        paths = [path for path in paper.paths if len(path) <= depth]
        yield f"depth {depth}", TreeTemplate(paths)


def _tree_cases(setup: Setup) -> list[Case]:
    cases = [Case(PAPER, partial(setup.recycling, name, tree), name) for name, tree in trees()]
    return _framed(setup, [*cases, Case(AUTO, setup.automatic, "automatic")])


def _k_cases(setup: Setup) -> list[Case]:
    paper = TreeTemplate.paper()
    cases = []
    for k in (1, 2, 4, 8, 16):
        tree = TreeTemplate([path for path in paper.paths if max(path) < k])
        name = f"k = {k}"
        cases += [
            Case(PAPER, partial(setup.recycling, name, tree, k=k), name),
            Case(AUTO, partial(setup.automatic, name, k=k), name),
        ]
    return _framed(setup, cases)


def _temperature_cases(setup: Setup) -> list[Case]:
    cases = []
    for temperature in TEMPERATURES:
        sampling = SamplingConfig(temperature=temperature, seed=_SEED)
        name = f"temperature {temperature:g}"
        cases += [
            Case(PLAIN, partial(setup.engine_plain, sampling), name),
            Case(PAPER, partial(setup.recycling, name, sampling=sampling), name),
            Case(AUTO, partial(setup.automatic, name, sampling=sampling), name),
        ]
    return cases


def _step_cases(setup: Setup) -> list[Case]:
    return [
        Case(PLAIN, setup.engine_plain),
        Case(PAPER, setup.recycling),
        Case(AUTO, setup.automatic),
    ]


EXPERIMENTS = {
    "start": Experiment(
        "Start of the matrix",
        "empty at every answer; random at first; empty at first and inherited; at every answer "
        "what was learned from other questions (a file); inherited with the questions shuffled",
        _start_cases,
    ),
    "update": Experiment(
        "Which nodes are written back",
        "every node of a step, rejected ones too, or the accepted path only",
        _update_cases,
    ),
    "tree": Experiment(
        "Shape of the draft tree",
        "the first nodes of the paper's tree; chains below 1 to 8 best candidates; the paper's "
        "tree cut at a depth",
        _tree_cases,
    ),
    "k": Experiment(
        "Candidates of a row",
        "the paper's tree as far as its ranks go; automatic mode with rows of k",
        _k_cases,
    ),
    "temperature": Experiment(
        "Temperature",
        "the same seed in every method; each is compared with plain decoding at its temperature",
        _temperature_cases,
    ),
    "step": Experiment(
        "Time of a decode step",
        "milliseconds of decode, top-k, draft, update, lanes and sampling",
        _step_cases,
        parts=True,
    ),
}
"""Experiments over questions on one model, by the name of their subcommand."""
