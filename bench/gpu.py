"""Measure everything on a GPU within a budget of seconds: ``python -m bench.gpu``.

Parts run in the order of their importance, each in a process of its own, so that one that
fails, hangs or aborts takes nothing with it. What is known is written after every result.

The models must be there (``edge-tr model get NAME``), and ``make peers`` builds the programs of
llama.cpp to compare with. What is missing is left out, and the last line names it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import gpu_parts
from bench.gpu_expect import conclude
from bench.gpu_runner import Bench, Part, Writer, processes, run_all
from edge_tr import models
from edge_tr.bench.peers import SERVER_TYPES, find_peers
from edge_tr.errors import ConfigError

_RESULTS = Path(__file__).resolve().parent / "results"
ARMS = (
    *("bare", "plain", "auto", "paper", "paper-keep", "recycler7", "recycler15", "recycler31"),
    *("recycler80", "recycler31-keep", "recycler31-redo", "pld"),
)
ARMS_4K = ("plain", "auto", "recycler31-keep", "recycler31-redo", "recycler80")
MODELS = (models.DEFAULT, "gemma3-q4_k_m")


def plan(args: argparse.Namespace, peers: Path | None, writer: Writer) -> list[Part]:
    """All parts, the most important first; with ``peers`` servers of llama.cpp are compared."""
    dry = args.dry_run
    width = 4 if dry else 96
    short, long, longest = (16, 32, 48) if dry else (512, 4096, 16384)
    asked = {"questions": args.questions, "n_tokens": args.tokens}
    asked["per_category"] = args.per_category
    asked |= {"per_category": 1, "n_tokens": 8} if dry else {}
    asked["n_ctx"] = 1024 if dry else 4096
    arms = asked | {"names": ARMS + (SERVER_TYPES if peers else ()), "peers": peers}
    recorded = asked | {"max_nodes": 12 if dry else 80}
    arms_4k = asked | {"names": ARMS_4K, "n_ctx": 1024 if dry else 5120}
    arms_4k |= {"n_prompt": 300 if dry else 4096, "n_tokens": min(96, asked["n_tokens"])}
    table = {"max_width": width, "contexts": (short, long, longest)}
    topk = {"max_width": min(width, 64), "n_past": short}
    probed = {"max_width": min(width, 16)}
    off = table | {"contexts": (short, long), "flash_attn": False}
    main = args.model or (
        [writer.path(name) for name in ("tiny", "tiny f16")]
        if dry
        else [models.location(name) for name in MODELS]
    )

    def each(name: str, run: Any, needs_s: float, most_s: float, options: Any) -> list[Part]:
        return [
            Part(f"{name} {path.stem}", run, needs_s, most_s, options | {"model": path})
            for path in main
        ]

    def of(name: str, options: Any, size: str, needs_s: float, most_s: float) -> Part:
        options = options | {"model": writer.path(size)}
        return Part(f"{name} {size}", gpu_parts.costs, needs_s, most_s, options)

    shape, without = partial(of, "shape", table), partial(of, "flash attention off", off)
    compared = zip(
        each("costs", gpu_parts.costs, 20, 50, table | {"threads": (1, 2, 4, 8)}),
        each("arms", gpu_parts.arms, 30, 150, arms),
        each("record", gpu_parts.record, 10, 40, recorded),
        strict=True,
    )
    return [
        Part("facts", gpu_parts.facts, 5, 30, {"model": main[0]}),
        *next(compared),
        shape("8b q4_k", 20, 50),
        *(part for parts in compared for part in parts),
        *each("host 4k", gpu_parts.arms, 25, 50, arms_4k),
        shape("8b f16", 30, 70),
        *each("topk", gpu_parts.backend_topk, 10, 20, topk),
        Part("probe", gpu_parts.probe, 10, 20, probed | {"model": main[0]}),
        *each("flash attention off", gpu_parts.costs, 10, 15, off),
        without("8b q4_k", 15, 20),
        *(shape(f"1b {kind}", 15, 25) for kind in ("q4_k", "f16", "q8_0")),
        shape("8b q8_0", 25, 40),
        *(without(f"1b {kind}", 10, 15) for kind in ("q4_k", "f16", "q8_0")),
        *(without(f"8b {kind}", 20, 30) for kind in ("f16", "q8_0")),
    ]


def _peers(args: argparse.Namespace) -> Path | None:
    """The folder of llama.cpp's programs, if there is one; a dry run takes one that was named.

    Raises
    ------
    ConfigError : the folder that was named holds none.
    """
    try:
        return find_peers(args.peers) if args.peers or not args.dry_run else None
    except ConfigError as error:
        if args.peers:
            raise
        print(f"without the servers of llama.cpp: {error}", file=sys.stderr)
        return None


def wanted_models(*, dry: bool) -> list[tuple[str, str, str]]:
    """Name, size and quantisation of each model to write, in the order of the parts."""
    if dry:
        kinds = {"8b q4_k": "q4_0", "8b f16": "f16", "8b q8_0": "q8_0", "1b q4_k": "q4_0"}
        kinds |= {"1b f16": "f16", "1b q8_0": "q8_0"}
        kinds = {"tiny": "q8_0", "tiny f16": "f16"} | kinds
        return [(name, "tiny", kind) for name, kind in kinds.items()]
    names = ("8b q4_k", "8b f16", "1b q4_k", "1b f16", "1b q8_0", "8b q8_0")
    return [(name, *name.split(" ")) for name in names]  # type: ignore[misc]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write ``bench/results/<device>.json`` and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--budget-s", type=float, default=560.0, help="seconds to spend")
    parser.add_argument(
        "--model",
        type=Path,
        action="append",
        help="GGUF file, may come again; the first one's acceptance is that of the shapes"
        " (default: SmolLM2 in Q4_0 and Gemma 3 in Q4_K_M)",
    )
    parser.add_argument("--peers", type=Path, help="folder of llama.cpp's programs")
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
    try:
        peers = _peers(args)
    except ConfigError as error:
        parser.error(str(error))
    names = [path.stem for path in args.model or []]
    for path in args.model or []:
        if not path.is_file():
            parser.error(f"--model {path} does not exist")
        if names.count(path.stem) > 1:
            parser.error(f"--model {path} is not allowed; another one is called {path.stem} too")
    processes().set_forkserver_preload(["bench.gpu_parts"])
    name = "dry run" if args.dry_run else ""
    with tempfile.TemporaryDirectory(
        prefix="edge-tr-gpu-", dir=args.scratch, ignore_cleanup_errors=True
    ) as scratch:
        bench = Bench(args.out, Path(scratch), args.budget_s, name)
        writer = Writer(Path(scratch), wanted_models(dry=args.dry_run))
        writer.start()
        try:
            run_all(bench, plan(args, peers, writer), writer)
        finally:
            writer.stop()
        line = bench.finish()
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
