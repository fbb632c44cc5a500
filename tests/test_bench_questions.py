"""The questions of the benchmarks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from edge_tr.bench import questions as module
from edge_tr.bench.questions import load_questions, sample
from edge_tr.errors import ConfigError

SPEC = '{"question_id": 1, "category": "stem", "turns": ["a", "b"]}\n\n'


def test_own_questions_stand_in_where_the_shared_ones_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_SHARED", tmp_path)
    counts = Counter(question.category for question in load_questions())
    assert len(counts) == 6
    assert set(counts.values()) == {3}


def test_conversation_categories_count_as_one(tmp_path: Path) -> None:
    (tmp_path / "spec_bench.jsonl").write_text(SPEC)
    (question,) = load_questions(tmp_path)
    assert question == module.Question("spec_bench/1", "conversation", ("a", "b"))


def test_mbpp_is_named_after_its_file(tmp_path: Path) -> None:
    (tmp_path / "mbpp.jsonl").write_text(SPEC.replace("stem", "code"))
    assert [q.category for q in load_questions(tmp_path)] == ["mbpp"]


@pytest.mark.parametrize(
    "line", ["no JSON", '{"question_id": 1}', '{"question_id": 1, "category": "x", "turns": []}']
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "mbpp.jsonl").write_text(SPEC + line)
    with pytest.raises(ConfigError, match=r"line 3 of mbpp\.jsonl"):
        load_questions(tmp_path)


def test_a_directory_without_questions_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds neither"):
        load_questions(tmp_path)


def make(n: int) -> list[module.Question]:
    return [module.Question(f"{c}{i}", c, ("x",)) for i in range(n) for c in "ab"]


def test_the_halves_are_disjoint_and_cover_everything() -> None:
    questions = make(7)
    tuned = sample(questions, 100, half="calibration")
    measured = sample(questions, 100, half="measured")
    assert not set(tuned) & set(measured)
    assert set(tuned) | set(measured) == set(questions)


def test_a_smaller_sample_is_the_start_of_a_larger_one() -> None:
    few, many = sample(make(9), 2), sample(make(9), 4)
    assert [q for q in many if q in few] == few
    assert Counter(q.category for q in few) == {"a": 2, "b": 2}


def test_the_seed_decides_the_sample() -> None:
    assert sample(make(50), 5, seed=1) == sample(make(50), 5, seed=1)
    assert sample(make(50), 5, seed=1) != sample(make(50), 5, seed=2)
