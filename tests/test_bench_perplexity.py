"""bench.perplexity: the loss, and a run with one build on both sides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench import perplexity


def test_the_loss_is_minus_the_logarithm_of_the_probability() -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((5, 40)) * 30).astype(np.float32)
    following = rng.integers(0, 40, 5).astype(np.int32)
    wide = rows.astype(np.float64)
    p = np.exp(wide - wide.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    expected = -np.log(p[np.arange(5), following])
    assert perplexity.losses(rows, following) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_one_build_on_both_sides_changes_nothing(
    tiny_model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("edge_tr.models.path", lambda *_: tiny_model("llama"))
    monkeypatch.setattr("bench.builds.stock", lambda: None)
    options = ["--models", "tiny", "--widths", "8", "--pieces", "1", "--threads", "1", "--json"]
    assert perplexity.main(options) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["largest_change"], told["passed"]) == (0.0, True)
    assert set(told["models"]) == {"tiny", "tiny flash attention"}
