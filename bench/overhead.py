"""What a decode step costs outside llama.cpp: ``python -m bench.overhead --json``.

host: everything between two ``llama_decode`` calls but the top-k, on a real model: the paper's
80 nodes and the root behind about 4,000 tokens, lane calls included, for keep, for redo, and as
the decode loop chooses (by the whole cost: a redone token costs decode time, which is not in this
figure); the cheaper of keep and redo is the result. plain: everything outside llama.cpp of a plain
step, with a drafter that is asked as where a step is thought to pay hardly ever, and without one
(means: it is asked every few steps). drafting:
proposing and learning of automatic mode alone, 64 nodes behind a text of 32,000 tokens. topk: 64
rows of 152,000 logits against NumPy's maximum of the same rows. Medians.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from edge_tr import models
from edge_tr.bench.questions import load_questions
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import CostTable
from edge_tr.decode.decoder import Decoder
from edge_tr.decode.topk import TopK, default_threads
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.draft import Draft
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.machine import facts
from edge_tr.session import Session
from edge_tr.stats import Stats
from edge_tr.target import Int32

from .gpu_arms import ForcedCosts

PARTS = ("draft_s", "lanes_s", "sample_s", "recycle_s")


TOKEN_S = {"keep": float("inf"), "redo": 0.0, "chosen": None}
"""What a redone token is said to cost, so that one way is forced; None leaves the choice."""


def host_steps(
    model: str, n_ctx: int, n_past: int, n_steps: int, token_s: float | None
) -> dict[str, float]:
    """Milliseconds per step outside decode and top-k, whole and by part."""
    paper = TreeTemplate.paper()
    draft = DraftConfig(speculative=paper, start="random")
    with Session(models.path(model), context=ContextConfig(n_ctx=n_ctx), draft=draft) as session:
        text = "\n\n".join(turn for q in load_questions() for turn in q.turns)
        prompt = session.prompt_tokens(text, chat=False)[:n_past]
        decoder = session.decoder
        if token_s is not None:
            costs, n_threads = ForcedCosts(token_s), default_threads()
            decoder = Decoder(session.target, decoder.drafter, costs=costs, n_threads=n_threads)
        steps = decoder.generate(prompt)
        found: dict[str, list[float]] = {name: [] for name in ("host", *PARTS)}
        next(steps)
        before = replace(decoder.stats)
        for _ in range(n_steps):
            if next(steps, None) is None:
                break
            after = replace(decoder.stats)
            if after.n_drafted - before.n_drafted == paper.n_nodes:
                _note(found, before, after)
            before = after
    if not found["host"]:
        raise SystemExit("no step drafted the whole tree; give a longer --past")
    return {name: round(float(np.median(ms)), 4) for name, ms in found.items()} | {
        "n_steps": len(found["host"])
    }


def _note(found: dict[str, list[float]], before: Stats, after: Stats) -> None:
    def spent(name: str) -> float:
        return 1e3 * float(getattr(after, name) - getattr(before, name))

    found["host"].append(spent("total_s") - spent("decode_s") - spent("topk_s"))
    for part in PARTS:
        found[part].append(spent(part))


def plain_steps(model: str, n_tokens: int, n_repeats: int) -> dict[str, float]:
    """Milliseconds per plain step outside decode, with an automatic drafter whose table says that
    nothing pays and without one, in turn."""
    text = load_questions()[0].turns[0]
    width = 81
    steep = CostTable((1, width), (0,), ((1e-3, 1e3),))
    draft = DraftConfig(speculative="off")
    with Session(models.path(model), draft=draft) as session:
        target, costs = session.target, StepCosts(steep, width)
        drafter = GrownTreeDrafter(
            Candidates(AdjacencyMatrix(target.n_vocab)),
            n_ctx=target.n_ctx,
            costs=costs,
            max_lanes=target.n_lanes,
            harvest=False,
        )
        decoders = {"asked": Decoder(target, drafter, costs=costs), "off": session.decoder}
        prompt = session.prompt_tokens(text)
        found: dict[str, list[float]] = {name: [] for name in decoders}
        for _ in range(n_repeats):
            for name, decoder in decoders.items():
                steps = decoder.generate(prompt, max_tokens=n_tokens)
                next(steps)
                before = replace(decoder.stats)
                while next(steps, None) is not None:
                    after = replace(decoder.stats)
                    if after.n_plain_steps > before.n_plain_steps:
                        outside_s = (after.total_s - after.decode_s) - (
                            before.total_s - before.decode_s
                        )
                        found[name].append(1e3 * outside_s)
                    before = after
    return {name: round(float(np.mean(ms)), 4) for name, ms in found.items()}


def drafting(n_vocab: int, n_text: int, n_nodes: int, n_steps: int) -> dict[str, float]:
    """Milliseconds per step of automatic drafting, without a model: propose and learn."""
    rng = np.random.default_rng(0)
    words = [rng.integers(0, n_vocab, int(n)).astype(np.int32) for n in rng.integers(2, 12, 3000)]
    picked = [words[int(i)] for i in rng.integers(0, len(words), n_text // 6 + 1)]
    text = np.concatenate(picked)[:n_text]
    recycler = GrownTreeDrafter(
        Candidates(AdjacencyMatrix(n_vocab)), n_ctx=n_text + 2 * n_steps, max_nodes=n_nodes
    )
    draft = Draft(n_nodes)
    ids = rng.integers(0, n_vocab, (n_text, 8)).astype(np.int32)
    ids[:-1, 0] = text[1:]
    values = -np.sort(rng.random((n_text, 8), dtype=np.float32) * 8, axis=1)
    recycler.learn_prompt(text, ids, values)
    recycler.begin(text)
    propose_ms, learn_ms, n_drafted = [], [], []
    root = int(text[-1])
    none: Int32 = np.zeros(0, dtype=np.int32)
    for i in range(n_steps):
        draft.reset(root, n_past=n_text + i)
        started = perf_counter()
        recycler.propose(draft, max_nodes=n_nodes, max_depth=n_nodes)
        proposed = perf_counter()
        draft.plan()
        rows = slice(i, i + draft.n)
        root = int(rng.choice(text))
        learning = perf_counter()
        recycler.learn(draft, ids[rows], values[rows], none, [root])
        learn_ms.append(1e3 * (perf_counter() - learning))
        propose_ms.append(1e3 * (proposed - started))
        n_drafted.append(draft.n - 1)
    total = np.array(propose_ms) + np.array(learn_ms)
    return {
        "total": round(float(np.median(total)), 4),
        "propose": round(float(np.median(propose_ms)), 4),
        "learn": round(float(np.median(learn_ms)), 4),
        "n_nodes": float(np.median(n_drafted)),
        "n_text": n_text,
    }


def topk(n_rows: int, n_vocab: int, n_threads: int, n_repeats: int) -> dict[str, float]:
    """Top-k over NumPy's maximum of the same array, in turn; medians."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((n_rows, n_vocab), dtype=np.float32) * 3
    one, many = TopK(8), TopK(8, n_threads)
    times: dict[str, list[float]] = {"max": [], "one": [], "many": []}
    jobs: dict[str, Callable[[], object]] = {
        "max": lambda: logits.max(axis=1),
        "one": lambda: one(logits),
        "many": lambda: many(logits),
    }
    for job in jobs.values():
        job()
    for _ in range(n_repeats):
        for name, job in jobs.items():
            times[name].append(_ms(job))
    ms = {name: float(np.median(t)) for name, t in times.items()}
    return {
        "topk_over_max": round(ms["one"] / ms["max"], 3),
        f"topk_over_max_{n_threads}_threads": round(ms["many"] / ms["max"], 3),
        "max_ms": round(ms["max"], 3),
    }


