from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.drop_in_texts import GREEDY, SEEDED, Compared, Text, main, table
from edge_tr.bench.prompts import Prompt
from edge_tr.stats import Stats


@pytest.fixture
def result(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> dict[str, Any]:
    """The JSON of a short run on a tiny model and two questions."""
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("edge_tr.models.path", lambda name: tiny_model("llama"))
    questions = [{"question_id": n, "category": "qa", "turns": ["Hello."]} for n in range(4)]
    (tmp_path / "spec_bench.jsonl").write_text("\n".join(map(json.dumps, questions)))
    fixed = ["--threads", "1", "--tokens", "16", "--positions", "24", "--tree", "3", "--json"]
    assert main([*fixed, "--questions", str(tmp_path)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_every_text_of_every_arm_is_compared(result: dict[str, Any]) -> None:
    assert result["plain_identical_share"] == 1
    for arm in ("forced", "auto"):
        for way in (GREEDY, SEEDED):
            assert result["arms"][arm][way]["n_texts"] == 4  # two questions, twice
            assert result["arms"][arm][way]["violations"] == 0
    assert result["arms"]["forced"]["n_drafted"] > 0
    assert any(line.startswith("forced, seeded: ") for line in table(result))


class Drafted:
    stats = Stats(n_steps=4, n_drafted=10)


def text(tokens: list[int], *rows: list[float]) -> Text:
    return Text(tokens, [np.array(row, dtype=np.float32) for row in rows])


def test_a_difference_is_as_far_as_the_two_best_logits_moved() -> None:
    compared = Compared()
    prompt = Prompt("q", "qa", np.array([1], dtype=np.int32))
    plain = text([5, 0], [9, 9, 9], [2.0, 1.5, -1.0])
    own = text([5, 1], [0, 0, 0], [2.1, 2.4, 9.0])
    llm: Any = Drafted()
    compared.add(prompt, plain, own, llm)
    compared.add(prompt, plain, plain, llm)
    assert compared.changes == pytest.approx([0.8])  # 0.5 became -0.3
    assert compared.width == 4
