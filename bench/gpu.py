"""Measure everything on a GPU within a budget of seconds: ``python -m bench.gpu``.

Parts run in the order of their importance, each in a process of its own, so that one that
fails, hangs or aborts takes nothing with it. What is known is written after every result.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import gpu_parts
from bench.gpu_expect import conclude
from bench.gpu_runner import Bench, Part, Writer, processes, run_all
from edge_tr import models

_RESULTS = Path(__file__).resolve().parent / "results"
ARMS = (
    *("bare", "plain", "auto", "paper", "paper-keep", "recycler7", "recycler15", "recycler31"),
    *("recycler80", "recycler31-keep", "recycler31-redo", "pld"),
)
ARMS_4K = ("plain", "auto", "recycler31-keep", "recycler31-redo", "recycler80")


def plan(args: argparse.Namespace, writer: Writer) -> list[Part]:
    """All parts, the most important first."""
    dry = args.dry_run
    width = 4 if dry else 96
    short, long, longest = (16, 32, 48) if dry else (512, 4096, 16384)
    model = args.model or (writer.path("tiny") if dry else models.location(models.DEFAULT))
    asked = {"model": model, "questions": args.questions, "n_tokens": args.tokens}
    asked["per_category"] = args.per_category
    asked |= {"per_category": 1, "n_tokens": 8} if dry else {}
    asked["n_ctx"] = 1024 if dry else 4096
    arms = asked | {"names": ARMS}
    recorded = asked | {"max_nodes": 12 if dry else 80}
    arms_4k = asked | {"names": ARMS_4K, "n_ctx": 1024 if dry else 5120}
    arms_4k |= {"n_prompt": 300 if dry else 4096, "n_tokens": min(96, asked["n_tokens"])}
    own = {"model": model, "max_width": width, "contexts": (short, long)}
    topk = {"model": model, "max_width": min(width, 64), "n_past": short}

    def of(name: str, contexts: Sequence[int] = (short, long), **more: Any) -> dict[str, Any]:
        return own | {"model": writer.path(name), "contexts": contexts} | more

    def shape(name: str, needs_s: float, most_s: float) -> Part:
        return Part(f"shape {name}", gpu_parts.costs, needs_s, most_s, of(name))

    return [
        Part("facts", gpu_parts.facts, 5, 30, {"model": model}),
        Part("costs", gpu_parts.costs, 15, 40, own | {"threads": (1, 2, 4, 8)}),
        Part("arms", gpu_parts.arms, 30, 150, arms),
        Part("record", gpu_parts.record, 10, 40, recorded),
        shape("8b q4_k", 15, 40),
        Part("host 4k", gpu_parts.arms, 25, 50, arms_4k),
        shape("8b f16", 25, 60),
        Part("topk", gpu_parts.backend_topk, 10, 20, topk),
        Part("probe", gpu_parts.probe, 10, 20, {"model": model, "max_width": min(width, 16)}),
        Part("flash attention off", gpu_parts.costs, 10, 15, own | {"flash_attn": False}),
        Part("context 16k", gpu_parts.costs, 10, 15, own | {"contexts": (longest,)}),
        Part("16k 8b q4_k", gpu_parts.costs, 15, 25, of("8b q4_k", (longest,))),
        Part("off 8b q4_k", gpu_parts.costs, 15, 20, of("8b q4_k", flash_attn=False)),
        *(shape(f"1b {kind}", 12, 15) for kind in ("q4_k", "f16", "q8_0")),
        shape("8b q8_0", 20, 30),
    ]


def wanted_models(*, dry: bool) -> list[tuple[str, str, str]]:
    """Name, size and quantisation of each model to write, in the order of the parts."""
    if dry:
        kinds = {"8b q4_k": "q4_0", "8b f16": "f16", "8b q8_0": "q8_0", "1b q4_k": "q4_0"}
        kinds |= {"1b f16": "f16", "1b q8_0": "q8_0", "tiny": "q8_0"}
        return [(name, "tiny", kinds[name]) for name in ("tiny", *kinds) if name in kinds]
    names = ("8b q4_k", "8b f16", "1b q4_k", "1b f16", "1b q8_0", "8b q8_0")
    return [(name, *name.split(" ")) for name in names]  # type: ignore[misc]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write ``bench/results/<device>.json`` and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--budget-s", type=float, default=400.0, help="seconds to spend")
    parser.add_argument("--model", type=Path, help="GGUF file (default: SmolLM2 in Q4_0)")
    parser.add_argument("--questions", type=Path, help="directory of spec_bench and mbpp.jsonl")
    parser.add_argument("--per-category", type=int, default=2, help="questions of each category")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="directory of the results")
    parser.add_argument("--scratch", type=Path, help="where shape models are written (26 GB)")
    parser.add_argument("--dry-run", action="store_true", help="tiny models, on any machine")
    parser.add_argument("--conclude", type=Path, help="only read a file of results once more")
    args = parser.parse_args(argv)
    if args.conclude:
        print(json.dumps(conclude(json.loads(args.conclude.read_text())["parts"])))
        return 0
    processes().set_forkserver_preload(["bench.gpu_parts"])
    name = "dry run" if args.dry_run else ""
    with tempfile.TemporaryDirectory(
        prefix="edge-tr-gpu-", dir=args.scratch, ignore_cleanup_errors=True
    ) as scratch:
        bench = Bench(args.out, Path(scratch), args.budget_s, name)
        writer = Writer(Path(scratch), wanted_models(dry=args.dry_run))
        writer.start()
        try:
            run_all(bench, plan(args, writer), writer)
        finally:
            writer.stop()
        line = bench.finish()
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
