"""Mean accepted tokens at equal numbers of nodes: ``python -m bench.mat --json``.

Every method drafts exactly as many nodes as its budget says, whatever they cost, on the same
questions in the same order, from an empty start and inherited from question to question. The
text of every run is compared with plain decoding, token for token; the configuration (flash
attention, q8_0 cache) is one in which llama.cpp can give bit-equal logits at every width.

baseline: the paper's matrix (one row per token, overwritten, the prompt not read) with the best
static tree of the budget, from rank rates counted on questions that are not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_tr import models
from edge_tr.bench.prompt_lookup import PromptLookup
from edge_tr.bench.questions import Question, load_questions, sample
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.draft import Drafter
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.session import Session

from .record import record_questions
from .static_trees import RankCounter, RebuiltTree, best_static_tree

BUDGETS = (3, 7, 15, 31, 80)
N_CTX = 4096

Make = Callable[[], Drafter]


@dataclass(frozen=True)
class BudgetedDrafter:
    """A drafter with a budget; ``warm`` runs the questions of calibration first."""

    name: str
    budget: int
    make: Make
    warm: bool = False


class Bench:
    """Runs methods over the same questions; finished answers are kept in a file."""

    def __init__(self, session: Session, options: argparse.Namespace) -> None:
        self.session = session
        self.n_tokens = options.tokens
        questions = load_questions(options.questions)
        self.measured = sample(questions, options.per_category, half="measured")
        self.other = sample(questions, options.per_category, half="calibration")
        self.records = Path(options.out) / "mat.jsonl" if options.out else None
        self.rows: dict[str, dict[str, Any]] = {}
        self.settings = [
            options.model,
            options.per_category,
            options.tokens,
            str(options.questions),
        ]
        if self.records and self.records.exists():
            for line in self.records.read_text().splitlines():
                row = json.loads(line)
                if row["settings"] == self.settings:
                    self.rows[row["key"]] = row

    def answer(self, drafter: Drafter | None, question: Question) -> tuple[list[int], Any]:
        """Tokens and statistics of one answer; end of text is ignored."""
        prompt = self.session.prompt_tokens(question.turns[0])[-(N_CTX - self.n_tokens - 1) :]
        decoder = Decoder(self.session.target, drafter)
        steps = decoder.generate(prompt, max_tokens=self.n_tokens)
        return [token for step in steps for token in step], decoder.stats

    def plain(self) -> dict[str, list[int]]:
        """Plain decoding's text of each measured question."""
        row = self.rows.get("plain")
        if row is None:
            row = self._keep({"key": "plain", "texts": {}}, None, "plain decoding")
        return dict(row["texts"])

    def run(self, entry: BudgetedDrafter) -> dict[str, Any]:
        """Counts per category of one method, and how many texts equal plain decoding's."""
        key = f"{entry.name}@{entry.budget}"
        if key not in self.rows:
            drafter = entry.make()
            if entry.warm:
                for question in self.other:
                    self.answer(drafter, question)
            self._keep({"key": key, "texts": {}}, drafter, key)
        return self.rows[key]

    def _keep(self, row: dict[str, Any], drafter: Drafter | None, name: str) -> dict[str, Any]:
        counts: dict[str, list[int]] = {}
        for i, question in enumerate(self.measured):
            print(f"\r{name}: question {i + 1}/{len(self.measured)}   ", end="", file=sys.stderr)
            tokens, stats = self.answer(drafter, question)
            row["texts"][question.id] = tokens
            count = counts.setdefault(question.category, [0, 0])
            count[0] += stats.n_tokens - 1
            count[1] += stats.n_steps
        row |= {"settings": self.settings, "counts": counts}
        row["mat"] = _mat(counts)
        print(f"\r{name}: {row['mat']:.3f}                    ", file=sys.stderr)
        self.rows[row["key"]] = row
        if self.records:
            self.records.parent.mkdir(parents=True, exist_ok=True)
            with self.records.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return row

    def rates(self) -> list[float]:
        """Share of the tokens at each rank of the baseline's matrix, other questions."""
        row = self.rows.get("rates")
        if row is None:
            matrix = AdjacencyMatrix(self.session.model.n_vocab)
            counter = RankCounter(matrix, TreeTemplate.paper().prefix(15))
            for question in self.other:
                self.answer(counter, question)
            row = {"key": "rates", "settings": self.settings, "rates": counter.rates}
            self.rows["rates"] = row
            if self.records:
                self.records.parent.mkdir(parents=True, exist_ok=True)
                with self.records.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        return list(row["rates"])