def _ms(job: Callable[[], object]) -> float:
    started = perf_counter()
    job()
    return 1e3 * (perf_counter() - started)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the last line is one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--model", default=models.DEFAULT)
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--past", type=int, default=3900)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--vocab", type=int, default=152_064)
    parser.add_argument("--threads", type=int, default=max(2, os.cpu_count() or 1))
    options = parser.parse_args(arguments)
    ways = {
        name: host_steps(options.model, options.ctx, options.past, options.steps, token_s)
        for name, token_s in TOKEN_S.items()
    }
    host = min(ways["keep"], ways["redo"], key=lambda way: way["host"])
    found = topk(64, options.vocab, options.threads, 15)
    result: dict[str, Any] = {
        "host_ms_per_step": host["host"],
        "topk_over_max": found["topk_over_max"],
        "host_ms_by_way": {name: way["host"] for name, way in ways.items()},
        "parts_ms": {part.removesuffix("_s"): host[part] for part in PARTS},
        "plain_ms_per_step": plain_steps(options.model, 128, 9),
        "drafting_ms_per_step": drafting(49_152, 32_000, 64, 200),
        "topk": found,
        "measured_on": {
            "processor": facts.processor(),
            "cores": facts.n_cores(),
            "model": options.model,
            "nodes": TreeTemplate.paper().n_nodes,
            "n_ctx": options.ctx,
            "n_past": options.past,
            "n_steps": host["n_steps"],
        },
    }
    for name in (
        "host_ms_per_step",
        "host_ms_by_way",
        "parts_ms",
        "plain_ms_per_step",
        "drafting_ms_per_step",
        "topk",
    ):
        print(f"{name}: {result[name]}")
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
