"""Plain and recycled decoding in turn: ``python -m bench.plain_vs_recycled --json``.

Each question is answered plain, recycled, plain, recycled, so that a drift of the machine meets
both. Both recycled answers start with the same matrix: an empty one, or with ``--inherited`` what
the questions before have left. Speeds are of the tokens after the first; a ratio is taken over
both pairs of a question. What two plain answers of one question differ by is told beside.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_tr import models
from edge_tr.bench.loops import DecoderLoop, timed
from edge_tr.bench.outcome import Outcome
from edge_tr.bench.questions import load_questions, sample
from edge_tr.bench.statistics import median_bounds
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import CostTable
from edge_tr.decode.decoder import Decoder
from edge_tr.decode.topk import default_threads
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.drafts.tree_text import read_tree
from edge_tr.llama.target import LlamaTarget
from edge_tr.machine import facts
from edge_tr.measuring.kept_costs import costs_of
from edge_tr.measuring.steps import extend_costs
from edge_tr.session import Session
from edge_tr.target import Int32

K = 8


class Recycled:
    """Makes a recycling decoder for each answer.

    Parameters
    ----------
    tree : a template, or "auto".
    """

    def __init__(self, target: LlamaTarget, tree: TreeTemplate | str) -> None:
        self._target = target
        self._tree = tree
        self._table: CostTable | None = None
        if not isinstance(tree, TreeTemplate):
            self._table = costs_of(target, k=K, n_threads=default_threads())

    def decoder(self, candidates: Candidates) -> Decoder:
        """A decoder that learns into ``candidates``."""
        n_threads = default_threads()
        if isinstance(self._tree, TreeTemplate):
            template = FixedTreeDrafter(candidates.matrix, self._tree, harvest=True)
            return Decoder(self._target, template, n_threads=n_threads)
        assert self._table is not None
        costs = StepCosts(self._table, self._table.widths[-1], on_extend=self._extend)
        recycler = GrownTreeDrafter(
            candidates,
            n_ctx=self._target.n_ctx,
            costs=costs,
            max_nodes=costs.max_width - 1,
            max_lanes=self._target.n_lanes,
        )
        return Decoder(
            self._target,
            recycler,
            costs=costs,
            n_threads=n_threads,
            measure_behind=extend_costs,
        )

    def _extend(self, table: CostTable) -> None:
        self._table = table


@dataclass(frozen=True)
class Pairs:
    """The answers to one question: plain, recycled, plain, recycled."""

    id: str
    category: str
    answers: tuple[Outcome, Outcome, Outcome, Outcome]

    @property
    def speedup(self) -> float:
        """Recycled over plain speed, both pairs together."""
        plain, recycled = self._seconds(0), self._seconds(1)
        return plain / recycled

    def _seconds(self, first: int) -> float:
        return sum(a.decode_s for a in self.answers[first::2])

    @property
    def noise(self) -> float:
        """Speed of the second plain answer over that of the first."""
        return self.answers[2].tps / self.answers[0].tps

    @property
    def mat(self) -> float:
        """Mean accepted tokens of the first recycled answer."""
        return float(self.answers[1].stats["mat"])

    @property
    def same_text(self) -> bool:
        """Whether all four texts are equal, token for token."""
        return all(a.tokens == self.answers[0].tokens for a in self.answers)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain, recycled = (sum(a.tps for a in self.answers[first::2]) / 2 for first in (0, 1))
        return {
            "id": self.id,
            "category": self.category,
            "speedup": round(self.speedup, 4),
            "noise": round(self.noise, 4),
            "mat": round(self.mat, 3),
            "plain_tps": round(plain, 2),
            "recycled_tps": round(recycled, 2),
            "n_tokens": len(self.answers[0].tokens),
            "same_text": self.same_text,
        }


def measure(
    session: Session,
    prompts: Sequence[tuple[str, str, Int32]],
    tree: TreeTemplate | str,
    *,
    n_tokens: int,
    inherited: bool,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Pairs]:
    """Answer every prompt, a triple of id, category and tokens, four times."""
    recycled = Recycled(session.target, tree)
    plain = Decoder(session.target)
    empty = Candidates(AdjacencyMatrix(session.model.n_vocab, K))
    learned = deepcopy(empty)
    found = []
    timed(DecoderLoop(plain), prompts[0][2][:8], 4)  # touches the memory of the model once
    for number, (id, category, tokens) in enumerate(prompts):
        start = learned if inherited else empty
        answers = []
        for _ in range(2):
            learned = deepcopy(start)
            for decoder in (plain, recycled.decoder(learned)):
                answers.append(timed(DecoderLoop(decoder), tokens, n_tokens))
        first, second, third, fourth = answers
        found.append(Pairs(id, category, (first, second, third, fourth)))
        progress(f"{number + 1} of {len(prompts)}, {category}: {found[-1].speedup:.3f}")
    return found


def summary(found: Sequence[Pairs]) -> dict[str, Any]:
    """Medians over the questions with their bounds, whole and by category."""
    categories = dict.fromkeys(pairs.category for pairs in found)
    return {
        "speedup": median_bounds([pairs.speedup for pairs in found]).to_dict(),
        "plain_against_plain": median_bounds([pairs.noise for pairs in found]).to_dict(),
        "speedup_by_category": {
            name: median_bounds([p.speedup for p in found if p.category == name]).to_dict()
            for name in categories
        },
        "mat_by_category": {
            name: round(median_bounds([p.mat for p in found if p.category == name]).median, 3)
            for name in categories
        },
        "same_texts": f"{sum(pairs.same_text for pairs in found)}/{len(found)}",
        "questions": [pairs.to_dict() for pairs in found],
    }


def table(result: dict[str, Any]) -> list[str]:
    """The medians for a person."""
    lines = [f"{'':<22}{'times as fast':>14}{'mean accepted':>16}{'questions':>12}"]
    for name, speedup in result["speedup_by_category"].items():
        mat = result["mat_by_category"][name]
        lines.append(f"{name:<22}{speedup['median']:>14.3f}{mat:>16.2f}{speedup['n']:>12}")
    whole, noise = result["speedup"], result["plain_against_plain"]
    bounds = "" if whole["lower"] is None else f" ({whole['lower']:.3f} to {whole['upper']:.3f})"
    return [
        *lines,
        f"all: {whole['median']:.3f}{bounds} times as fast as plain decoding",
        f"plain against plain: {noise['median']:.3f}",
        f"texts the same, token for token: {result['same_texts']}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; the last line is one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.plain_vs_recycled", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--model", default=models.DEFAULT)
    parser.add_argument("--tree", default="auto", help="as `edge-tr run --tree` (default auto)")
    parser.add_argument("--per-category", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--inherited", action="store_true", help="keep what was learned before")
    parser.add_argument("--flash-attn", action="store_true", help="with a q8_0 cache")
    parser.add_argument("--questions", type=Path, help="directory of Spec-Bench and MBPP")
    options = parser.parse_args(arguments)
    tree = read_tree(options.tree)
    if tree == "off":
        parser.error("--tree off leaves nothing to compare")
    n_leaves = tree.n_leaves if isinstance(tree, TreeTemplate) else 1
    context = ContextConfig(
        n_threads=options.threads,
        n_threads_batch=options.threads,
        flash_attn=options.flash_attn,
        type_k="q8_0" if options.flash_attn else "f16",
        type_v="q8_0" if options.flash_attn else "f16",
        n_lanes=max(n_leaves, ContextConfig.n_lanes),
    )
    draft = DraftConfig(speculative="off", start="empty")
    questions = sample(load_questions(options.questions), options.per_category)
    with Session(models.path(options.model), context=context, draft=draft) as session:
        room = session.target.n_ctx - options.tokens - 1
        prompts = [(q.id, q.category, session.prompt_tokens(q.turns[0])[-room:]) for q in questions]
        found = measure(
            session,
            prompts,
            tree,
            n_tokens=options.tokens,
            inherited=options.inherited,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
        result = summary(found) | {
            "settings": {
                "model": options.model,
                "tree": options.tree,
                "n_tokens": options.tokens,
                "inherited": options.inherited,
                "context": asdict(context),
            },
            "measured_on": {"processor": facts.processor(), "cores": facts.n_cores()},
        }
    print("\n".join(table(result)))
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
