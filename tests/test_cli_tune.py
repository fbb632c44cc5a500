"""``edge-tr tune``: what it measures, expects and recommends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from edge_tr import tuning
from edge_tr.cli import main, plot, tune
from edge_tr.config import ContextConfig
from edge_tr.costs.expected import RelativeCosts, expect, read_recording
from edge_tr.costs.table import CostTable
from edge_tr.errors import ModelLoadError
from edge_tr.measuring import kept_costs
from edge_tr.measuring.widths import WidthProbe
from edge_tr.session import Session

Cli = Callable[..., str]
PLAIN = CostTable((1, 2, 4), (64, 256), ((0.010, 0.020, 0.030), (0.020, 0.040, 0.060)))
PROBE = WidthProbe(16, 16, 4, (32,))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "cache"


@pytest.fixture
def cli(
    tiny_model: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """``cli(*arguments)``: stdout of a short measurement of a tiny model on one core."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)

    def call(*arguments: str, arch: str = "llama") -> str:
        fixed = ["-m", str(tiny_model(arch)), "--threads", "1", "--ctx", "512"]
        assert main(["tune", *fixed, "--seconds", "0.2", *arguments]) == 0
        return capsys.readouterr().out

    return call


def fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(["tune", *arguments]) == code
    return capsys.readouterr().err


def test_tune_shows_table_plot_choice_and_other_settings(cli: Cli) -> None:
    out = cli()
    for words in (
        "T(n)/T(1)",
        "behind 64 tokens",
        "o: tokens expected",
        "Speeds are expectations",
        "to the last bit",
        "flash attention on, q8_0 cache: ",
        "Nothing was changed",
    ):
        assert words in out


