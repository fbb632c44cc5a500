"""The demo: what it measures and what it says about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_tr.cli import main
from edge_tr.cli.comparison import Comparison, Run, sentences, table
from edge_tr.stats import Stats

Demo = Callable[..., str]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def demo(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Demo:
    """``demo(*arguments)``: stdout of a short demo on a tiny model."""
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(cache))

    def call(*arguments: str, arch: str = "llama") -> str:
        fixed = ["-m", str(tiny_model(arch)), "--threads", "1", "--max-tokens", "40"]
        assert main(["demo", *fixed, *arguments]) == 0
        return capsys.readouterr().out

    return call


def make_run(name: str, seconds: float, tokens: list[int], n_steps: int, n_drafted: int = 0) -> Run:
    """An answer that took so long for its tokens after the first."""
    stats = Stats(
        n_tokens=len(tokens), n_steps=n_steps, n_drafted=n_drafted, total_s=1 + seconds, prefill_s=1
    )
    pieces = [chr(token) for token in tokens]
    return Run(name, tokens, pieces, "".join(pieces), stats, [])


TEXT = [ord(letter) for letter in "abcdefghijk"]
PLAIN = make_run("plain decoding", 10.0, TEXT, 10)


def test_demo_shows_question_answer_table_and_outcome(demo: Demo) -> None:
    out = demo("--prompt", "Say something.")
    for words in (
        "Say something.",
        "paper's tree, 80 nodes",
        "small tree, 3 nodes",
        "automatic choice",
        "The text is the same each time",
        "paper's tree, 80 nodes: a step yields",
    ):
        assert words in out


def test_demo_as_json(demo: Demo) -> None:
    told = json.loads(demo("--json"))
    assert [run["same_text"] for run in told["drafted"]] == [True, True, True]
    assert told["plain"]["mat"] == 1
    assert told["drafted"][0]["stats"]["n_drafted"] > 0
    assert told["text"]


def test_demo_of_a_model_that_cannot_draft(demo: Demo) -> None:
    assert "drafting is off: mamba is recurrent" in demo(arch="mamba")


def test_a_tree_that_pays() -> None:
    fast = make_run("small tree", 5.0, TEXT, 4, n_drafted=12)
    comparison = Comparison(fast, PLAIN, PLAIN)
    assert comparison.speedup == pytest.approx(2.0)
    assert comparison.step_cost == pytest.approx(1.25)
    lines = sentences([comparison])
    assert "small tree: a step yields 2.50 tokens and costs 1.25 plain steps: faster." in lines
    assert "Drafting paid on this machine: small tree, 2.00 times as fast." in lines


def test_a_tree_that_does_not_pay() -> None:
    slow = make_run("paper's tree", 40.0, TEXT, 4, n_drafted=320)
    lines = sentences([Comparison(slow, PLAIN, PLAIN)])
    assert lines[2].endswith("costs 10.00 plain steps: slower.")
    assert "Drafting did not pay on this machine, with this model and prompt." in lines


def test_a_difference_within_the_noise_means_nothing() -> None:
    fast = make_run("small tree", 9.0, TEXT, 4, n_drafted=12)
    busy = make_run("plain decoding", 8.0, TEXT, 10)
    lines = sentences([Comparison(fast, busy, PLAIN)])
    assert lines[2].endswith("no clear difference, since plain runs differ by 25%.")
    assert lines[-1].startswith("Whether drafting pays here cannot be told now")


@pytest.mark.parametrize(
    ("others", "told"),
    [(None, "or it is busy"), (0.1, "own speed changes by 25%"), (0.9, "use 0.9 of its cores")],
)
def test_a_machine_is_called_busy_only_where_others_ran(others: float | None, told: str) -> None:
    fast = make_run("small tree", 9.0, TEXT, 4, n_drafted=12)
    before = make_run("plain decoding", 8.0, TEXT, 10)
    line = sentences([Comparison(fast, before, PLAIN)], others)[-1]
    assert told in line
    assert ("other programs" in line) is (others == 0.9)


def test_an_idle_machine_shows_that_nothing_was_won() -> None:
    even = make_run("small tree", 10.1, TEXT, 4, n_drafted=12)
    lines = sentences([Comparison(even, PLAIN, PLAIN)])
    assert lines[2].endswith("no clear difference, since plain runs differ by 3%.")
    assert lines[-1] == "Drafting did not pay on this machine, with this model and prompt."


@pytest.mark.parametrize(
    ("text", "index", "told"),
    [
        ("abcXefghijk", 3, "'X' where plain decoding has 'd'"),
        ("abcd", 4, "'' where plain decoding has 'e'"),
    ],
)
def test_a_different_text_is_shown_with_its_first_difference(
    text: str, index: int, told: str
) -> None:
    other = make_run("small tree", 5.0, [ord(letter) for letter in text], 4, n_drafted=12)
    comparison = Comparison(other, PLAIN, PLAIN)
    assert comparison.first_difference == index
    lines = sentences([comparison])
    assert lines[0] == f"small tree: another text from token {index} on, {told}:"
    assert lines[1] == text


def test_the_table_has_a_line_for_each_run() -> None:
    fast = make_run("small tree", 5.0, TEXT, 4, n_drafted=12)
    rows = [line.split() for line in table(PLAIN, [Comparison(fast, PLAIN, PLAIN)])]
    assert rows[2:] == [
        ["plain", "decoding", "1.0", "1.00", "1.00", "1.00"],
        ["small", "tree", "2.0", "2.00", "2.50", "1.25"],
    ]


def test_runs_without_a_step_compare(demo: Demo) -> None:
    assert "nothing was drafted" in demo("--max-tokens", "1")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("--max-tokens", "0"), "--max-tokens 0"), (("--prompt", " "), "the prompt is empty")],
)
def test_what_cannot_be_compared_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, str], told: str
) -> None:
    assert main(["demo", *arguments]) == 2
    assert told in capsys.readouterr().err
