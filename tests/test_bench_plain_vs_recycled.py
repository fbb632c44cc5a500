from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.plain_vs_recycled import Pairs, main, summary, table
from edge_tr.bench.outcome import Outcome


@pytest.fixture
def bench(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., dict[str, Any]]:
    """``bench(*arguments)``: the JSON of a short run on a tiny model and two questions."""
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("edge_tr.models.path", lambda name: tiny_model("llama"))
    questions = [
        {"question_id": n, "category": category, "turns": ["Tell me about the sea."]}
        for n, category in enumerate(["qa", "qa", "rag", "rag"])
    ]
    lines = [json.dumps(question) for question in questions]
    (tmp_path / "spec_bench.jsonl").write_text("\n".join(lines))

    def call(*arguments: str) -> dict[str, Any]:
        fixed = ["--questions", str(tmp_path), "--threads", "1", "--tokens", "24", "--json"]
        assert main([*fixed, *arguments]) == 0
        result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return result

    return call


def answer(seconds: float, tokens: list[int], mat: float = 1.0) -> Outcome:
    """An answer whose tokens after the first took so long."""
    n_steps = len(tokens) - 1
    return Outcome(len(tokens), n_steps, 1.0, seconds, tokens=tokens, stats={"mat": mat})


def pairs(plain: float, recycled: float, *, mat: float = 2.0, last: int = 9) -> Pairs:
    text = [1, 2, 3]
    answers = (
        answer(plain, text),
        answer(recycled, text, mat),
        answer(plain, text),
        answer(recycled, [1, 2, last], mat),
    )
    return Pairs("q/1", "qa", answers)


@pytest.mark.parametrize("arguments", [[], ["--inherited"], ["--tree", "paper"], ["--tree", "3"]])
def test_texts_are_the_same(bench: Callable[..., dict[str, Any]], arguments: list[str]) -> None:
    result = bench(*arguments)
    assert result["same_texts"] == "2/2"
    assert set(result["speedup_by_category"]) == {"qa", "rag"}


def test_an_empty_matrix_makes_both_recycled_answers_alike(
    bench: Callable[..., dict[str, Any]],
) -> None:
    cold = bench("--tree", "paper", "--flash-attn")
    first, second = (row["mat"] for row in cold["questions"])
    assert first == second  # the same question twice


def test_an_inherited_matrix_knows_the_question_before(
    bench: Callable[..., dict[str, Any]],
) -> None:
    warm = bench("--tree", "paper", "--flash-attn", "--inherited")
    first, second = (row["mat"] for row in warm["questions"])
    assert second > first


def test_tree_off_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--tree", "off"])


def test_the_speed_is_taken_over_both_pairs() -> None:
    text = [1, 2, 3]
    answers = tuple(answer(seconds, text) for seconds in (2.0, 1.0, 4.0, 2.0))
    found = Pairs("q", "qa", answers)  # type: ignore[arg-type]
    assert found.speedup == pytest.approx(2.0)
    assert found.noise == pytest.approx(0.5)
    assert found.same_text


def test_one_different_text_is_told() -> None:
    assert not pairs(2, 1).same_text
    assert summary([pairs(2, 1), pairs(2, 1, last=3)])["same_texts"] == "1/2"


def test_the_median_and_its_bounds() -> None:
    result = summary([pairs(n, 1) for n in range(1, 8)])
    assert result["speedup"]["median"] == 4
    assert result["speedup"]["lower"] < 4 < result["speedup"]["upper"]
    assert "all: 4.000" in "\n".join(table(result))


def test_few_questions_have_no_bounds() -> None:
    result = summary([pairs(3, 1)])
    assert result["speedup"]["lower"] is None
    assert "all: 3.000 times as fast" in "\n".join(table(result))
