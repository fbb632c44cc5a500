from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import overhead


def test_a_short_run_tells_every_part(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("edge_tr.models.path", lambda name: tiny_model("llama"))
    monkeypatch.setattr(overhead, "drafting", lambda *sizes: {"total": 0.1})
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    sizes = ["--ctx", "1024", "--past", "500", "--steps", "100", "--vocab", "2000"]
    assert overhead.main(["--json", "--threads", "2", *sizes]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["host_ms_per_step"] > 0
    assert sum(told["parts_ms"].values()) > 0
    assert told["topk_over_max"] > 0
    assert min(told["plain_ms_per_step"].values()) > 0
    assert told["measured_on"]["nodes"] == 80
    assert told["measured_on"]["n_ctx"] == 1024


def test_drafting_is_measured_with_whole_trees() -> None:
    found = overhead.drafting(2000, 3000, 16, 10)
    assert found["n_nodes"] == 16
    assert found["total"] >= max(found["propose"], found["learn"]) > 0


def test_no_whole_tree_is_an_error(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("edge_tr.models.path", lambda name: tiny_model("llama"))
    with pytest.raises(SystemExit, match="give a longer --past"):
        overhead.host_steps("tiny", 256, 2, 0, None)
