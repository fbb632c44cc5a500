"""What the README and docs/ tell people to type works, and their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_tr import models
from edge_tr.cli import EXIT_CODES, make_parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = "\n".join(page.read_text("utf-8") for page in PAGES)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
        assert link.startswith("https://") or (page.parent / link).exists(), link
