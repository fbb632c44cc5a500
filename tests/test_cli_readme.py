"""What the README tells people to type works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_tr import models
from edge_tr.cli import EXIT_CODES, make_parser

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
COMMANDS = re.findall(r"(?:^    |\| |`)(edge-tr (?!COMMAND)[^\n`#]+)", README, re.MULTILINE)

EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood(command: str) -> None:
    args = make_parser().parse_args(shlex.split(command)[1:])
    assert callable(args.command)


@pytest.mark.parametrize(
    ("example", "told"),
    list(zip(EXAMPLES, (r"\d tokens per decode step\n$", r" \d\.\d+\n$"), strict=True)),
    ids=("session", "llama"),
)
def test_every_python_example_runs(
    example: str,
    told: str,
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "path", lambda: tiny_model("llama"))
    exec(example.replace("model.gguf", str(tiny_model("llama"))), {})
    assert re.search(told, capsys.readouterr().out)
    assert list((tmp_path / "data").rglob("*.npz"))


def test_exit_codes_are_those_of_the_help() -> None:
    told = re.findall(r"^\| (\d+) \| (\w+)", README, re.MULTILINE)
    assert told == re.findall(r"^  (\d+) +(\w+)", EXIT_CODES, re.MULTILINE)
