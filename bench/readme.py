"""Write results of ``edge-tr bench`` into docs/results.md: ``python -m bench.readme RESULT...``.

Each RESULT is a ``main.json``; together they replace what stands between the two marks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_tr.bench.compare import read_result
from edge_tr.bench.report import label, verdict
from edge_tr.bench.runner import AGAIN, PLAIN
from edge_tr.errors import ConfigError, EdgeTRError

README = Path(__file__).resolve().parent.parent / "docs" / "results.md"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def table(result: dict[str, Any]) -> str:
    """Times plain decoding by category, and who won where."""
    categories = list(dict.fromkeys(c for r in result["rows"] for c in r.get("by_category", {})))
    heads = [result["model"]["name"].removesuffix(".gguf"), *categories, "all", "MAT"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in result["rows"]:
        if "all" in row and row["method"] not in (PLAIN, AGAIN):
            cells = [row["by_category"].get(c, {}).get("ratio") for c in categories]
            numbers = [*cells, row["all"].get("ratio"), row["all"]["mat"]]
            texts = ["" if number is None else f"{number:.2f}" for number in numbers]
            lines.append(f"| {' | '.join([label(row), *texts])} |")
    machine, build = result["machine"], result["build"]
    conditions = (
        f"Times plain decoding; {machine['processor']}, {machine['cores']} cores, "
        f"llama-cpp-python {build['llama_cpp_python']}; violations of our own methods: "
        f"{result['violations']}. Fastest: {'; '.join(verdict(result))}."
    )
    return "\n".join([*lines, "", conditions])


def replaced(text: str, results: Sequence[dict[str, Any]]) -> str:
    """The README with new tables between its marks.

    Raises
    ------
    ConfigError : the marks are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the README lacks the marks {BEGIN} and {END}")
    tables = "\n\n".join(table(result) for result in results)
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.readme", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT")
    parser.add_argument("--readme", type=Path, default=README)
    options = parser.parse_args(arguments)
    try:
        results = [read_result(file) for file in options.results]
        text = replaced(options.readme.read_text("utf-8"), results)
    except EdgeTRError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    options.readme.write_text(text, encoding="utf-8")
    print(json.dumps({"readme": str(options.readme), "tables": len(results)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
