"""What earlier texts bring: ``python -m bench.history --json``.

Three sessions with one model answer the same prompts in turn, the order turned round from prompt
to prompt: plain decoding, automatic mode without a history, and automatic mode with one. Both
automatic ones inherit their matrix from prompt to prompt. The prompts, as kinds:

``first``      questions of all categories
``follow_up``  second turns of those that have one, behind the first question and its answer
``alike``      three tasks, each asked for twenty different things (``bench/history_texts.py``)
``unrelated``  other questions, behind all that
``same``       the first questions again

Speeds are of the tokens after the first, to the end of the text; answers of fewer than 16 tokens
are left out. ``same`` and ``follow_up`` are speeds over plain decoding's, ``alike`` and
``unrelated`` over those without a history, each the median. ``n_equal`` of ``n_texts`` answers of
the three were the same to the token. ``search_ms`` is one search in a history of a million tokens
that was filled with made-up texts, ``history_mb`` what that one takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from bench.history_texts import families
from edge_tr import models
from edge_tr.bench.questions import Question, load_questions, sample
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.drafts.candidates import RunningText
from edge_tr.drafts.history import History
from edge_tr.machine.facts import n_cores
from edge_tr.session import Session
from edge_tr.target import Int32

ARMS = {
    "plain": DraftConfig(speculative="off", start="empty"),
    "empty": DraftConfig(start="empty", n_history=0),
    "history": DraftConfig(start="empty"),
}
_FEWEST = 16


@dataclass(frozen=True)
class Asked:
    """A prompt, and the tokens per second of each arm after the first token."""

    kind: str
    tps: dict[str, float]
    mat: dict[str, float]
    n_tokens: int
    is_equal: bool


@dataclass
class Asking:
    """Asks all arms in turn.

    Attributes
    ----------
    done : every answer so far.
    """

    sessions: dict[str, Session]
    max_tokens: int
    done: list[Asked] = field(default_factory=list)

    def ask(self, kind: str, prompt: Int32) -> str:
        """The text that plain decoding answers."""
        names = list(self.sessions)
        if len(self.done) % 2:
            names.reverse()
        tps, mat, texts = {}, {}, {}
        for name in names:
            decoder = self.sessions[name].decoder
            stop_tokens = self.sessions[name].stop_tokens
            steps = decoder.generate(prompt, max_tokens=self.max_tokens, stop_tokens=stop_tokens)
            texts[name] = [token for step in steps for token in step]
            tps[name], mat[name] = decoder.stats.decode_tps, decoder.stats.mat
        is_equal = all(text == texts["plain"] for text in texts.values())
        self.done.append(Asked(kind, tps, mat, len(texts["plain"]), is_equal))
        _say(
            f"{len(self.done)} {kind}: "
            + ", ".join(f"{name} {tps[name]:.0f} tokens/s" for name in self.sessions)
        )
        answer = [t for t in texts["plain"] if t not in self.sessions["plain"].stop_tokens]
        return self.sessions["plain"].model.detokenize(answer).decode("utf-8", "replace")


def ask_all(asking: Asking, first: Sequence[Question], others: Sequence[Question]) -> None:
    """Every prompt, in the order that ``summarise`` needs."""
    model = asking.sessions["plain"].model
    room = asking.sessions["plain"].target.n_ctx - asking.max_tokens

    def ask(kind: str, messages: Any) -> str:
        return asking.ask(kind, model.chat_tokens(messages)[-room:])

    for question in first:
        answer = ask("first", question.turns[0])
        if len(question.turns) > 1:
            turns = [
                {"role": "user", "content": question.turns[0]},
                {"role": "assistant", "content": answer},
                {"role": "user", "content": question.turns[1]},
            ]
            ask("follow_up", turns)
    for family, prompts in families("measured").items():
        for i, prompt in enumerate(prompts):
            ask(f"alike {family}" if i else "opening", prompt)
    for question in others:
        ask("unrelated", question.turns[0])
    for question in first:
        ask("same", question.turns[0])


def summarise(done: Sequence[Asked]) -> dict[str, Any]:
    """The figures that the module's text names."""

    def ratios(kind: str, over: str) -> list[float]:
        asked = [a for a in done if a.kind.split(" ")[0] == kind and a.n_tokens >= _FEWEST]
        return [a.tps["history"] / a.tps[over] for a in asked]

    def middle(values: Sequence[float]) -> float | None:
        return round(median(values), 4) if values else None

    found: dict[str, Any] = {
        "same": middle(ratios("same", "plain")),
        "same_without_history": middle(
            [a.tps["empty"] / a.tps["plain"] for a in done if a.kind == "same"]
        ),
        "follow_up": middle(ratios("follow_up", "plain")),
        "follow_up_over_empty": middle(ratios("follow_up", "empty")),
        "alike": middle(ratios("alike", "empty")),
        "alike_over_plain": middle(ratios("alike", "plain")),
        "unrelated": middle(ratios("unrelated", "empty")),
        "n_texts": len(done),
        "n_equal": sum(a.is_equal for a in done),
    }
    for family in dict.fromkeys(a.kind for a in done if a.kind.startswith("alike ")):
        asked = [a for a in done if a.kind == family and a.n_tokens >= _FEWEST]
        found[family] = {
            "n": len(asked),
            "over_empty": middle([a.tps["history"] / a.tps["empty"] for a in asked]),
            "over_plain": middle([a.tps["history"] / a.tps["plain"] for a in asked]),
            "mat": middle([a.mat["history"] for a in asked]),
            "mat_without_history": middle([a.mat["empty"] for a in asked]),
        }
    return found


