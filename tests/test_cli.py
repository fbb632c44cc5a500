"""The command line in this process: exit codes, streams, options, files."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge_tr import __version__
from edge_tr.cli import main
from edge_tr.config import ContextConfig, DraftConfig, SamplingConfig
from edge_tr.errors import NativeBuildError
from edge_tr.llama.model import Model

TinyModel = Callable[[str], Path]
COMMANDS = (
    ["run"],
    ["chat"],
    ["serve"],
    ["demo"],
    ["doctor"],
    ["rpc-server"],
    ["model"],
    ["model", "get"],
    ["model", "path"],
    ["model", "make"],
    ["model", "list"],
    ["matrix"],
    ["matrix", "show"],
    ["matrix", "reset"],
    ["matrix", "path"],
)


@dataclass
class Result:
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def data_dir(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "data"
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(cache))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(directory))
    return directory


@pytest.fixture
def cli(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """``cli(*arguments, stdin=b"")`` runs the command line as a process would."""

    def call(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def run(cli: Callable[..., Result], tiny_model: TinyModel) -> Callable[..., Result]:
    """``run(*arguments)``: a short answer of a tiny model."""

    def call(*arguments: object, arch: str = "llama", **options: Any) -> Result:
        fixed = ("run", "-m", tiny_model(arch), "--threads", 1, "--ctx", 512, "--max-tokens", 12)
        return cli(*fixed, *arguments, **options)

    return call


def one_line(result: Result, code: int) -> str:
    """The single line of an error."""
    assert result.code == code
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert result.err.startswith("edge-tr: error: ")
    return result.err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(cli: Callable[..., Result], command: list[str]) -> None:
    result = cli(*command, "--help")
    assert result.code == 0
    assert f"usage: edge-tr {' '.join(command)}" in result.out


def test_help_tells_commands_and_exit_codes(cli: Callable[..., Result]) -> None:
    out = cli("--help").out
    for word in ("run", "demo", "doctor", "model", "matrix", "130  interrupted"):
        assert word in out


def test_version(cli: Callable[..., Result]) -> None:
    assert cli("--version").out == f"edge-tr {__version__}\n"


def test_defaults_in_help_are_those_in_use(cli: Callable[..., Result]) -> None:
    text = " ".join(cli("run", "--help").out.split())
    context, sampling = ContextConfig(), SamplingConfig()
    for option, value in (
        ("--ctx", context.n_ctx),
        ("--batch", context.n_batch),
        ("--cache-type-k", context.type_k),
        ("--cache-type-v", context.type_v),
        ("--k", DraftConfig().k),
        ("--temp", sampling.temperature),
        ("--top-k", sampling.top_k),
        ("--top-p", sampling.top_p),
        ("--min-p", sampling.min_p),
        ("--repeat-penalty", sampling.repeat_penalty),
    ):
        told = re.search(
            rf" {option} [A-Z]+ .*?(?:\(default ([\w.]+)|(\w+) \(default\)| 16, default (\d+))",
            text,
        )
        assert told is not None, option
        found = next(group for group in told.groups() if group)
        assert found.rstrip(".") == (value if isinstance(value, str) else f"{value:g}"), option


def test_answer_goes_to_stdout_and_statistics_to_stderr(run: Callable[..., Result]) -> None:
    result = run("Hello")
    assert result.code == 0
    assert result.out.endswith("\n")
    assert len(result.out) > 1
    for word in ("prefill:", "decode:  12 tokens", "mean accepted tokens", "--max-tokens reached"):
        assert word in result.err


def test_prompt_from_file_and_stdin_is_the_same(run: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "a prompt — é.txt"
    file.write_bytes("\ufeffHello\r\n".encode())
    wanted = run("Hello").out
    assert run("-f", file).out == wanted
    assert run("-f", "-", stdin=b"Hello\n").out == wanted
    assert run(stdin=b"Hello").out == wanted


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_a_prompt_without_an_end(run: Callable[..., Result]) -> None:
    told = one_line(run("-f", "/dev/zero"), 2)
    assert "the prompt of /dev/zero is longer than 64 MiB, which is the most that is read" in told


def test_a_prompt_about_a_file(run: Callable[..., Result]) -> None:
    wanted = run("Sum this up.\n\none\ntwo").out
    assert run("Sum this up.", "-f", "-", stdin=b"one\ntwo\n").out == wanted


def test_the_context_that_llama_cpp_made_is_told(run: Callable[..., Result]) -> None:
    report = json.loads(run("Hello", "--ctx", "100", "--json").out)
    assert report["config"]["context"]["n_ctx"] == 256


@pytest.mark.parametrize(
    ("arguments", "stdin", "told"),
    [
        (["-f", "missing.txt"], b"", "missing.txt cannot be read"),
        (["-f", "-"], b"\xff\xfe\xff", "stdin is not UTF-8"),
        (["Hello", "-f", "x.txt"], b"", "x.txt cannot be read"),
        ([""], b"", "the prompt is empty"),
        ([" \n"], b"", "the prompt is empty"),
        ([], b"", "the prompt is empty"),
        (["--no-chat", ""], b"", "the prompt is empty"),
        (["Hello", "--max-tokens", "-1"], b"", "--max-tokens -1"),
        (["Hello", "--no-chat", "--system", "x"], b"", "--system"),
        (["Hello", "--temp", "-1"], b"", "--temp -1.0"),
        (["Hello", "--temp", "nan"], b"", "--temp nan"),
        (["Hello", "--k", "17"], b"", "--k 17"),
        (["Hello", "--k", "4", "--tree", "paper"], b"", "k = 4"),
        (["Hello", "--ctx", "-5"], b"", "--ctx -5"),
        (["Hello", "--ctx", "many"], b"", "--ctx: invalid int value: 'many'"),
        (["Hello", "--threads", "-2"], b"", "--threads -2"),
        (["Hello", "--cache-type-k", "q9"], b"", "--cache-type-k 'q9'"),
        (
            ["Hello", "--no-flash-attn", "--cache-type-v", "q8_0"],
            b"",
            "--cache-type-v 'q8_0' needs flash attention",
        ),
        (["Hello", "--matrix-start", "warm"], b"", "'warm'"),
        (["Hello", "--tree", "0"], b"", "--tree 0"),
        (["Hello", "--tree", "81"], b"", "--tree 81"),
        (["Hello", "--tree", "b:3,x"], b"", "--tree b:3,x"),
        (["Hello", "--tree", "b:99"], b"", "--tree b:99 is not allowed: breadth 99"),
        (["Hello", "--tree", ""], b"", "there is no such file"),
        (["Hello", "--tree", "missing.json"], b"", "--tree missing.json"),
        (["Hello", "--bogus"], b"", "unrecognized arguments: --bogus; see edge-tr run --help"),
    ],
)
def test_a_value_that_is_not_allowed_is_one_line(
    run: Callable[..., Result], arguments: list[str], stdin: bytes, told: str
) -> None:
    assert told in one_line(run(*arguments, stdin=stdin), 2)


def test_prompt_longer_than_the_context(run: Callable[..., Result]) -> None:
    line = one_line(run("word " * 600), 2)
    assert "a context of 512 holds at most 511" in line


@pytest.mark.parametrize("content", ["{", "{}", "[1, 2]", "[[0, 0]]", '[["0"]]', "[[16]]"])
def test_a_tree_file_that_is_no_tree(
    run: Callable[..., Result], tmp_path: Path, content: str
) -> None:
    file = tmp_path / "tree.json"
    file.write_text(content)
    assert f"--tree {file} is not allowed" in one_line(run("Hello", "--tree", file), 2)


def test_every_tree_gives_the_same_text(run: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    file.write_text('{"paths": [[0], [0, 0], [1]]}')
    exact = ("--flash-attn", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    wanted = run("Hello", *exact, "--tree", "off").out
    for tree in ("auto", "paper", "5", "b:2,1", file):
        assert run("Hello", *exact, "--tree", tree).out == wanted


def test_a_forced_tree_drafts(run: Callable[..., Result]) -> None:
    result = run("Hello", "--tree", "b:1", "--matrix-start", "random", "--json")
    assert json.loads(result.out)["stats"]["n_drafted"] > 0


def test_tree_off_drafts_nothing(run: Callable[..., Result]) -> None:
    assert "nothing was drafted; mean accepted tokens 1.00" in run("Hello", "--tree", "off").err


def test_json_holds_what_the_stream_shows(
    run: Callable[..., Result], tiny_model: TinyModel
) -> None:
    streamed = run("Hello", "--matrix-start", "empty").out
    told = json.loads(run("Hello", "--matrix-start", "empty", "--json").out)
    assert told["text"] + "\n" == streamed
    assert told["finish_reason"] == "length"
    assert told["stats"]["n_tokens"] == 12
    assert told["model"]["path"] == str(tiny_model("llama"))
    assert told["model"]["architecture"] == "llama"
    assert told["config"]["context"]["n_ctx"] == 512
    assert told["config"]["draft"]["start"] == "empty"
    assert told["config"]["sampling"]["temperature"] == 0
    assert told["notices"] == []


def test_a_seed_that_was_drawn_is_told_and_repeats_the_text(run: Callable[..., Result]) -> None:
    first = json.loads(run("Hello", "--temp", "1", "--json").out)
    seed = first["config"]["sampling"]["seed"]
    again = json.loads(run("Hello", "--temp", "1", "--seed", seed, "--json").out)
    assert again["text"] == first["text"]


@pytest.mark.parametrize("n", [0, 1, 5])
def test_max_tokens_is_kept(run: Callable[..., Result], n: int) -> None:
    told = json.loads(run("Hello", "--max-tokens", n, "--json").out)
    assert told["stats"]["n_tokens"] == n
    assert told["finish_reason"] == "length"


def test_no_token_prints_nothing(run: Callable[..., Result]) -> None:
    result = run("Hello", "--max-tokens", 0)
    assert (result.code, result.out) == (0, "")


def test_the_context_ends_the_text(run: Callable[..., Result]) -> None:
    told = json.loads(run("Hello", "--ctx", 256, "--max-tokens", 1000, "--json").out)
    assert told["finish_reason"] == "context"
    assert told["stats"]["n_prompt"] + told["stats"]["n_tokens"] == 256


def test_a_stop_token_ends_the_text(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "stop_tokens", lambda model: frozenset(range(model.n_vocab)))
    told = json.loads(run("Hello", "--json").out)
    assert told["finish_reason"] == "stop"
    assert told["stats"]["n_tokens"] == 1


def test_system_text_changes_the_prompt(run: Callable[..., Result]) -> None:
    plain, system, raw = (
        json.loads(run("Hello", "--json", *more).out)["stats"]["n_prompt"]
        for more in ((), ("--system", "Be brief."), ("--no-chat",))
    )
    assert raw < plain < system


def test_a_model_that_cannot_draft_answers_and_says_why(run: Callable[..., Result]) -> None:
    result = run("Hello", arch="mamba")
    assert result.code == 0
    assert result.err.count("drafting is off: mamba is recurrent") == 1
    assert "nothing was drafted" in result.err


def test_a_model_that_writes_no_text(run: Callable[..., Result]) -> None:
    assert "is an encoder" in one_line(run("Hello", arch="bert"), 3)


@pytest.mark.parametrize("model", ["missing.gguf", "folder/missing", "no-such-name"])
def test_a_missing_model(cli: Callable[..., Result], model: str) -> None:
    assert model in one_line(cli("run", "-m", model, "Hello"), 3)


def test_a_damaged_model(cli: Callable[..., Result], tiny_model: TinyModel, tmp_path: Path) -> None:
    whole = tiny_model("llama").read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(whole[: len(whole) // 2])
    assert str(file) in one_line(cli("run", "-m", file, "Hello"), 3)
    file.write_bytes(b"not a model at all")
    assert str(file) in one_line(cli("run", "-m", file, "Hello"), 3)


def test_a_model_path_of_any_letters(
    run: Callable[..., Result], tiny_model: TinyModel, tmp_path: Path
) -> None:
    file = tmp_path / "ein Modell — 模型.gguf"
    file.write_bytes(tiny_model("llama").read_bytes())
    result = run("Hello", "-m", file)
    assert result.code == 0
    assert result.out == run("Hello", "--matrix-start", "empty").out


def saved(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_the_matrix_is_saved_and_inherited(run: Callable[..., Result], data_dir: Path) -> None:
    tree = ("--tree", "3", "--json", "--no-harvest")
    cold = json.loads(run("Hello", *tree).out)
    assert len(saved(data_dir)) == 1
    warm = json.loads(run("Hello", *tree).out)
    assert warm["text"] == cold["text"]
    assert warm["stats"]["n_accepted"] > cold["stats"]["n_accepted"]


@pytest.mark.parametrize(
    "arguments", [["--no-save"], ["--matrix-start", "empty"], ["--max-tokens", "0"]]
)
def test_the_matrix_is_not_saved(
    run: Callable[..., Result], data_dir: Path, arguments: list[str]
) -> None:
    run("Hello", *arguments)
    assert saved(data_dir) == []


def test_a_matrix_file_of_choice(
    run: Callable[..., Result], data_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "my matrix.npz"
    run("Hello", "--matrix", file, "--matrix-start", "empty")
    assert file.exists()
    assert saved(data_dir) == []


def test_a_damaged_matrix_of_choice_is_refused(run: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "matrix.npz"
    file.write_bytes(b"not a matrix")
    assert "damaged" in one_line(run("Hello", "--matrix", file), 1)
    assert file.read_bytes() == b"not a matrix"


def test_a_matrix_of_choice_that_is_damaged_inside(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "matrix.npz"
    assert run("Hello", "--matrix", file).code == 0
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    told = one_line(run("Hello", "--matrix", file), 1)
    assert f"{file} is damaged" in told
    assert f"use another path, or `edge-tr matrix reset --file {file}` to start empty" in told
    assert file.read_bytes() == data


def test_a_data_directory_that_cannot_be_written(
    run: Callable[..., Result], data_dir: Path
) -> None:
    data_dir.write_text("a file where the directory should be")
    result = run("Hello")
    assert result.code == 0
    assert len(result.out) > 1
    assert result.err.count("warning: what was learned is not saved") == 1


def test_a_cache_directory_that_cannot_be_written(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cache"
    file.write_text("a file where the directory should be")
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(file))
    result = run("Hello")
    assert result.code == 0
    assert len(result.out) > 1


def test_matrix_commands(
    run: Callable[..., Result], cli: Callable[..., Result], tiny_model: TinyModel
) -> None:
    model = ("-m", tiny_model("llama"))
    file = Path(cli("matrix", "path", *model).out.removesuffix("\n"))
    assert "no matrix is saved" in one_line(cli("matrix", "show", *model), 1)
    run("Hello")
    assert file.exists()
    assert "tokens have candidates" in cli("matrix", "show", *model).out
    assert "one-token row  right: " in cli("matrix", "show", *model).out
    told = json.loads(cli("matrix", "show", "--file", file, "--json").out)
    assert told["path"] == str(file)
    assert 0 < told["n_seen"] < told["n_vocab"]
    assert all(0 <= share <= 1 for share in told["acceptance"]["one-token row"])
    assert cli("matrix", "reset", *model).code == 0
    assert not file.exists()
    assert cli("matrix", "reset", "--file", file).code == 0


def test_doctor(cli: Callable[..., Result], tiny_model: TinyModel, tmp_path: Path) -> None:
    result = cli("doctor")
    assert result.code == 0
    assert re.search("^decode +works$", result.out, re.MULTILINE)
    told = json.loads(cli("doctor", "--json", "-m", tiny_model("llama")).out)
    assert told["model"]["path"] == str(tiny_model("llama"))
    assert cli("doctor", "-m", tmp_path / "missing.gguf").code == 1


def test_a_build_that_would_crash_is_refused(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise NativeBuildError("llama.cpp does not work here")

    monkeypatch.setattr("edge_tr.machine.build_check.require_working_build", refuse)
    assert "does not work here" in one_line(run("Hello"), 1)


def test_no_file_of_the_user_is_taken_for_a_matrix(
    run: Callable[..., Result], cli: Callable[..., Result], tmp_path: Path
) -> None:
    diary = tmp_path / "diary.txt"
    diary.write_text("my diary")
    told = one_line(run("Hello", "--matrix", diary, "--matrix-start", "empty"), 1)
    assert "is not a matrix file" in told
    assert "is not a matrix file" in one_line(cli("matrix", "reset", "--file", diary), 1)
    assert diary.read_text() == "my diary"


def test_matrix_show_refuses_another_file(cli: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "matrix.npz"
    file.write_bytes(b"PK but no matrix")
    assert "damaged" in one_line(cli("matrix", "show", "--file", file), 1)


def test_model_commands(
    cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    result = cli("model", "path", "tiny-llama")
    file = Path(result.out.removesuffix("\n"))
    assert file == tmp_path / "cache" / "models" / "tiny-llama.gguf"
    assert file.exists()
    assert cli("model", "get", "tiny-llama").out == ""
    made = tmp_path / "made.gguf"
    assert cli("model", "make", "tiny-llama", "-o", made).code == 0
    assert made.read_bytes() == file.read_bytes()
    listed = {entry["name"]: entry for entry in json.loads(cli("model", "list", "--json").out)}
    assert listed["tiny-llama"]["present"]
    assert not listed["smollm2-q4_0"]["present"]
    assert re.search(r"\* tiny-llama ", cli("model", "list").out)
    assert "no-such" in one_line(cli("model", "get", "no-such"), 2)


def test_an_unexpected_error_is_one_line(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: Model) -> str:
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr(Model, "fingerprint", fail)
    monkeypatch.setattr("edge_tr.llama.library.log_to_stderr", lambda: None)
    assert "unexpected RuntimeError: first second" in one_line(run("Hello"), 1)
    assert "Traceback" in run("Hello", "--verbose").err
