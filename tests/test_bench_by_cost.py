from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.by_cost import TableCosts, main, summarise
from edge_tr.costs.table import CostTable

TABLE = CostTable((1, 2, 4), (0,), ((1.0, 1.5, 2.0),), change_s=0.25)


def test_a_step_costs_what_the_table_says() -> None:
    costs = TableCosts(TABLE, 4)
    costs.observe(1, 10, 99.0, 1)
    costs.observe(4, 10, 99.0, 3)
    assert costs.total_s == pytest.approx(1.0 + 2.0 + 0.25)
    assert costs.plain_s == pytest.approx(4.0)
    assert costs.steady(10)[[1, 2, 4]].tolist() == pytest.approx([1.0, 1.5, 2.0])


def test_what_texts_cost_together_and_each() -> None:
    found = summarise(np.array([[4.0, 2.0, 2.0, 4.0, 2.0], [4.0, 8.0, 4.0, 4.0, 0.0]]))
    assert found["total"] == pytest.approx(0.8)
    assert found["mean"] == pytest.approx(1.25)
    assert found["n_below_0.98"] == 1
    assert found["mat"] == pytest.approx(4 / 3, abs=1e-4)
    assert found["acceptance_rate"] == pytest.approx(0.25)


def test_the_same_costs_give_the_same_figures(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("edge_tr.models.path", lambda name: tiny_model("llama"))
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(TABLE.to_dict()))
    lines = []
    for _ in range(2):
        options = ["--per-category", "1", "--copies", "1", "--tokens", "8", "--threads", "1"]
        assert main([*options, "--costs", str(costs), "--json"]) == 0
        lines.append(capsys.readouterr().out.splitlines()[-1])
    assert lines[0] == lines[1]
    assert json.loads(lines[0])["copy"]["n_texts"] == 1