def entries(
    session: Session, rates: Sequence[float], options: argparse.Namespace
) -> list[BudgetedDrafter]:
    """Everything that is measured, the main comparison first."""
    n_vocab = session.model.n_vocab

    def matrix() -> AdjacencyMatrix:
        return AdjacencyMatrix(n_vocab)

    def baseline(n: int) -> Make:
        return lambda: FixedTreeDrafter(matrix(), best_static_tree(rates, n))

    def ours(n: int, *, n_pairs: int = 1 << 17, by_rank: bool = False, **more: Any) -> Make:
        return lambda: GrownTreeDrafter(
            Candidates(matrix(), n_pairs=n_pairs, by_rank=by_rank),
            n_ctx=session.target.n_ctx,
            max_nodes=n,
            **more,
        )

    bare: dict[str, Any] = {"n_pairs": 0, "by_rank": True, "use_matches": False, "harvest": False}
    found = []
    for n in options.budgets:
        found += [
            BudgetedDrafter("ours", n, ours(n)),
            BudgetedDrafter("baseline", n, baseline(n)),
            BudgetedDrafter("pld", n, lambda n=n: PromptLookup(n_vocab, max_nodes=n)),  # type: ignore[misc]
        ]
        if n <= 15:
            found.append(BudgetedDrafter("ours warm", n, ours(n), warm=True))
            found.append(BudgetedDrafter("baseline warm", n, baseline(n), warm=True))
    found.append(
        BudgetedDrafter("paper", 80, lambda: FixedTreeDrafter(matrix(), TreeTemplate.paper()))
    )
    for n in options.source_budgets:
        found += [
            BudgetedDrafter("static, rebuilt", n, lambda n=n: RebuiltTree(matrix(), n)),  # type: ignore[misc]
            BudgetedDrafter("one-token rows only", n, ours(n, **bare)),
            BudgetedDrafter("only + two-token rows", n, ours(n, **bare | {"n_pairs": 1 << 17})),
            BudgetedDrafter("only + probabilities", n, ours(n, **bare | {"by_rank": False})),
            BudgetedDrafter("only + matches", n, ours(n, **bare | {"use_matches": True})),
            BudgetedDrafter("only + prompt rows", n, ours(n, **bare | {"harvest": True})),
            BudgetedDrafter("all - two-token rows", n, ours(n, n_pairs=0)),
            BudgetedDrafter("all - probabilities", n, ours(n, by_rank=True)),
            BudgetedDrafter("all - matches", n, ours(n, use_matches=False)),
            BudgetedDrafter("all - prompt rows", n, ours(n, harvest=False)),
        ]
    return found


def _mat(counts: dict[str, list[int]]) -> float:
    tokens, steps = (sum(c[i] for c in counts.values()) for i in (0, 1))
    return tokens / steps if steps else 0.0


def summary(bench: Bench, compared: Sequence[BudgetedDrafter]) -> dict[str, Any]:
    """The result: totals, categories, gains, and what the targets ask."""
    plain = bench.plain()
    result: dict[str, Any] = {"mat": {}, "by_category": {}, "equal_texts": {}}
    for entry in compared:
        row = bench.run(entry)
        budget = str(entry.budget)
        result["mat"].setdefault(entry.name, {})[budget] = round(row["mat"], 3)
        categories = {c: round(t / max(1, s), 3) for c, (t, s) in row["counts"].items()}
        result["by_category"].setdefault(entry.name, {})[budget] = categories
        n_equal = sum(row["texts"][i] == text for i, text in plain.items())
        result["equal_texts"].setdefault(entry.name, {})[budget] = f"{n_equal}/{len(plain)}"
    mat, by_category = result["mat"], result["by_category"]
    budgets = [b for b in mat["ours"] if b in mat["baseline"]]
    result["gain_by_budget"] = {
        b: round((mat["ours"][b] - 1) / (mat["baseline"][b] - 1), 3) for b in budgets
    }
    result["lowest_category_gain"] = {
        b: round(
            min(
                (ours - 1) / max(1e-9, by_category["baseline"][b][c] - 1)
                for c, ours in by_category["ours"][b].items()
            ),
            3,
        )
        for b in budgets
    }
    result["pld_above_ours_in"] = {
        b: [c for c, ours in by_category["ours"][b].items() if by_category["pld"][b][c] > ours]
        for b in budgets
    }
    if "15" in mat["ours"] and "paper" in mat:
        result["ours_15_over_paper_80"] = round(mat["ours"]["15"] / mat["paper"]["80"], 3)
    return result


def table(result: dict[str, Any]) -> list[str]:
    """The totals for a person."""
    budgets = sorted({b for row in result["mat"].values() for b in row}, key=int)
    lines = ["mean accepted tokens".ljust(26) + "".join(f"{b:>8}" for b in budgets)]
    for name, row in result["mat"].items():
        cells = "".join(f"{row[b]:8.3f}" if b in row else " " * 8 for b in budgets)
        lines.append(name.ljust(26) + cells)
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; a stopped run goes on from its ``--out`` directory."""
    parser = argparse.ArgumentParser(prog="python -m bench.mat", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--model", default=models.DEFAULT)
    parser.add_argument("--per-category", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--source-budgets", type=int, nargs="*", default=[7])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--questions", type=Path, help="directory of Spec-Bench and MBPP")
    parser.add_argument("--out", type=Path, help="keep finished answers here")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="only record acceptance for `edge-tr tune --cost ... --acceptance FILE`, on questions "
        "that are not measured",
    )
    options = parser.parse_args(arguments)
    context = ContextConfig(
        n_ctx=N_CTX,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        flash_attn=True,
        type_k="q8_0",
        type_v="q8_0",
    )
    draft = DraftConfig(speculative="off", start="empty")
    with Session(models.path(options.model), context=context, draft=draft) as session:
        bench = Bench(session, options)
        if options.record:
            found = record_questions(
                session,
                bench.other,
                n_tokens=options.tokens,
                progress=lambda line: print(line, file=sys.stderr, flush=True),
            )
            options.record.write_text(json.dumps(found.to_dict(), separators=(",", ":")) + "\n")
            return 0
        result = summary(bench, entries(session, bench.rates(), options))
    result["settings"] = {
        "model": options.model,
        "per_category": options.per_category,
        "n_tokens": options.tokens,
        "n_questions": len(bench.measured),
    }
    print("\n".join(table(result)))
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
