"""bench.never_slower: its dry run, and the verdict from made-up answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import never_slower
from bench.cells import ratios, summary, table
from edge_tr.bench.loops import BareLoop, DecoderLoop, Loop, StockLoop, timed
from edge_tr.bench.outcome import Outcome
from edge_tr.bench.pairs import Records
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.session import Session
from edge_tr.target import Int32

STATS = {"n_steps": 10, "n_plain_steps": 5, "n_drafted": 20}
FIXED = {"best": {"static": {"name": "off"}}}


def answer(tps: float) -> dict[str, Any]:
    """An answer of 101 tokens, each as long as the others."""
    outcome = Outcome(101, 100, 1 / tps, 100 / tps, tokens=[1] * 101, stats=STATS)
    outcome.n_to_end, outcome.to_end_s = 101, 101 / tps
    return outcome.to_dict()


def record(
    model: str = "smollm2-q4_0",
    *,
    auto: Sequence[float] = (180.0,) * 10,
    plain2: float = 100.0,
    static: float = 180.0,
    own: float = 90.0,
    copy: float = 300.0,
    n_copies: int = 10,
    violations: int = 0,
    identical_share: float = 1.0,
) -> Records:
    """Ten questions and some copies on one model; stock's plain decoding runs at 100 tokens/s."""
    records = Records(None, {})
    speeds = {"plain": 100.0, "plain2": plain2, "own": own, "static": static}
    for i, tps in enumerate(auto):
        answers = {name: answer(speed) for name, speed in (speeds | {"auto": tps}).items()}
        records.append(model, "measured", str(i), category="rag", answers=answers)
    for i in range(n_copies):
        answers = {"plain": answer(100.0), "own": answer(own), "auto": answer(copy)}
        values = {"category": "copy_edit", "copied_share": 0.9, "answers": answers}
        records.append(model, "copy_edit", str(i), **values)
    records.append(model, "plain", "", result={"fastest": "bare"})
    records.append(model, "fixed", "", result=FIXED)
    equality = {"violations": violations, "identical_share": identical_share}
    records.append(model, "equality", "", result=equality)
    return records


def verdict(records: Records) -> dict[str, Any]:
    return summary(records, ["smollm2-q4_0"])


def test_a_run_that_meets_everything_passes() -> None:
    result = verdict(record())
    assert result["passed"]
    assert result["copy_edit_ratio"] == 3.0
    assert result["oracle_share"] == 1.0
    assert result["texts_equal"] == 1.0


def test_the_lowest_category_and_the_median_of_all_texts_are_told_apart() -> None:
    result = verdict(record(auto=[110.0] * 10, n_copies=11))
    assert (result["lowest_median"], result["failed_cells"], result["passed"]) == (1.1, 0, False)
    assert result["median_all"] == {"smollm2-q4_0": 3.0}


def test_kernels_and_drafting_are_told_apart() -> None:
    found = verdict(record(own=120.0, n_copies=0))["models"]["smollm2-q4_0"]
    assert (found["from_kernels"], found["from_drafting"]) == (1.2, 1.5)
    assert found["cells"]["rag"]["from_kernels"] == 1.2


def test_a_text_that_differs_from_plain_decoding_of_its_build_fails_the_run() -> None:
    result = verdict(record(identical_share=0.9))
    assert (result["texts_equal"], result["passed"]) == (0.9, False)


def test_a_cell_that_is_slower_for_sure_fails() -> None:
    result = verdict(record(auto=[97.0] * 9 + [150.0]))
    assert (result["failed_cells"], result["passed"]) == (1, False)


def test_a_cell_that_may_be_noise_does_not_fail() -> None:
    assert verdict(record(auto=[97.0] * 8 + [99.0, 99.0]))["failed_cells"] == 0


def test_noise_between_plain_arms_fails_the_run() -> None:
    result = verdict(record(plain2=90.0))
    assert (result["plain_failed_cells"], result["passed"]) == (2, False)


def test_too_few_copies_give_no_ratio() -> None:
    assert verdict(record(n_copies=9))["copy_edit_ratio"] is None


def test_an_oracle_that_is_faster_lowers_the_share() -> None:
    result = verdict(record(static=225.0))
    assert (result["oracle_share"], result["passed"]) == (0.8, False)


def test_a_violation_fails_the_run() -> None:
    assert not verdict(record(violations=1))["passed"]


def test_the_table_names_a_cell_that_fails() -> None:
    lines = table(verdict(record(auto=[50.0] * 10)))
    assert any("rag" in line and "FAILS" in line for line in lines)


def test_ratios_need_both_arms() -> None:
    assert ratios(record(n_copies=2).of("smollm2-q4_0", "copy_edit"), "plain2", "plain") == []


class Script:
    """An arm with a known text."""

    def __init__(self, *steps: list[int]) -> None:
        self.steps = steps

    def stream(self, prompt: Int32, n_tokens: int) -> Iterator[list[int]]:
        return iter(self.steps)

    def close(self) -> None:
        """Nothing."""


def test_the_clock_notes_when_the_text_ended() -> None:
    found = timed(Script([5], [6, 0, 7], [8]), np.zeros(1, dtype=np.int32), 5, {0})
    assert (found.tokens, found.n_to_end) == ([5, 6, 0, 7, 8], 3)
    assert found.prefill_s <= found.to_end_s <= found.total_s


def test_every_arm_gives_the_same_text(tiny_model: Callable[[str], Path]) -> None:
    context = ContextConfig(n_ctx=512, n_batch=16, n_threads=1, n_threads_batch=1)
    draft = DraftConfig(speculative="off")
    with Session(tiny_model("llama"), context=context, draft=draft) as session:
        arms: list[Loop] = [
            BareLoop(session.model, context),
            StockLoop(session.model, context),
            DecoderLoop(session.decoder),
        ]
        for text in ("one two three four five six seven", "one two three again"):
            prompt = session.prompt_tokens(text)
            bare, stock, ours = (timed(arm, prompt, 20).tokens for arm in arms)
            assert bare == stock == ours
        for arm in arms:
            arm.close()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("never_slower")


@pytest.fixture
def smoke(
    out: Path, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """Runs the dry run in one directory."""
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(out / "cache"))
    monkeypatch.setattr("edge_tr.models.path", lambda *_: tiny_model("llama"))
    monkeypatch.setattr("bench.builds.stock", lambda: None)

    def run(*more: str) -> int:
        options = ["--smoke", "--threads", "1", "--json", "--out", str(out / "run"), *more]
        return never_slower.main(options)

    return run


def test_the_dry_run_goes_through_and_a_second_one_has_nothing_to_do(
    smoke: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for _ in range(2):
        assert smoke() == 0
        captured = capsys.readouterr()
        results.append(json.loads(captured.out.splitlines()[-1]))
    first, second = results
    assert {"adversarial", "copy_edit"} < set(first["models"]["tiny-llama"]["cells"])
    assert first["models"] == second["models"]
    assert "question" not in captured.err


def test_another_number_of_tokens_is_refused(
    smoke: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    smoke()
    assert smoke("--tokens", "13") == 1
    assert "other settings (plan)" in capsys.readouterr().err


def test_a_stopped_run_says_how_to_go_on(
    smoke: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(never_slower, "run", stop)
    assert smoke() == 130
    assert "same --out to go on" in capsys.readouterr().err
