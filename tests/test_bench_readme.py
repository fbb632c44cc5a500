"""The README's table of results, from the results themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.readme import BEGIN, END, main, table

CELL = {"n": 2, "tps": 20.0, "mat": 1.5, "ratio": 1.25}
RESULT: dict[str, Any] = {
    "experiment": "main",
    "model": {"name": "m.gguf"},
    "machine": {"processor": "P", "cores": 2},
    "build": {"llama_cpp_python": "1.2"},
    "violations": 0,
    "answers": [],
    "rows": [
        {
            "setting": "",
            "method": name,
            "all": CELL | {"ratio": ratio},
            "by_category": {"qa": CELL | {"ratio": ratio}},
        }
        for name, ratio in (("plain", 1.0), ("auto", 1.25), ("pld", 0.9))
    ],
}


def test_each_method_has_a_line() -> None:
    assert "| auto | 1.25 | 1.25 | 1.50 |" in table(RESULT)


def test_only_what_stands_between_the_marks_changes(tmp_path: Path) -> None:
    readme, result = tmp_path / "README.md", tmp_path / "main.json"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    result.write_text(json.dumps(RESULT))
    assert main([str(result), "--readme", str(readme)]) == 0
    text = readme.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| m |")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text


def test_a_readme_without_marks_is_left_alone(tmp_path: Path) -> None:
    readme, result = tmp_path / "README.md", tmp_path / "main.json"
    readme.write_text("text")
    result.write_text(json.dumps(RESULT))
    assert main([str(result), "--readme", str(readme)]) == 1
    assert readme.read_text() == "text"
