"""Tables from records, what changed between two of them, and the page that shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_target import FakeTarget, HashModel

from edge_tr.bench import report, summary
from edge_tr.bench.compare import compare, read_result, text
from edge_tr.bench.outcome import Outcome
from edge_tr.bench.pictures import draw
from edge_tr.errors import ConfigError

PNG = b"\x89PNG"


def outcome(n_tokens: int, n_steps: int, decode_s: float, **more: Any) -> dict[str, Any]:
    return Outcome(n_tokens, n_steps, 0.5, decode_s, **more).to_dict()


def record(id: str, category: str, **outcomes: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": id,
        "category": category,
        "n_prompt": 3,
        "prompt": [1, 2, 3],
        "outcomes": {key.replace("__", "/"): value for key, value in outcomes.items()},
    }


def result(records: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    kept = ("n_tokens", "n_steps", "prefill_s", "decode_s")
    answers = [
        r | {"outcomes": {k: {n: o[n] for n in kept} for k, o in r["outcomes"].items()}}
        for r in records
    ]
    return {
        "experiment": "main",
        "title": "Every method",
        "about": "about",
        "model": {"name": "m.gguf"},
        "machine": {"cores": 2},
        "build": {},
        "settings": {},
        "rows": summary.rows(records),
        "unavailable": {},
        "violations": 0,
        "equality": {},
        "equal_texts_of_peers": {},
        "answers": answers,
    } | more


RECORDS = [
    record("a/1", "a", plain=outcome(11, 10, 1.0), auto=outcome(11, 5, 0.5)),
    record("a/2", "a", plain=outcome(31, 30, 3.0), auto=outcome(31, 20, 2.5)),
    record("b/1", "b", plain=outcome(11, 10, 1.0), auto=outcome(11, 10, 1.25)),
]


def row(method: str, records: list[dict[str, Any]] = RECORDS) -> dict[str, Any]:
    return next(r for r in summary.rows(records) if r["method"] == method)


def test_speed_is_tokens_behind_the_first_over_their_seconds() -> None:
    assert row("auto")["all"]["tps"] == pytest.approx(50 / 4.25, abs=1e-3)


def test_mat_is_tokens_behind_the_first_over_steps() -> None:
    assert row("auto")["all"]["mat"] == pytest.approx(50 / 35, abs=1e-3)


def test_ratio_compares_totals_and_ratio_mean_each_answer() -> None:
    whole = row("auto")["all"]
    assert whole["ratio"] == pytest.approx((50 / 4.25) / 10, abs=1e-4)
    assert whole["ratio_mean"] == pytest.approx((2 + 1.2 + 0.8) / 3, abs=1e-4)


def test_each_category_has_a_cell_of_its_own() -> None:
    assert row("auto")["by_category"]["b"]["ratio"] == pytest.approx(0.8)


def test_a_setting_is_compared_with_its_own_plain_decoding() -> None:
    records = [
        record(
            "a",
            "a",
            hot__plain=outcome(11, 10, 2.0),
            hot__auto=outcome(11, 5, 1.0),
            cold__auto=outcome(11, 5, 1.0),
            plain=outcome(11, 10, 1.0),
        )
    ]
    ratios = {
        r["setting"]: r["all"]["ratio"] for r in summary.rows(records) if "auto" in r["method"]
    }
    assert ratios == {"hot": 2.0, "cold": 1.0}


def test_an_answer_of_one_token_is_left_out() -> None:
    records = [*RECORDS, record("b/2", "b", plain=outcome(1, 0, 0.0), auto=outcome(1, 0, 0.0))]
    assert row("auto", records)["all"]["n"] == 3


def test_what_failed_is_counted_apart() -> None:
    records = [record("a/1", "a", plain=outcome(3, 2, 1.0), stock={"error": "ValueError"})]
    assert row("stock", records)["errors"] == {"n": 1, "first": "ValueError"}


def test_methods_hold_speed_mat_and_ratio_by_category() -> None:
    methods = summary.by_method(summary.rows(RECORDS))
    assert set(methods["auto"]) == {"tps", "mat", "ratio", "all"}
    assert set(methods["auto"]["ratio"]) == {"a", "b"}


def test_automatic_mode_is_compared_with_the_best_peer_in_each_category() -> None:
    records = [
        record("a", "a", auto=outcome(11, 5, 0.5), x=outcome(11, 5, 0.4), y=outcome(11, 5, 1.0)),
        record("b", "b", auto=outcome(11, 5, 0.5), x=outcome(11, 5, 2.0), y=outcome(11, 5, 1.0)),
    ]
    methods = summary.by_method(summary.rows(records))
    assert summary.over_best(methods, "auto", ["x", "y", "absent"]) == {
        "all": 2.0,  # y is the best over all
        "lowest": 0.8,
        "by_category": {"a": 0.8, "b": 2.0},
    }
    assert summary.over_best(methods, "auto", ["absent"]) is None


def test_a_text_of_a_program_may_stop_some_tokens_later() -> None:
    records = [
        record(
            "a",
            "a",
            plain=outcome(3, 2, 1.0, tokens=[7, 8, 9]),
            lookup=outcome(4, 3, 1.0, text=" 7 8 9 4"),
            other=outcome(3, 2, 1.0, tokens=[7, 9, 9]),
        )
    ]
    shares = summary.equal_shares(
        records, ["lookup", "other"], lambda tokens: " ".join(map(str, tokens))
    )
    assert shares == {"lookup": "1/1", "other": "0/1"}


def test_an_exact_target_has_no_violation() -> None:
    model = HashModel(seed=1)
    plain = model.generate([1, 2, 3], 256, max_tokens=12)
    drafted = outcome(10, 4, 1.0, tokens=plain[:10], n_drafted=12)
    records = [record("a", "a", plain=outcome(12, 11, 1.0, tokens=plain), auto=drafted)]
    found = summary.equality(FakeTarget(model, n_ctx=256), records, "auto", n_positions=8)
    assert found is not None
    assert (found.n_identical, len(found.violations)) == (1, 0)
    assert found.control_widths == (2, 3, 4)


def changed(factor: float, n: int = 12) -> dict[str, Any]:
    """A result of n prompts with automatic mode ``factor`` times as fast as plain."""
    rng = np.random.default_rng(0)
    records = []
    for i in range(n):
        seconds = float(rng.uniform(0.9, 1.1))
        records.append(
            record(
                f"a/{i}",
                "a",
                plain=outcome(11, 10, seconds),
                auto=outcome(11, 5, seconds / factor * float(rng.uniform(0.98, 1.02))),
            )
        )
    return result(records, noise={"median": 1.01})


def test_a_faster_method_is_called_faster() -> None:
    found = compare(changed(1.2), changed(1.5))
    assert found["changes"]["auto"]["verdict"] == "faster"


def test_two_equal_results_have_no_change() -> None:
    verdicts = {c["verdict"] for c in compare(changed(1.2), changed(1.2))["changes"].values()}
    assert verdicts == {"no change beyond the noise"}


def test_a_change_within_what_two_plain_answers_differ_by_is_none() -> None:
    a, b = changed(1.2), changed(1.3)
    b["noise"] = {"median": 1.2}
    assert compare(a, b)["changes"]["auto"]["verdict"] == "no change beyond the noise"


def test_other_conditions_are_told() -> None:
    b = changed(1.2) | {"machine": {"cores": 4}}
    assert "different: machine cores: 2 and 4" in text(compare(changed(1.2), b))


def test_results_of_different_experiments_do_not_compare() -> None:
    with pytest.raises(ConfigError, match="main and one of tree"):
        compare(changed(1.2), changed(1.2) | {"experiment": "tree"})


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("[1]")
    with pytest.raises(ConfigError, match="not a result"):
        read_result(file)


def test_the_verdict_names_winners_and_losses_of_ours() -> None:
    records = [
        record(
            "a", "a", plain=outcome(11, 10, 1.0), auto=outcome(11, 9, 1.1), pld=outcome(11, 5, 0.5)
        )
    ]
    assert report.verdict(result(records)) == ["a: pld (2.00 times plain); automatic mode 0.91"]


def test_what_is_faster_within_the_noise_only_does_not_win() -> None:
    records = [record("a", "a", plain=outcome(11, 10, 1.0), auto=outcome(11, 9, 0.98))]
    lines = report.verdict(result(records, noise={"typical": 0.05}))
    assert lines == ["a: nothing is faster than plain decoding beyond the noise"]


def test_a_result_is_drawn_as_png() -> None:
    image = draw(result(RECORDS))
    assert image is not None
    assert image.startswith(PNG)


def test_the_page_needs_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "main.json").write_text(json.dumps(result(RECORDS)))
    page = report.write_report(tmp_path).read_text()
    assert "src='data:image/png;base64," in page
    assert "http-equiv" not in page
    assert "<script" not in page
    assert (tmp_path / "main.png").read_bytes().startswith(PNG)


def test_quoted_figures_are_marked_and_sourced(tmp_path: Path) -> None:
    (tmp_path / "main.json").write_text(json.dumps(result(RECORDS)))
    page = report.write_report(tmp_path).read_text()
    assert "Quoted, not measured here" in page
    assert all(figure["source"] for figure in report.quoted()["figures"])


def test_names_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "main.json").write_text(json.dumps(result(RECORDS, title="<b>bold</b>")))
    assert "<b>bold</b>" not in report.write_report(tmp_path).read_text()
