"""Fixed settings of drafting, and the best of them on questions that are not measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import exp, fsum, log
from pathlib import Path
from typing import Any

from edge_tr.bench.loops import DecoderLoop, timed
from edge_tr.costs.running import StepCosts
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts import matrix_file
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.draft import Drafter
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.template import SMALL_TREE, TreeTemplate
from edge_tr.target import Int32, TargetModel

from .static_trees import RankCounter, best_static_tree

TREE_NODES = (1, 3, 7, 15, 31)
CHAIN_NODES = (2, 4, 8, 16)
GROWN_NODES = (1, 3, 7)
K = 8

_KEPT = (0.6, 0.75, 0.85, 0.9)
"""Share of the best speed so far below which a setting is dropped after each question; the last
one goes on."""


@dataclass(frozen=True)
class Setting:
    """One fixed way of drafting: a template, or a tree grown for each step.

    Attributes
    ----------
    kind : "static" (the paper's matrix; off is one of them) or "grown" (every source of
        candidates, always ``n_grown`` nodes).
    template : tree of a static setting; None drafts nothing.
    """

    name: str
    kind: str = "static"
    template: TreeTemplate | None = None
    n_grown: int = 0

    def decoder(
        self,
        target: TargetModel,
        candidates: Candidates,
        *,
        costs: StepCosts | None = None,
        n_threads: int = 1,
    ) -> Decoder:
        """A decoder that always drafts this way and learns into ``candidates``."""
        drafter: Drafter | None = None
        if self.template is not None:
            drafter = FixedTreeDrafter(candidates.matrix, self.template, harvest=True)
        elif self.n_grown:
            drafter = GrownTreeDrafter(
                candidates, n_ctx=target.n_ctx, max_nodes=self.n_grown, max_lanes=target.n_lanes
            )
        return Decoder(target, drafter, costs=costs, n_threads=n_threads)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``from_dict`` reads it."""
        paths = None if self.template is None else [list(p) for p in self.template.paths]
        return {"name": self.name, "kind": self.kind, "paths": paths, "n_grown": self.n_grown}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Setting:
        template = None if data["paths"] is None else TreeTemplate(data["paths"])
        return cls(data["name"], data["kind"], template, data["n_grown"])


def fixed_settings(rates: Sequence[float], *, grown: bool) -> list[Setting]:
    """Off, the best static trees for the rates of the ranks, chains, and trees that are grown."""
    settings = [Setting("off")]
    for n in TREE_NODES:
        settings.append(Setting(f"tree-{n}", template=best_static_tree(rates, n)))
    for n in CHAIN_NODES:
        settings.append(Setting(f"chain-{n}", template=TreeTemplate.from_breadths([1] * n)))
    if grown:
        settings += [Setting(f"grown-{n}", "grown", n_grown=n) for n in GROWN_NODES]
    return settings


def rank_rates(target: TargetModel, prompts: Sequence[Int32], n_tokens: int) -> list[float]:
    """How often the model's choice stood at each rank of the one-token matrix, cold start."""
    counter = RankCounter(AdjacencyMatrix(target.n_vocab, K), SMALL_TREE)
    decoder = Decoder(target, counter)
    for prompt in prompts:
        for _ in decoder.generate(prompt, max_tokens=n_tokens):
            pass
    return counter.rates


@dataclass
class _Trial:
    """A setting that is being tried: what it learned and how fast it was."""

    setting: Setting
    candidates: Candidates
    costs: StepCosts = field(default_factory=StepCosts)
    tps: list[float] = field(default_factory=list)


def best_settings(
    target: TargetModel,
    settings: Sequence[Setting],
    prompts: Sequence[Int32],
    n_tokens: int,
    *,
    n_threads: int = 1,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[dict[str, Setting], dict[str, float]]:
    """The fastest setting of each kind, and the speed of all of them.

    All settings answer a question in turn, back and forth; one that is hopeless after a few
    questions is dropped. The mean of the speeds is the geometric one over the questions that
    every setting left has answered. Clears the target's cache before each answer.

    Returns
    -------
    best : the fastest setting of each kind.
    speeds : tokens per second, prefill included, of each setting up to where it was dropped.
    """
    trials = [_Trial(s, Candidates(AdjacencyMatrix(target.n_vocab, K))) for s in settings]
    left = trials
    for i, prompt in zip(count(), prompts):
        for trial in left if i % 2 == 0 else left[::-1]:
            decoder = trial.setting.decoder(
                target, trial.candidates, costs=trial.costs, n_threads=n_threads
            )
            trial.tps.append(timed(DecoderLoop(decoder), prompt, n_tokens).whole_tps)
        best_tps = _best_of_kinds(left)
        share = _KEPT[min(i, len(_KEPT) - 1)]
        left = [t for t in left if _mean(t.tps) >= share * _mean(best_tps[t.setting.kind].tps)]
        names = ", ".join(f"{t.setting.name} {_mean(t.tps):.1f}" for t in left)
        progress(f"fixed settings, question {i + 1} of {len(prompts)}: {names}")
    best = {kind: trial.setting for kind, trial in _best_of_kinds(left).items()}
    return best, {t.setting.name: round(_mean(t.tps), 2) for t in trials}


def _mean(values: Sequence[float]) -> float:
    return exp(fsum(log(v) for v in values) / len(values))


def _best_of_kinds(trials: Sequence[_Trial]) -> dict[str, _Trial]:
    best: dict[str, _Trial] = {}
    for trial in trials:
        kind = trial.setting.kind
        if kind not in best or _mean(trial.tps) > _mean(best[kind].tps):
            best[kind] = trial
    return best


def load_candidates(path: Path, fingerprint: str, n_vocab: int) -> Candidates:
    """What ``save_candidates`` kept, or empty ones where there is no file."""
    if not path.exists():
        return Candidates(AdjacencyMatrix(n_vocab, K))
    matrix, extra = matrix_file.load_with_extra(path, fingerprint, n_vocab, K)
    candidates = Candidates(matrix)
    candidates.load_arrays(extra)
    return candidates


def save_candidates(path: Path, candidates: Candidates, fingerprint: str) -> None:
    """Keep what a setting has learned, for a run that goes on later."""
    matrix_file.save(path, candidates.matrix, fingerprint, candidates.to_arrays())