def search(n_tokens: int = DraftConfig.n_history, seed: int = 0) -> dict[str, float]:
    """Memory of a full history of made-up texts whose tokens are as unevenly frequent as words,
    and how long a search in it takes."""
    rng = np.random.default_rng(seed)
    tokens = np.minimum(rng.zipf(1.2, n_tokens) - 1, 49_000).astype(np.int32)
    history = History(n_tokens)
    for text in np.array_split(tokens[: n_tokens * 9 // 10], max(1, n_tokens // 2000)):
        history.add(text)
    running = RunningText(4096)
    taken = []
    for start in rng.integers(0, len(tokens) - 64, 300):
        running.begin(tokens[start : start + 64], history)
        new = tokens[start + 64 : start + 65]
        np.ones(1 << 20).sum()  # what else a step does to the caches
        started = perf_counter()
        running.extend(new)
        taken.append(perf_counter() - started)
    return {
        "history_mb": round(history.n_bytes / 2**20, 1),
        "search_ms": round(1e3 * float(np.median(taken)), 4),
        "search_ms_q99": round(1e3 * float(np.quantile(taken[1:], 0.99)), 4),
    }


def _sessions(stack: ExitStack, path: Path, context: ContextConfig) -> Iterator[tuple[str, Any]]:
    for name, draft in ARMS.items():
        yield name, stack.enter_context(Session(path, context=context, draft=draft, progress=_say))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, and print; with ``--json`` the last line is one JSON object."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.history",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", action="append", help="may be repeated")
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--threads", type=int, default=n_cores())
    parser.add_argument("--questions", type=Path, help="directory of Spec-Bench and MBPP")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    context = ContextConfig(n_threads=options.threads, n_threads_batch=options.threads)
    questions = load_questions(options.questions)
    first = sample(questions, options.per_category)
    others = [q for q in sample(questions, 2 * options.per_category) if q not in first]
    found: dict[str, Any] = {}
    for name in options.model or ["smollm2-q4_0", "gemma3-q4_k_m"]:
        with ExitStack() as stack:
            sessions = dict(_sessions(stack, models.path(name), context))
            asking = Asking(sessions, options.tokens)
            ask_all(asking, first, others)
        found[name] = summarise(asking.done)
    found |= search()
    for name, figures in found.items():
        print(f"{name}: {figures}")
    if options.json:
        print(json.dumps({"bench": "history", **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