def test_tune_keeps_the_costs_that_a_session_then_uses(
    cli: Cli, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = json.loads(cli("--json", "--only-this"))["costs"]
    monkeypatch.setattr(kept_costs, "measure_costs", None)
    context = ContextConfig(n_ctx=512, n_threads=1, n_threads_batch=1)
    with Session(tiny_model("llama"), context=context, n_gpu_layers=-1) as session:
        table = session.decoder.costs.table
    assert table is not None
    assert json.loads(json.dumps(table.to_dict())) == costs


def test_other_settings_leave_the_kept_costs_alone(cli: Cli, cache: Path) -> None:
    told = json.loads(cli("--json"))
    assert len(told["others"]) >= 2
    (kept,) = (cache / "costs").glob("*.json")
    assert json.loads(kept.read_text())["costs"] == told["costs"]


def test_what_tune_tells_as_json_can_be_expected_from(
    cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "here.json"
    told = json.loads(cli("--json", "--only-this"))
    file.write_text(json.dumps(told))
    assert main(["tune", "--cost", str(file), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["tables"]
    contexts = told["costs"]["contexts"]
    assert [table["name"] for table in again] == [
        f"llama.gguf, {n_past} past tokens" for n_past in contexts
    ]
    assert again[0]["expected_speedup"] == told["expectations"][0]["expected_speedup"]


def test_a_model_that_cannot_draft_is_told_so(cli: Cli) -> None:
    assert cli(arch="mamba").startswith("drafting is off: mamba")
    assert "mamba" in json.loads(cli("--json", arch="mamba"))["plain_reason"]


def test_the_plot_is_written_as_svg(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "steps.svg"
    cli("--only-this", "--svg", str(file))
    image = ElementTree.parse(file).getroot()
    assert image.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(image.findall("{*}polyline")) >= 2


def test_public_tables_are_expected_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--cost", "public"]) == 0
    out = capsys.readouterr().out
    assert "https://arxiv.org/abs/2408.08696" in out
    assert "Speeds are expectations" in out


def test_a_table_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"name": "mine", "widths": [1, 9], "ratio": [1, 1]}')
    assert main(["tune", "--cost", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "expectation"
    assert told["tables"][0]["best_fixed_nodes"] == 8
    assert told["tables"][0]["expected_speedup"] > 1.3


def test_acceptance_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "acceptance.json"
    run = {"sizes": [1], "hits": [[1], [1]], "expected": [[100], [100]]}
    file.write_text(json.dumps({"format": 1, "about": "all right", "runs": [run]}))
    assert main(["tune", "--cost", "public", "--acceptance", str(file)]) == 0
    assert "Acceptance: all right." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--cost", "nowhere.json"], "nowhere.json cannot be read"),
        (["--cost", "public", "--ctx", "512"], "--ctx does nothing with --cost"),
        (["--cost", "public", "--flash-attn"], "--flash-attn does nothing with --cost"),
        (["--cost", "public", "--acceptance", "nowhere.json"], "nowhere.json cannot be read"),
        (["--seconds", "0"], "--seconds 0.0 is not allowed"),
        (["--no-flash-attn", "--cache-type-v", "q8_0"], "needs flash attention"),
        (["--batch", "0"], "--batch 0 is not allowed"),
    ],
)
def test_what_is_not_allowed(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert told in fails(capsys, 2, *arguments)


def test_a_batch_of_one_token_is_refused(
    tiny_model: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    told = fails(capsys, 2, "-m", str(tiny_model("llama")), "--batch", "1", "--threads", "1")
    assert "--batch must be 2 or more" in told


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, ["flash attention on", "flash attention on, q8_0 cache", "4 threads"]),
        (
            {"flash_attn": True, "n_threads": 4},
            ["flash attention off", "flash attention on, q8_0 cache", "8 threads"],
        ),
        (
            {"flash_attn": True, "type_k": "q8_0", "type_v": "q8_0", "n_threads": 3},
            ["flash attention off, f16 cache", "4 threads", "8 threads"],
        ),
    ],
)
def test_other_settings(
    config: dict[str, Any], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert [name for name, _ in tuning.other_configs(ContextConfig(**config))] == names


def setting(name: str, factor: float = 1.0) -> tuning.Setting:
    """A setting in which every step takes ``factor`` times as long."""
    seconds = tuple(tuple(s * factor for s in row) for row in PLAIN.seconds)
    return tuning.Setting(name, ContextConfig(), replace(PLAIN, seconds=seconds), PROBE)


def alternatives(
    monkeypatch: pytest.MonkeyPatch, factors: dict[str, float], again: float = 1.0
) -> list[str]:
    """What is said of other settings that are slower by these factors, 0 = refused."""

    def measure(model: Any, name: str, config: Any, **options: Any) -> tuning.Setting:
        if "again" in name:
            return setting(name, again)
        if not factors[name]:
            raise ModelLoadError("refused")
        return setting(name, factors[name])

    configs = [(name, ContextConfig()) for name in factors]
    monkeypatch.setattr(tuning, "other_configs", lambda config: configs)
    monkeypatch.setattr(tuning, "measure", measure)
    model: Any = None
    others, drift = tuning.alternatives(model, setting("own"), read_recording(), budget_s=1)
    return tune._recommendations(others, drift)


def test_a_faster_setting_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = alternatives(monkeypatch, {"slow": 2.0, "fast": 0.5, "mid": 0.8})
    assert [line.split(":")[0] for line in lines[1:4]] == ["  slow", "  fast", "  mid"]
    assert lines[4:] == [
        "Clearly faster with fast: +100% behind 64 tokens, +100% behind 256 tokens.",
        "Clearly faster with mid: +25% behind 64 tokens, +25% behind 256 tokens.",
        "Nothing was changed; the choice is yours.",
    ]


def test_a_setting_that_is_faster_at_one_length_is_told_with_it() -> None:
    long = tuning.Alternative(setting("long"), {64: (100.0, 80.0), 256: (50.0, 60.0)})
    told = "Clearly faster with long: -20% behind 64 tokens, +20% behind 256 tokens."
    assert told in tune._recommendations([long], 0.0)


def test_a_setting_that_is_hardly_faster_is_not_recommended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = alternatives(monkeypatch, {"same": 0.97})
    assert lines[-2] == "None of them is clearly faster."


def test_a_gain_below_the_drift_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = alternatives(monkeypatch, {"fast": 0.8}, again=1.4)
    assert "A plain step changed by 40%" in lines[-3]
    assert lines[-2] == "None of them is clearly faster."


def test_a_setting_that_llama_cpp_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = alternatives(monkeypatch, {"refused": 0.0, "same": 1.0})
    assert "refused" not in " ".join(lines)


def test_the_mark_stands_behind_the_bar_where_a_step_pays() -> None:
    costs = RelativeCosts("x", (1, 2, 4, 8), (1.0, 1.05, 5.0, 9.0))
    lines = plot.bars(expect(read_recording(), costs))
    assert lines[1].endswith("o")
    assert lines[2].endswith("#")
    assert lines[-1].endswith("9.0 plain steps")


def test_widths_beyond_the_recorded_trees_have_no_mark() -> None:
    lines = plot.bars(expect(read_recording(), RelativeCosts("x", (1, 128), (1.0, 2.0))))
    assert "o" not in lines[1]
