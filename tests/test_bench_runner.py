"""Methods take turns, failures are kept apart, and a stopped run goes on."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_tr.bench.outcome import Method, Outcome
from edge_tr.bench.pairs import Records
from edge_tr.bench.peers import PeerError
from edge_tr.bench.questions import Question
from edge_tr.bench.runner import Case, Progress, Runner
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.errors import ConfigError
from edge_tr.session import Session
from edge_tr.target import Int32

QUESTIONS = [
    Question("q1", "a", ("one", "two")),
    Question("q2", "b", ("three",)),
]


class Fake:
    """A method that notes what it is asked."""

    def __init__(self, name: str, log: list[tuple[str, list[int]]], error: str = "") -> None:
        self.name = name
        self.log = log
        self.error = error
        self.n_saved = 0
        self.closed = False

    def answer(self, prompt: Int32, n_tokens: int) -> Outcome:
        self.log.append((self.name, prompt.tolist()))
        if self.error:
            raise PeerError(self.error)
        return Outcome(n_tokens, n_tokens - 1, 0.1, 0.2, tokens=[5] * n_tokens)

    def save(self) -> None:
        self.n_saved += 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def session(tiny_model: Callable[[str], Path]) -> Iterator[Session]:
    context = ContextConfig(n_ctx=256, n_threads=1, n_threads_batch=1)
    draft = DraftConfig(speculative="off", start="empty")
    with Session(tiny_model("llama"), context=context, draft=draft) as found:
        yield found


def runner(
    session: Session, methods: list[Method], names: list[str], records: Records | None = None
) -> Runner:
    cases = [
        Case(name, lambda m=method: m)  # type: ignore[misc]
        for name, method in zip(names, methods, strict=True)
    ]
    records = records or Records(None, {})
    return Runner(session, cases, records, n_tokens=4, phase="main", all_turns=True)


def quiet() -> Progress:
    return Progress(1, io.StringIO())


def test_the_order_turns_round_from_question_to_question(session: Session) -> None:
    log: list[tuple[str, list[int]]] = []
    names = ["plain", "auto"]
    runner(session, [Fake(n, log) for n in names], names).run(QUESTIONS, quiet())
    assert [name for name, _ in log] == ["plain", "auto", "plain", "auto", "auto", "plain"]


def test_a_later_turn_stands_behind_the_plain_answer(session: Session) -> None:
    log: list[tuple[str, list[int]]] = []
    runner(session, [Fake("plain", log)], ["plain"]).run(QUESTIONS[:1], quiet())
    first, second = (prompt for _, prompt in log)
    answer = session.model.detokenize([5] * 4).decode("utf-8", "replace")
    assert answer in session.model.detokenize(second[len(first) - 1 :]).decode("utf-8", "replace")


def test_every_method_gets_the_same_prompts(session: Session) -> None:
    log: list[tuple[str, list[int]]] = []
    names = ["plain", "auto"]
    runner(session, [Fake(n, log) for n in names], names).run(QUESTIONS, quiet())
    plain, auto = ([prompt for name, prompt in log if name == n] for n in names)
    assert sorted(plain) == sorted(auto)


def test_a_program_that_fails_is_left_out_and_named(session: Session) -> None:
    log: list[tuple[str, list[int]]] = []
    methods: list[Method] = [Fake("plain", log), Fake("peer", log, "broke off")]
    run = runner(session, methods, ["plain", "peer"])
    found = run.run(QUESTIONS, quiet())
    assert run.unavailable == {"peer": "broke off"}
    assert [name for name, _ in log].count("peer") == 1
    assert all(list(record["outcomes"]) == ["plain"] for record in found)


def test_a_method_that_cannot_be_opened_is_named(session: Session) -> None:
    def refuse() -> Method:
        raise ConfigError("not built")

    cases = [Case("plain", lambda: Fake("plain", [])), Case("peer", refuse)]
    run = Runner(session, cases, Records(None, {}), n_tokens=4, phase="main")
    run.run(QUESTIONS, quiet())
    assert run.unavailable == {"peer": "not built"}


def test_what_was_learned_is_kept_after_each_prompt(session: Session) -> None:
    method = Fake("plain", [])
    runner(session, [method], ["plain"]).run(QUESTIONS, quiet())
    assert method.n_saved == 3
    assert method.closed


def test_a_stopped_run_goes_on_where_it_was(session: Session, tmp_path: Path) -> None:
    file, log = tmp_path / "records.jsonl", list[tuple[str, list[int]]]()
    method: list[Method] = [Fake("plain", log)]
    runner(session, method, ["plain"], Records(file, {})).run(QUESTIONS[:1], quiet())
    found = runner(session, method, ["plain"], Records(file, {})).run(QUESTIONS, quiet())
    assert len(log) == len(found) == 3


def test_progress_counts_what_was_there_before() -> None:
    stream = io.StringIO()
    progress = Progress(2, stream)
    progress.skip(1)
    progress.step("done")
    assert "2/2, 0 min left; done" in stream.getvalue()
