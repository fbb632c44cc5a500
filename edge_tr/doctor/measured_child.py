"""Measure a model for ``edge-tr doctor --report``; run in a process that may die.

``python -m edge_tr.doctor.measured_child MODEL N_GPU_LAYERS [--quick]`` prints one JSON object
per stage: ``costs`` and ``widths`` (T(n) and the bit-equal widths in the default context),
``other_widths`` (in other contexts), ``keep_or_redo``, ``texts``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from edge_tr import tuning
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.drafting import Drafting
from edge_tr.drafts import compiled
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.equality import TextPair, compare_texts
from edge_tr.measuring.trial import Trial, random_text
from edge_tr.measuring.widths import probe_widths
from edge_tr.target import Int32

PROMPTS = (
    "Name three uses of copper and say why copper suits each of them.",
    "Write a Python function that returns the words of a text in the opposite order.",
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
)


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    budget_s: float = 8.0
    n_tokens: int = 64
    n_repeats: int = 7
    n_ctx: int = 4096


QUICK = Effort(budget_s=0.2, n_tokens=12, n_repeats=2, n_ctx=512)
"""For tests."""

_TREE_NODES = 15

Emit = Callable[..., None]


def measure(model: Model, effort: Effort, emit: Emit) -> None:
    """Measure an open model; ``emit(stage, **facts)`` takes what was found, as it is found."""
    config = ContextConfig(n_ctx=effort.n_ctx)
    own = tuning.measure(model, "default", config, budget_s=effort.budget_s, keep=True)
    emit("costs", **own.table.to_dict())
    emit("widths", **asdict(own.probe))
    emit("other_widths", **_other_widths(model, config, own.probe.n_probed))
    with LlamaTarget(model, config) as target:
        emit("keep_or_redo", **_keep_or_redo(target, own.table.contexts[-1], effort.n_repeats))
        emit("texts", **_texts(target, model, effort.n_tokens))


def _other_widths(model: Model, config: ContextConfig, max_width: int) -> dict[str, Any]:
    """Bit-equal widths without and with flash attention, by the type of the cache."""
    found = {}
    for on, cache in ((False, "f16"), (True, "f16"), (True, "q8_0")):
        other = replace(config, flash_attn=on, type_k=cache, type_v=cache)
        with LlamaTarget(model, other) as target:
            probe = probe_widths(target, max_width=max_width)
        found[f"{'' if on else 'no '}flash attention, {cache} cache"] = asdict(probe)
    return found


def _keep_or_redo(target: LlamaTarget, n_past: int, n_repeats: int) -> dict[str, Any]:
    """Seconds of the lane calls after a tree of which a path was accepted: its cells kept, or
    dropped to be decoded again (which costs T(n) at a greater n)."""
    trial = Trial(target, _TREE_NODES + 1, *random_text(target))
    trial.read(n_past)
    facts: dict[str, Any] = {"n_nodes": _TREE_NODES, "n_past": n_past}
    for name, token_s in (("keep", float("inf")), ("redo", 0.0)):
        seconds = []
        for _ in range(n_repeats):
            trial.grow(_TREE_NODES + 1)
            trial.plant()
            target.decode(trial.batch)
            path = _first_path(trial)
            started = perf_counter()
            trial.lanes.commit(1, trial.draft, path, token_s)
            trial.lanes.sync(trial.draft.n_lanes)
            seconds.append(perf_counter() - started)
            trial.lanes.rewind(n_past)
        facts[f"{name}_s"] = float(np.median(seconds))
        facts["n_accepted"] = len(path)
    return facts


def _first_path(trial: Trial) -> Int32:
    """int32[depth], the path that lies right behind the root in the batch."""
    draft, path = trial.draft, [0]
    for node in np.argsort(draft.slot[: draft.n])[1:]:
        if draft.parent[node] != path[-1]:
            break
        path.append(int(node))
    return np.array(path[1:], dtype=np.int32)


def _texts(target: LlamaTarget, model: Model, n_tokens: int) -> dict[str, Any]:
    """Greedy answers decoded plainly, with a fixed tree and as automatic mode does: whether they
    are equal, and how fast they came."""
    compiled.compile_now()
    config = DraftConfig(start="empty")
    tree = TreeTemplate.paper().prefix(_TREE_NODES)
    drafter = FixedTreeDrafter(AdjacencyMatrix(target.n_vocab, config.k), tree)
    decoders = {
        "plain": Decoder(target),
        "tree": Decoder(target, drafter),
        "auto": Drafting(target, config, model.fingerprint()).decoder,
    }
    found: dict[str, Any] = {}
    texts: dict[str, list[list[int]]] = {name: [] for name in decoders}
    prompts = [model.tokenize(text) for text in PROMPTS]
    for name, decoder in decoders.items():
        rows = []
        for prompt in prompts:
            for _ in decoder.generate(prompt, max_tokens=n_tokens):
                pass
            texts[name].append(decoder.tokens[len(prompt) :].tolist())
            rows.append(decoder.stats.to_dict())
        found[name] = rows
    for name in ("tree", "auto"):
        pairs = [
            TextPair(f"prompt {i}", prompt, texts["plain"][i], texts[name][i])
            for i, prompt in enumerate(prompts)
        ]
        report = compare_texts(target, pairs, widths=[2, 4, _TREE_NODES + 1])
        found[f"{name}_against_plain"] = report.to_dict()
    return found


def _emit(stage: str, **facts: Any) -> None:
    print(json.dumps({"stage": stage, **facts}), flush=True)


def main(arguments: list[str]) -> int:
    """Measure the model of the arguments."""
    path, n_gpu_layers = Path(arguments[0]), int(arguments[1])
    with Model(path, n_gpu_layers=n_gpu_layers) as model:
        _emit("opened", name=path.name, plain_reason=model.plain_reason)
        if not model.plain_reason:
            measure(model, QUICK if "--quick" in arguments else Effort(), _emit)
    _emit("done")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
