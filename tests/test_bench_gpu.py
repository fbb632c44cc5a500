"""The GPU script: its dry run on this machine, what it concludes, and parts that go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import IS_POSIX, SERVER, posix, write_program

from bench import gpu, gpu_runner
from bench.gpu_expect import conclude, expectation, summarise
from bench.gpu_runner import Bench, Part
from edge_tr.bench.peers import SERVER_TYPES
from edge_tr.bench.prompt_lookup import PromptLookup
from edge_tr.costs.expected import RecordedRun, Recording
from edge_tr.drafts.draft import Draft

BROKEN = 'import sys\nif "ngram-mod" in sys.argv: sys.exit("no such type")\n'
SERVERS = tuple(name for name in SERVER_TYPES if name != "ngram-mod") if IS_POSIX else ()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file of a dry run."""
    out = tmp_path_factory.mktemp("results")
    options = ["--dry-run", "--out", str(out)]
    if IS_POSIX:
        options += ["--peers", str(write_program(out, "llama-server", BROKEN + SERVER))]
    assert gpu.main(options) == 0
    data: dict[str, Any] = json.loads((out / "dry-run.json").read_text())
    return data


def test_a_dry_run_does_every_part(results: dict[str, Any]) -> None:
    errors = {name: part["error"] for name, part in results["parts"].items() if "error" in part}
    assert errors == {}
    assert results["skipped"] == {}
    assert len(results["parts"]) == 26


@pytest.mark.parametrize("model", ["", "tiny", "tiny f16"])
def test_the_last_line_has_every_number(results: dict[str, Any], model: str) -> None:
    summary = results["summary"]
    for name in (
        "auto_speedup_overall",
        "auto_over_best_peer",
        "efficiency",
        "host_ms_per_step",
        "host_ms_per_step_4k",
        "host_over_backend_topk",
    ):
        assert (summary["models"][model] if model else summary)[name] > 0, name
    assert summary["expected_8b"] > 0


def test_the_peers_are_named(results: dict[str, Any]) -> None:
    assert results["summary"]["models"]["tiny"]["peers"] == ["pld", *SERVERS]


def test_a_staircase_has_every_width_and_part(results: dict[str, Any]) -> None:
    tables = results["parts"]["costs tiny"]["tables"]
    assert [table["n_past"] for table in tables] == [16, 32, 48]
    assert all(table["widths"] == [1, 2, 3, 4] for table in tables)
    assert all(len(tables[0][f"{name}_ms"]) == 4 for name in ("step", "one_row", "queue", "topk"))


def test_the_back_end_finds_the_same_candidates(results: dict[str, Any]) -> None:
    topk = results["parts"]["topk tiny"]["topk"]
    assert topk["same_rows"] == 1.0
    assert len(topk["host_ms"]) == len(topk["backend_ms"]) == len(topk["widths"]) == 3


def test_every_arm_answers_every_question(results: dict[str, Any]) -> None:
    rows = results["parts"]["arms tiny"]["rows"]
    names = (*gpu.ARMS, *SERVERS)
    assert {row["arm"] for row in rows} == set(names)
    assert len(rows) == 6 * len(names)


@posix
def test_a_peer_that_fails_takes_no_other_arm_with_it(results: dict[str, Any]) -> None:
    assert "no such type" in results["parts"]["arms tiny"]["failed_peers"]["ngram-mod"]


def row(arm: str, seconds: float, *, n_steps: int = 10, category: str = "a") -> dict[str, Any]:
    zeros = ("n_plain_steps", "n_drafted", "n_redone", "lanes_s", "sample_s", "recycle_s")
    counts: dict[str, Any] = {"n_steps": n_steps, "draft_s": 0.01, "topk_s": 0.0, "decode_s": 0.0}
    counts |= {"steps_s": seconds, "first_difference": None} | dict.fromkeys(zeros, 0)
    return {"arm": arm, "category": category, "n_tokens": 20, "seconds": seconds} | counts


def test_speedups_are_over_the_faster_plain_arm() -> None:
    arms = summarise([row("bare", 4.0), row("plain", 5.0), row("auto", 2.0)])["arms"]
    assert arms["auto"]["speedup"] == pytest.approx(2.0)


RECORDING = Recording(
    "two accepted tokens at every position",
    (RecordedRun(7, ((1, 2),) * 30, np.tile(np.minimum(np.arange(8.0), 2.0), (30, 1))),),
)


def table(step_ms: float, one_row_ms: float) -> dict[str, Any]:
    return {"widths": [1, 8], "step_ms": [1.0, step_ms], "one_row_ms": [1.0, one_row_ms]}


def test_the_bound_leaves_out_the_host() -> None:
    bound = expectation(RECORDING, "x", table(2.0, 1.0), None)
    assert bound["best_fixed_speedup"] == pytest.approx(3.0)


def test_what_is_expected_pays_for_the_host() -> None:
    rows = [row("plain", 1.0), row("recycler7", 1.0, n_steps=10)]
    expected = expectation(RECORDING, "x", table(2.0, 1.0), rows)
    assert expected["speedup_by_nodes"][7] == pytest.approx(3 / (2.0 + 1.0))


def test_nothing_is_concluded_from_nothing() -> None:
    assert conclude({})["efficiency"] is None


def fail(report: Callable[[str, Any], None], stop: float) -> None:
    report("first", 1)
    raise RuntimeError("out of luck")


def die(report: Callable[[str, Any], None], stop: float) -> None:
    report("first", 1)
    os._exit(3)


def leave_a_program(report: Callable[[str, Any], None], stop: float) -> None:
    report("pid", subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE).pid)
    time.sleep(60)


@pytest.mark.skipif(not IS_POSIX, reason="there are no groups of processes")
def test_a_part_that_hangs_is_ended_with_its_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_runner, "_GRACE_S", 0.5)
    bench = Bench(tmp_path, tmp_path, 60.0, "x")
    bench.run(Part("hangs", leave_a_program, 1, 1))
    part = bench.parts["hangs"]
    assert "ended after" in part["error"]
    until = time.monotonic() + 10
    while _runs(part["pid"]) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _runs(part["pid"])


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("run", "error"), [(fail, "out of luck"), (die, "ended with 3")])
def test_a_part_that_fails_keeps_what_it_found(
    tmp_path: Path, run: Callable[..., None], error: str
) -> None:
    bench = Bench(tmp_path, tmp_path, 60.0, "x")
    bench.run(Part("bad", run, 1, 30))
    bench.finish()
    saved = json.loads((tmp_path / "x.json").read_text())
    assert saved["parts"]["bad"]["first"] == 1
    assert error in saved["parts"]["bad"]["error"]
    assert saved["summary"]["failed"] == ["bad"]


def test_a_part_that_does_not_fit_is_skipped(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tmp_path, 10.0, "x")
    bench.run(Part("long", fail, 60, 60))
    assert list(json.loads((tmp_path / "x.json").read_text())["skipped"]) == ["long"]


def test_prompt_lookup_copies_what_followed_the_same_words() -> None:
    drafter = PromptLookup(100)
    drafter.begin(np.array([5, 1, 2, 3, 7, 8, 9, 1, 2, 3], dtype=np.int32))
    draft = Draft(10)
    draft.reset(3, n_past=9)
    drafter.propose(draft, max_nodes=10, max_depth=3)
    assert draft.token[: draft.n].tolist() == [3, 7, 8, 9]
    assert draft.parent[: draft.n].tolist() == [-1, 0, 1, 2]
