"""Runs methods over the same questions in turn; a stopped run goes on from its records."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TextIO

from edge_tr.bench.engine import detokenized
from edge_tr.bench.outcome import Method
from edge_tr.bench.pairs import Record, Records
from edge_tr.bench.peers import PeerError
from edge_tr.bench.prompts import interleave
from edge_tr.bench.questions import Question
from edge_tr.errors import ConfigError
from edge_tr.session import Session
from edge_tr.target import Int32

PLAIN, AGAIN = "plain", "plain-again"
"""Plain decoding, and the same once more: what the two differ by is noise."""


@dataclass(frozen=True)
class Case:
    """One method in one setting of an experiment.

    Attributes
    ----------
    setting : what the experiment varies; empty for what it leaves alone.
    open : makes the method; a ConfigError says why it cannot run here.
    """

    method: str
    open: Callable[[], Method]
    setting: str = ""

    @property
    def key(self) -> str:
        """Its name in the records."""
        return f"{self.setting}/{self.method}" if self.setting else self.method


class Progress:
    """A bar on stderr that counts answers, or a line now and then where it is no terminal."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total = max(1, total)
        self._stream = stream or sys.stderr
        self._done = self._skipped = 0
        self._started = self._told = time.monotonic()

    def skip(self, n: int) -> None:
        """Count answers that were there before."""
        self._done += n
        self._skipped += n

    def step(self, what: str) -> None:
        """Count one answer."""
        self._done += 1
        now = time.monotonic()
        n_new = self._done - self._skipped
        left_s = (now - self._started) / n_new * (self._total - self._done)
        filled = 24 * self._done // self._total
        line = (
            f"[{'#' * filled}{'.' * (24 - filled)}] {self._done}/{self._total}, "
            f"{left_s / 60:.0f} min left; {what}"
        )
        if self._stream.isatty():
            print(f"\r{line[:100]:<100}", end="", file=self._stream, flush=True)
        elif now - self._told > 20 or self._done == self._total:
            self._told = now
            print(line, file=self._stream, flush=True)

    def end(self) -> None:
        """Leave the bar's line."""
        if self._stream.isatty():
            print(file=self._stream)


@dataclass
class QuestionTurn:
    """One prompt: a turn of a question, behind its earlier turns and plain decoding's answers."""

    id: str
    category: str
    tokens: Int32


class Runner:
    """Answers every question with every case, the order turned round from one to the next.

    Parameters
    ----------
    cases : the first one with the method "plain" writes the answers that later turns build on.
    n_tokens : most tokens of each answer.
    phase : name of the experiment in the records.
    all_turns : ask every turn of a question; else the first.

    Attributes
    ----------
    unavailable : reasons, by key, of the cases that could not run.
    """

    def __init__(
        self,
        session: Session,
        cases: Sequence[Case],
        records: Records,
        *,
        n_tokens: int,
        phase: str,
        all_turns: bool = False,
    ) -> None:
        self.session = session
        self.cases = list(cases)
        self.records = records
        self.n_tokens = n_tokens
        self.phase = phase
        self.all_turns = all_turns
        self.unavailable: dict[str, str] = {}
        self._model = session.model.path.name

    def run(self, questions: Sequence[Question], progress: Progress | None = None) -> list[Record]:
        """Measure what the records lack; all records of these questions, in their order."""
        ordered = [question for _, _, question in interleave(questions)]
        n_turns = [len(q.turns) if self.all_turns else 1 for q in ordered]
        progress = progress or Progress(sum(n_turns) * len(self.cases))
        found: list[Record] = []
        with ExitStack() as stack:
            methods = self._open(stack)
            for place, question in enumerate(ordered):
                for turn in self._turns(question, found):
                    record = self.records.find(self._model, self.phase, turn.id)
                    if record is None:
                        record = self._measure(turn, methods, place % 2 == 1, progress)
                    else:
                        progress.skip(len(self.cases))
                    found.append(record)
        progress.end()
        return found

    def _open(self, stack: ExitStack) -> dict[str, Method]:
        methods = {}
        for case in self.cases:
            try:
                methods[case.key] = case.open()
            except ConfigError as error:
                self.unavailable[case.key] = str(error)
                continue
            stack.callback(methods[case.key].close)
        return methods

    def _turns(self, question: Question, found: list[Record]) -> Iterator[QuestionTurn]:
        """The prompts of a question; the record of each is in ``found`` before the next."""
        messages: list[dict[str, str]] = []
        for i, text in enumerate(question.turns if self.all_turns else question.turns[:1]):
            messages.append({"role": "user", "content": text})
            room = self.session.target.n_ctx - self.n_tokens - 1
            tokens = self.session.model.chat_tokens(messages)[-room:]
            yield QuestionTurn(f"{question.id}#{i + 1}", question.category, tokens)
            answer = found[-1]["outcomes"].get(PLAIN, {}).get("tokens", [])
            messages.append({"role": "assistant", "content": detokenized(self.session, answer)})

    def _measure(
        self, turn: QuestionTurn, methods: dict[str, Method], backwards: bool, progress: Progress
    ) -> Record:
        outcomes: dict[str, dict[str, Any]] = {}
        keys = [case.key for case in self.cases if case.key in methods]
        for key in reversed(keys) if backwards else keys:
            try:
                outcome = methods[key].answer(turn.tokens, self.n_tokens)
            except PeerError as error:
                self.unavailable[key] = str(error)
                with contextlib.suppress(PeerError):
                    methods.pop(key).close()
                continue
            outcomes[key] = outcome.to_dict()
            speed = f"{outcome.tps:.1f} tokens/s" if outcome.counts else outcome.error or "no speed"
            progress.step(f"{turn.category}: {key} {speed}")
        record = self.records.append(
            self._model,
            self.phase,
            turn.id,
            category=turn.category,
            n_prompt=len(turn.tokens),
            prompt=turn.tokens.tolist(),
            outcomes={key: outcomes[key] for key in keys if key in outcomes},
        )
        for method in methods.values():
            method.save()
        return record
