"""The questions that the benchmarks ask."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge_tr.errors import ConfigError

_HERE = Path(__file__).resolve().parent
_SHARED = _HERE.parent.parent.parent / "shared" / "data"
_OWN = _HERE / "own_questions.jsonl"
_FILES = ("spec_bench.jsonl", "mbpp.jsonl")
_CONVERSATION = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)

Half = Literal["calibration", "measured"]


@dataclass(frozen=True)
class Question:
    """One question: its turns are what the user says, one after the other."""

    id: str
    category: str
    turns: tuple[str, ...]


def load_questions(path: Path | None = None) -> list[Question]:
    """All questions of Spec-Bench and MBPP, in the order of their files.

    The eight conversation categories of Spec-Bench count as "conversation"; those of
    ``mbpp.jsonl`` are "mbpp".

    Parameters
    ----------
    path : directory that holds ``spec_bench.jsonl`` and ``mbpp.jsonl``, or one of them; or a
        file of their format. None looks in ``../shared/data`` beside the clone, and takes a small
        set of our own, of six kinds of task, where that is missing.

    Raises
    ------
    ConfigError : neither file is there, or a line is not a question.
    """
    if path is not None and path.is_file():
        return read_questions(path)
    directory = path or _SHARED
    files = [directory / name for name in _FILES if (directory / name).is_file()]
    if not files:
        if path is not None:
            what = f"holds neither {_FILES[0]} nor {_FILES[1]}"
            raise ConfigError(f"{path} {what if path.exists() else 'does not exist'}")
        files = [_OWN]
    return [question for file in files for question in read_questions(file)]


def read_questions(file: Path) -> list[Question]:
    """The questions of one file: a JSON object a line, ``question_id``, ``category``, ``turns``.

    Raises
    ------
    ConfigError : the file cannot be read, or a line is not a question.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read questions: {error}") from error
    return [_question(file, n + 1, line) for n, line in enumerate(lines) if line.strip()]


def _question(file: Path, n_line: int, line: str) -> Question:
    try:
        fields = json.loads(line)
        category = str(fields["category"])
        turns = tuple(str(turn) for turn in fields["turns"])
        number = fields["question_id"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"line {n_line} of {file.name} is not a question: {error!r}") from error
    if not turns:
        raise ConfigError(f"line {n_line} of {file.name} has no turns")
    if file.name == "mbpp.jsonl":
        category = "mbpp"
    elif category in _CONVERSATION:
        category = "conversation"
    return Question(f"{file.stem}/{number}", category, turns)


def sample(
    questions: Sequence[Question],
    per_category: int,
    *,
    half: Half = "measured",
    seed: int = 0,
) -> list[Question]:
    """A fixed choice of questions of each category; the two halves share none.

    Parameters
    ----------
    per_category : most questions of each category.
    half : "calibration" to tune on, "measured" to measure on.
    seed : another seed splits and orders them another way.

    Returns
    -------
    By category in the order of their first question; the first n of a larger choice are a
    smaller one.
    """
    by_category: dict[str, list[Question]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question)
    chosen = []
    for category, members in by_category.items():
        random.Random(f"{seed} {category}").shuffle(members)
        chosen += members[half == "calibration" :: 2][:per_category]
    return chosen
