"""The benchmark of chains on hybrids, with tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import hybrid
from edge_tr.costs.table import CostTable

PLAIN = CostTable((1, 3), (0,), ((1.0, 1.4),))
TWO = CostTable((1, 3), (0,), ((1.02, 1.4),))
CHAINS = CostTable((1, 2, 3), (0,), ((1.02, 1.2, 1.4),))


@pytest.fixture
def answer(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Any]:
    """Run it with kept costs, those of ``measure`` where there are none."""
    monkeypatch.setattr("edge_tr.models.path", lambda name, progress: tiny_model(name))
    costs = tmp_path / "costs.json"

    def run(*options: str, **tables: CostTable) -> Any:
        if tables:
            kept = {kind: table.to_dict() for kind, table in tables.items()}
            costs.write_text(json.dumps({"lfm2": kept}))
        few = ["--per-category", "1", "--copies", "1", "--tokens", "8", "--threads", "1"]
        own = ["--model", "lfm2", "--dense", "llama", "--costs", str(costs), "--json"]
        assert hybrid.main([*few, *own, *options]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_speed_ups_are_over_plain_decoding_without_snapshots(answer: Callable[..., Any]) -> None:
    found = answer(plain=PLAIN, two=TWO, chains=CHAINS)
    assert found["is_expectation"]
    of = found["models"]["lfm2"]
    assert of["pays"]
    assert of["n_snapshots"] == 2
    assert found["lowest_ratio"] == of["expected"]["all"]["lowest"]
    assert of["expected"]["copy"]["n_texts"] == 1


def test_snapshots_that_do_not_pay_make_nothing_slower(answer: Callable[..., Any]) -> None:
    slow = CostTable((1, 3), (0,), ((1.2, 1.4),))
    assert answer(plain=PLAIN, two=slow, chains=CHAINS)["lowest_ratio"] == 1.0


def test_what_is_measured_is_kept(answer: Callable[..., Any]) -> None:
    options = ("--measure", "--snapshots", "3", "--budget", "0.1")
    first = answer(*options)
    assert set(first["lfm2"]) == {"plain", "two", "chains"}
    assert set(first["lfm2"]["chains"]) == {"1", "2", "3", "4"}
    assert answer(*options) == first
