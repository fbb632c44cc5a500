"""``edge-tr bench`` on a tiny model, from the options to the files it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_tr import models
from edge_tr.bench.experiments import EXPERIMENTS, trees
from edge_tr.bench.job import TITLES
from edge_tr.cli import bench, main
from edge_tr.costs.table import CostTable
from edge_tr.measuring import kept_costs

TABLE = CostTable((1, 2, 4, 8, 16), (64, 256), ((0.01, 0.011, 0.012, 0.014, 0.02),) * 2)
QUESTIONS = [
    {"question_id": 1, "category": "code", "turns": ["Write a loop.", "Shorter."]},
    {"question_id": 2, "category": "code", "turns": ["Write a class.", "Longer."]},
    {"question_id": 3, "category": "qa", "turns": ["Why?"]},
    {"question_id": 4, "category": "qa", "turns": ["How?"]},
]
Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    tmp_path: Path,
    tiny_model: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Bench:
    """``run(*arguments)``: exit code, stdout and stderr of a run of few tokens on one thread."""
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(kept_costs, "measure_costs", lambda *_, **__: TABLE)
    monkeypatch.setattr("edge_tr.bench.rest.DEFAULT_BYTES", 20_000)
    questions = tmp_path / "questions.jsonl"
    questions.write_text("\n".join(map(json.dumps, QUESTIONS)))
    fixed = ["-m", str(tiny_model("llama")), "--questions", str(questions), "--threads", "1"]
    fixed += ["--ctx", "512", "--tokens", "4", "--per-category", "1"]

    def call(*arguments: str, measure: bool = True) -> tuple[int, str, str]:
        code = main(["bench", *arguments, *(fixed if measure else [])])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def last_json(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def test_every_experiment_has_a_line_of_help_and_a_title() -> None:
    assert list(bench._EXPERIMENTS) == list(TITLES)


def test_the_main_table_ends_with_one_json_object(run: Bench, tmp_path: Path) -> None:
    code, out, _ = run("--json", "--out", str(tmp_path / "out"))
    found = last_json(out)
    assert code == 0
    assert {"plain", "paper", "auto", "pld", "rest"} <= set(found["methods"])
    assert found["violations"] == 0
    assert set(found["methods"]["auto"]["ratio"]) == {"code", "qa"}


def test_programs_that_are_not_built_are_named(run: Bench) -> None:
    _, out, _ = run("--methods", "lookahead,ngram-mod", "--json")
    unavailable = last_json(out)["unavailable"]
    assert set(unavailable) == {"lookahead", "ngram-mod"}
    assert "make peers" in unavailable["lookahead"]


def test_a_folder_without_programs_is_refused_at_once(run: Bench, tmp_path: Path) -> None:
    code, out, err = run("--peers", str(tmp_path / "nowhere"))
    assert code == 2
    assert not out
    assert "nowhere holds no llama-server" in err


def test_a_run_leaves_result_page_and_picture(run: Bench, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("--methods", "auto", "--out", str(out))
    assert {"main.json", "main.png", "index.html"} <= {file.name for file in out.iterdir()}


def test_a_second_run_measures_nothing_again(run: Bench, tmp_path: Path) -> None:
    arguments = ("--methods", "auto", "--out", str(tmp_path / "out"))
    run(*arguments)
    records = (tmp_path / "out" / "records" / "main.jsonl").read_text()
    run(*arguments)
    assert (tmp_path / "out" / "records" / "main.jsonl").read_text() == records


def test_what_was_learned_goes_with_its_records(run: Bench, tmp_path: Path) -> None:
    arguments = ("--methods", "auto", "--out", str(tmp_path / "out"))
    run(*arguments)
    state = tmp_path / "out" / "state" / "main"
    assert (state / "auto.npz").exists()
    (tmp_path / "out" / "records" / "main.jsonl").unlink()
    (state / "old").touch()
    run(*arguments)
    assert not (state / "old").exists()


def test_other_settings_do_not_go_on_from_old_records(run: Bench, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "out"))
    run("--methods", "auto", *out)
    code, _, err = run("--methods", "pld", *out)
    assert code == 2
    assert "measured with other settings (methods)" in err


def test_every_turn_of_a_question_is_asked(run: Bench, tmp_path: Path) -> None:
    run("--methods", "auto", "--out", str(tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "main.json").read_text())
    turns = {answer["id"].partition("#")[2] for answer in found["answers"]}
    assert turns == {"1", "2"}


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_an_experiment_has_a_row_for_each_case(run: Bench, name: str) -> None:
    code, out, _ = run(name, "--json")
    found = last_json(out)
    assert code == 0
    methods = {row["method"] for row in found["rows"]}
    assert {"plain", "paper", "auto"} <= methods
    assert all("all" in row for row in found["rows"])


def test_the_time_of_a_step_is_split(run: Bench) -> None:
    _, out, _ = run("step", "--json")
    parts = last_json(out)["rows"][-1]["parts_ms"]
    assert set(parts) == {"decode", "topk", "draft", "recycle", "lanes", "sample", "step"}


def test_the_start_from_a_file_is_learned_from_other_questions(run: Bench, tmp_path: Path) -> None:
    run("start", "--out", str(tmp_path / "out"))
    assert (tmp_path / "out" / "state" / "start" / "learned-auto.npz").exists()


def test_context_lengths_are_measured_each_in_its_own_context(run: Bench) -> None:
    _, out, _ = run("context", "--values", "96,192", "--json")
    settings = {row["setting"] for row in last_json(out)["rows"]}
    assert settings == {"96 tokens", "192 tokens"}


def test_quantisations_are_compared_with_their_own_plain_decoding(
    run: Bench, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "path", lambda name, progress: tiny_model(name))
    _, out, _ = run("quant", "--values", "llama,qwen2", "--json")
    plain = [row for row in last_json(out)["rows"] if row["method"] == "plain"]
    assert [(row["setting"], row["all"]["ratio"]) for row in plain] == [("llama", 1), ("qwen2", 1)]


def test_shapes_are_expectations(
    run: Bench, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "path", lambda name, progress: tiny_model("llama"))
    _, out, _ = run("shapes", "--values", "0.5b", "--json")
    found = last_json(out)
    assert found["kind"] == "expectation"
    assert [row["method"] for row in found["rows"]] == ["plain", "15 nodes", "auto"]


def test_memory_is_counted(run: Bench) -> None:
    _, out, _ = run("memory", "--json")
    bytes_of = {row["method"]: row["own_bytes"] for row in last_json(out)["rows"]}
    assert bytes_of["plain"] == 0
    assert bytes_of["auto"] > bytes_of["paper"] > 0


def test_trees_vary_nodes_breadth_and_depth() -> None:
    found = dict(trees())
    assert found["nodes 80"].n_nodes == 80
    assert found["breadth 4"].n_leaves == 4
    assert found["depth 2"].max_depth == 2


def test_an_unknown_method_is_refused(run: Bench) -> None:
    code, _, err = run("--methods", "magic")
    assert code == 2
    assert "'magic' is not known" in err


def test_an_unknown_shape_is_refused_before_anything_is_made(run: Bench) -> None:
    code, _, err = run("shapes", "--values", "7b")
    assert code == 2
    assert "shape-7b-q4_0" in err


def test_two_results_are_compared(run: Bench, tmp_path: Path) -> None:
    run("--methods", "auto", "--out", str(tmp_path / "out"))
    file = str(tmp_path / "out" / "main.json")
    code, out, _ = run("compare", file, file, "--json", measure=False)
    assert code == 0
    assert last_json(out)["changes"]["auto"]["median"] == 1


def test_the_page_is_drawn_anew(run: Bench, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("--methods", "auto", "--out", str(out))
    (out / "index.html").unlink()
    assert run("report", "--out", str(out), measure=False)[0] == 0
    assert (out / "index.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "a.json"), "compare needs two results"),
        (("report",), "report needs --out DIR"),
        (("main", "a.json"), "only compare takes files"),
        (("tree", "--values", "3"), "--values does nothing in tree"),
        (("tree", "--methods", "auto"), "--methods does nothing in tree"),
        (("--tokens", "1"), "--tokens 1 is not allowed; it must be 2 or more"),
        (("--per-category", "0"), "--per-category 0 is not allowed; it must be 1 or more"),
        (("--datastore", "none.txt"), "--datastore none.txt does not exist"),
        (("--draft-model", "none.gguf"), "--draft-model none.gguf does not exist"),
        (("--out", __file__), "test_cli_bench.py cannot be made"),
        (("--questions", "none"), "none does not exist"),
    ],
)
def test_wrong_usage_is_told(run: Bench, arguments: tuple[str, ...], words: str) -> None:
    code, _, err = run(*arguments, measure=False)
    assert code == 2
    assert words in err
