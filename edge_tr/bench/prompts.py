"""Prompts of the benchmarks as tokens: questions, adversarial input, texts to copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from edge_tr.bench.questions import Question, read_questions
from edge_tr.target import Int32

_HERE = Path(__file__).resolve().parent
_N_RANDOM = 200
"""Tokens of a prompt of random tokens."""

Tokenize = Callable[[str], Int32]


@dataclass(frozen=True)
class Prompt:
    """The first turn of a question, in the model's chat template."""

    id: str
    category: str
    tokens: Int32


def question_prompts(
    questions: Sequence[Question], tokenize: Tokenize, max_tokens: int
) -> list[Prompt]:
    """First turns as tokens; of one that is too long the last ``max_tokens`` are kept."""
    return [Prompt(q.id, q.category, tokenize(q.turns[0])[-max_tokens:]) for q in questions]


def adversarial_prompts(
    n: int, tokenize: Tokenize, max_tokens: int, n_vocab: int, stop_tokens: frozenset[int]
) -> list[Prompt]:
    """Random tokens, and texts with another language in each sentence, in turn."""
    texts = read_questions(_HERE / "adversarial.jsonl")
    allowed = np.setdiff1d(np.arange(n_vocab, dtype=np.int32), list(stop_tokens))
    prompts = []
    for i in range(n):
        if i % 2 == 0:
            tokens = np.random.default_rng(i).choice(allowed, _N_RANDOM)
            prompts.append(Prompt(f"random/{i // 2}", "adversarial", tokens))
        else:
            text = texts[i // 2 % len(texts)]
            tokens = tokenize(text.turns[0])[-max_tokens:]
            # A text that comes again is another prompt: it begins with a random token.
            if i // 2 >= len(texts):
                tokens = np.concatenate((allowed[i : i + 1], tokens))
            prompts.append(Prompt(f"languages/{i // 2}", "adversarial", tokens))
    return prompts


def copy_prompts(tokenize: Tokenize, max_tokens: int) -> list[Prompt]:
    """Return a text with small edits, rename a variable in code, quote from a document."""
    return question_prompts(read_questions(_HERE / "copy_edit.jsonl"), tokenize, max_tokens)


class _Categorised(Protocol):
    @property
    def category(self) -> str: ...


Item = TypeVar("Item", bound=_Categorised)


def interleave(prompts: Sequence[Item]) -> list[tuple[int, int, Item]]:
    """One prompt or question of each category in turn, so that a drift of the machine touches
    all alike.

    Returns
    -------
    Round, place of the category, and prompt.
    """
    by_category: dict[str, list[Item]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    rounds = zip_longest(*by_category.values())
    return [(r, c, p) for r, row in enumerate(rounds) for c, p in enumerate(row) if p is not None]


def copied_share(prompt: Sequence[int], answer: Sequence[int], n: int = 8) -> float:
    """Share of the answer's tokens that lie in a match of ``n`` tokens with the prompt."""
    known = {tuple(prompt[i : i + n]) for i in range(len(prompt) - n + 1)}
    copied = np.zeros(len(answer), dtype=bool)
    for i in range(len(answer) - n + 1):
        if tuple(answer[i : i + n]) in known:
            copied[i : i + n] = True
    return float(copied.mean())
