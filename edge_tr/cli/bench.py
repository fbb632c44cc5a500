"""``edge-tr bench``: every method and every experiment of the paper, on this machine."""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_tr.cli import options
from edge_tr.cli.output import note, write
from edge_tr.errors import ConfigError

if TYPE_CHECKING:
    from edge_tr.bench.job import Options

_EXPERIMENTS = {
    "main": "every method on every kind of task: speed, mean accepted tokens, equal texts",
    "start": "how the matrix starts: empty, random, inherited, from a file, shuffled prompts",
    "update": "write back every node, or the accepted path only",
    "tree": "nodes, breadth and depth of the draft tree",
    "k": "candidates of a row, 1 to 16",
    "temperature": "temperature 0 to 1",
    "step": "time of a decode step: decode, top-k, draft, update, lanes, sampling",
    "context": "prompts of 512 to 32768 tokens (--values 512,2048)",
    "quant": "quantisations (--values smollm2-f16,smollm2-q4_0)",
    "shapes": "shapes of larger models by cost (--values 0.5b,1b,3b,8b); makes big files",
    "memory": "memory of each method",
}
_OTHER = {
    "all": "every experiment, one after the other",
    "report": "draw the page and the pictures of --out anew",
    "compare": "what changed beyond the noise from A.json to B.json",
}
_DESCRIPTION = """\
Measures Token Recycling, other methods and plain decoding on the same model file, prompts,
threads and context, and writes one HTML page with pictures. Nothing else should run meanwhile.
llama.cpp's own programs take part once `make peers` has built them. A run that was stopped goes
on from where it was if it is started again with the same --out.
"""
_EPILOG = (
    "experiments:\n"
    + "\n".join(f"  {name:<13}{what}" for name, what in {**_EXPERIMENTS, **_OTHER}.items())
    + """

examples:
  edge-tr bench --quick --out results
  edge-tr bench -m model.gguf --questions spec_bench.jsonl --per-category 10 --out results
  edge-tr bench tree --quick --out results
  edge-tr bench --methods auto,paper,ngram-mod --out results
  edge-tr bench compare before/main.json after/main.json
"""
)


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``bench`` to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        parents=[common],
        help="measure every method and the paper's experiments on this machine",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "experiment",
        nargs="?",
        default="main",
        choices=[*_EXPERIMENTS, *_OTHER],
        metavar="EXPERIMENT",
        help="one of those below (default main)",
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="results, for compare")
    options.add_model(parser)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one question of each category and fewer values; the main table takes under 20 "
        "minutes on 2 cores",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep results, report and records of the run here"
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    _add_measuring(parser)
    options.add_context(parser)
    parser.set_defaults(command=run, tree="auto")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--questions",
        type=Path,
        metavar="PATH",
        help="directory of spec_bench.jsonl and mbpp.jsonl, or one file of that format (default: "
        "../shared/data beside a clone, else the small set that comes with edge-tr)",
    )
    group.add_argument(
        "--per-category",
        type=int,
        metavar="N",
        help="questions of each category (default 10 in main, 2 in the others, 1 with --quick)",
    )
    group.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="most tokens of each answer (default 128 in main, 64 in the others)",
    )
    group.add_argument("--methods", metavar="A,B", help="only these methods beside plain decoding")
    group.add_argument("--values", metavar="A,B", help="only these lengths, models or sizes")
    group.add_argument(
        "--datastore",
        type=Path,
        metavar="FILE",
        help="text or .jsonl file that REST retrieves from (default: Python's standard library)",
    )
    group.add_argument(
        "--draft-model", type=Path, metavar="FILE", help="GGUF of a draft model for llama-server"
    )
    group.add_argument(
        "--draft-type",
        default="draft-simple",
        metavar="TYPE",
        help="llama-server's --spec-type for it, such as draft-eagle3 (default draft-simple)",
    )
    group.add_argument(
        "--peers",
        type=Path,
        metavar="DIR",
        help="folder of llama-server, llama-lookahead and llama-lookup (default: what `make "
        "peers` built)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, compare, or draw."""
    if args.experiment == "compare":
        return _compare(args)
    if args.files:
        raise ConfigError(f"{args.files[0]} is not allowed here; only compare takes files")
    if args.experiment == "report":
        return _report(args)
    for flag, value, users in (
        ("--values", args.values, ("context", "quant", "shapes")),
        ("--methods", args.methods, ("main", "all")),
    ):
        if value is not None and args.experiment not in users:
            used = ", ".join(users)
            raise ConfigError(f"{flag} does nothing in {args.experiment}; only in {used}")
    for flag, number, least in (
        ("--per-category", args.per_category, 1),
        ("--tokens", args.tokens, 2),
    ):
        if number is not None and number < least:
            raise ConfigError(f"{flag} {number} is not allowed; it must be {least} or more")
    for flag, file in (("--datastore", args.datastore), ("--draft-model", args.draft_model)):
        if file is not None and not file.is_file():
            raise ConfigError(f"{flag} {file} does not exist")
    options.prepare_llama(args)
    if args.peers is not None:
        from edge_tr.bench.peers import find_peers

        find_peers(args.peers)
    if threading.current_thread() is threading.main_thread():  # servers must not outlive us
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    path = options.model_path(args)
    with ExitStack() as stack:
        out = args.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            return _measure(args, _job_options(args, path, out))
        except KeyboardInterrupt:
            note("stopped; the same command goes on from here" if args.out else "nothing is kept")
            raise


def _job_options(args: argparse.Namespace, path: Path, out: Path) -> Options:
    from dataclasses import replace

    from edge_tr.bench.job import Options
    from edge_tr.bench.methods import Sources
    from edge_tr.gguf_file.info import inspect
    from edge_tr.machine import facts

    context = options.context_config(args)
    n_threads = context.n_threads or facts.n_cores()
    n_ctx = context.n_ctx or inspect(path).n_ctx_train or 4096
    context = replace(context, n_threads=n_threads, n_threads_batch=n_threads, n_ctx=n_ctx)
    return Options(
        path,
        context,
        out,
        n_gpu_layers=args.gpu_layers,
        quick=args.quick,
        per_category=args.per_category,
        n_tokens=args.tokens,
        questions=args.questions,
        methods=_list(args.methods),
        values=_list(args.values),
        sources=Sources(args.datastore, args.draft_model, args.draft_type, args.peers),
    )


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def _measure(args: argparse.Namespace, wanted: Options) -> int:
    from edge_tr.bench.job import run_job, without_answers
    from edge_tr.bench.pictures import can_draw, heading
    from edge_tr.bench.report import text_table, write_report

    try:
        wanted.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {wanted.out} cannot be made: {error.strerror or error}") from None
    results: dict[str, dict[str, Any]] = {}
    for name in _EXPERIMENTS if args.experiment == "all" else (args.experiment,):
        note(f"{name}: {_EXPERIMENTS[name]}")
        result = results[name] = without_answers(run_job(name, wanted, note))
        write("\n".join([heading(result), *text_table(result), ""]))
        if args.out:
            note(f"report: {write_report(args.out)}")
    if args.out and not can_draw():
        note("no pictures: install them with pip install 'edge-tr[bench]'")
    if args.json:
        found = results if args.experiment == "all" else results[args.experiment]
        write(json.dumps(found) + "\n")
    return 0


def _report(args: argparse.Namespace) -> int:
    from edge_tr.bench.report import write_report

    if args.out is None or not args.out.is_dir():
        raise ConfigError("report needs --out DIR, the directory of an earlier run")
    write(f"{write_report(args.out)}\n")
    return 0


def _compare(args: argparse.Namespace) -> int:
    from edge_tr.bench.compare import compare, read_result, text

    if len(args.files) != 2:
        raise ConfigError("compare needs two results: edge-tr bench compare A.json B.json")
    found = compare(*(read_result(file) for file in args.files))
    write("\n".join([*text(found), ""]))
    if args.json:
        write(json.dumps(found) + "\n")
    return 0
