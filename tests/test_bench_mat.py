"""Mean accepted tokens at equal budgets, prompt lookup, and recorded acceptance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_target import FakeTarget, HashModel

from bench import mat, record
from edge_tr.bench.prompt_lookup import PromptLookup
from edge_tr.costs.expected import RelativeCosts, expect, read_recording
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.draft import Draft
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.target import Int32

Bench = Callable[..., dict[str, Any]]
SIZES = ["--budgets", "3", "15", "--source-budgets", "3"]


@pytest.fixture
def bench(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Bench:
    """``bench(*arguments)``: the JSON of a short run on a tiny model and two categories."""
    monkeypatch.setattr("edge_tr.models.path", lambda name: tiny_model("llama"))
    monkeypatch.setattr(mat, "N_CTX", 512)
    lines = [
        json.dumps({"question_id": n, "category": category, "turns": [f"{n} {category}?"]})
        for n, category in enumerate(["qa", "qa", "rag", "rag"])
    ]
    (tmp_path / "spec_bench.jsonl").write_text("\n".join(lines))

    def call(*arguments: str) -> dict[str, Any]:
        fixed = ["--questions", str(tmp_path), "--threads", "1", "--tokens", "24", "--json"]
        assert mat.main([*fixed, *arguments]) == 0
        result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return result

    return call


def test_every_method_is_measured_at_its_budgets(bench: Bench) -> None:
    result = bench(*SIZES)
    for name in ("ours", "baseline", "pld", "ours warm", "baseline warm"):
        assert set(result["mat"][name]) == {"3", "15"}
    assert set(result["mat"]["paper"]) == {"80"}
    assert sum(name.startswith(("only", "all", "one-token")) for name in result["mat"]) == 9
    assert set(result["by_category"]["ours"]["3"]) == {"qa", "rag"}


def test_texts_are_those_of_plain_decoding(bench: Bench) -> None:
    for by_budget in bench(*SIZES)["equal_texts"].values():
        assert set(by_budget.values()) == {"2/2"}


def test_gains_are_those_over_one_token_a_step(bench: Bench) -> None:
    result = bench(*SIZES)
    for budget, gain in result["gain_by_budget"].items():
        ours, baseline = (result["mat"][name][budget] for name in ("ours", "baseline"))
        assert gain == pytest.approx((ours - 1) / (baseline - 1), abs=0.02)
        assert result["lowest_category_gain"][budget] <= gain + 0.02
    over_paper = result["mat"]["ours"]["15"] / result["mat"]["paper"]["80"]
    assert result["ours_15_over_paper_80"] == pytest.approx(over_paper, abs=0.002)


def test_a_stopped_run_goes_on(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    first = bench("--budgets", "3", "--source-budgets", "--out", str(out))
    monkeypatch.setattr(mat.Bench, "answer", None)
    assert bench("--budgets", "3", "--source-budgets", "--out", str(out)) == first


def test_other_settings_are_measured_anew(bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "out"
    few = ["--budgets", "3", "--source-budgets", "--out", str(out)]
    first = bench(*few)
    second = bench(*few, "--tokens", "16")
    assert first["settings"]["n_tokens"] != second["settings"]["n_tokens"]
    assert bench(*few) == first


def look_up(text: list[int], n_nodes: int = 5, max_depth: int = 9) -> list[int]:
    """What prompt lookup drafts after a text."""
    drafter = PromptLookup(50, max_nodes=n_nodes)
    drafter.begin(np.array(text[:1], dtype=np.int32))
    nothing = np.zeros((1, 1), dtype=np.int32)
    draft = Draft(n_nodes)
    drafter.learn(draft, nothing, nothing.astype(np.float32), nothing[0, :0], text[1:])
    draft.reset(text[-1], n_past=len(text) - 1)
    drafter.propose(draft, max_nodes=n_nodes, max_depth=max_depth)
    assert draft.parent[: draft.n].tolist() == list(range(-1, draft.n - 1))
    drafted: list[int] = draft.token[1 : draft.n].tolist()
    return drafted


@pytest.mark.parametrize(
    ("text", "drafted"),
    [
        ([1, 2, 3, 4], []),
        ([7], []),
        ([1, 2, 3, 9, 2, 3], [9, 2, 3]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], [4, 5, 6, 7, 8]),
        ([5, 3, 1, 9, 9, 2, 3, 1, 8, 8, 2, 3, 1], [8, 8, 2, 3, 1]),  # three tokens before two
        ([2, 3, 7, 9, 2, 3, 8, 9, 2, 3], [8, 9, 2, 3]),  # "9 2 3" stood once before
        ([3, 7, 5, 3, 8, 6, 3], [7, 5, 3, 8, 6]),  # of equal matches the first
        ([4, 4], [4]),
    ],
)
def test_prompt_lookup(text: list[int], drafted: list[int]) -> None:
    assert look_up(text) == drafted


def test_prompt_lookup_keeps_to_the_depth() -> None:
    assert look_up([1, 2, 3, 4, 5, 6, 1, 2], max_depth=2) == [3, 4]


def test_prompt_lookup_changes_no_text() -> None:
    target = FakeTarget(HashModel(12, memory=1), n_ctx=100)
    steps = Decoder(target, PromptLookup(12, max_nodes=4)).generate([1, 2, 1], max_tokens=60)
    assert [t for step in steps for t in step] == target.model.generate(
        [1, 2, 1], 100, max_tokens=60
    )


def record_fake(max_nodes: int, **options: Any) -> Any:
    target = FakeTarget(HashModel(40, memory=3), n_ctx=256, n_batch=64, n_lanes=32)
    prompts = [np.array([n, n + 1, n + 2], dtype=np.int32) for n in range(3)]
    given: dict[str, Any] = {"n_tokens": 100, "n_skipped": 0, "stop_tokens": frozenset()}
    return record.record(target, prompts, max_nodes=max_nodes, **given | options)


def test_recorded_acceptance_is_that_of_real_drafting() -> None:
    run = record_fake(8)
    assert run.mat > 1.05
    assert all(list(places) == sorted(set(places)) for places in run.hits)
    assert all(0 < place <= 8 for places in run.hits for place in places)
    assert (np.diff(run.expected) >= 0).all()
    assert (np.diff(run.expected, n=2) <= 1e-6).all()  # most probable first
    target = FakeTarget(HashModel(40, memory=3), n_ctx=256, n_batch=64, n_lanes=32)
    drafter = GrownTreeDrafter(
        Candidates(AdjacencyMatrix(40)), n_ctx=256, max_nodes=8, max_lanes=32
    )
    decoder = Decoder(target, drafter)
    made = 0
    for emitted in decoder.generate([0, 1, 2]):
        made += len(emitted)
        if made >= 100:
            break
    n_steps = decoder.stats.n_steps
    assert sum(map(len, run.hits[:n_steps])) == decoder.stats.n_accepted


def test_the_first_tokens_can_be_left_out() -> None:
    assert 0 < len(record_fake(4, n_skipped=50).hits) < len(record_fake(4).hits)


def test_an_answer_that_ends_early_is_recorded_to_its_end() -> None:
    stops = frozenset(range(0, 40, 7))
    assert len(record_fake(4, stop_tokens=stops).hits) < len(record_fake(4).hits)


@pytest.mark.parametrize(
    ("answer", "circles"),
    [
        (np.arange(60), False),
        (np.tile(np.arange(10), 6), True),
        (np.concatenate((np.arange(60), np.arange(12))), False),
        (np.arange(5), False),
    ],
)
def test_answers_that_run_in_circles(answer: Int32, circles: bool) -> None:
    assert record.runs_in_circles(answer) == circles


def test_a_recording_can_be_expected_from(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "SIZES", (1, 5))
    monkeypatch.setattr(record, "runs_in_circles", lambda answer: False)
    file = tmp_path / "acceptance.json"
    with pytest.raises(IndexError):  # nothing is printed
        bench("--record", str(file))
    recording = read_recording(file)
    assert recording.about.startswith("llama on 2 questions")
    assert [run.max_nodes for run in recording.runs] == [1, 5]
    assert expect(recording, RelativeCosts("free", (1, 6), (1.0, 1.0))).mat >= 1
