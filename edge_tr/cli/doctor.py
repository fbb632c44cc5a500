"""``edge-tr doctor``: what is wrong with this build or machine, in words."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from edge_tr.cli import options
from edge_tr.cli.output import note, write
from edge_tr.errors import ModelError

_DESCRIPTION = """\
Shows what this machine has, what the build of llama.cpp can do with it, whether it decodes, and
what to do about what is wrong. llama.cpp runs in a process of its own, so a build that crashes
is reported like anything else. The exit code is 1 when the build or the model does not work.

--report makes a file to send to us: the same facts, what decode steps of 1 to 81 tokens cost here,
which of them are bit-equal, and whether drafted texts equal plain ones, all with the default model
or the one of -m. It holds no path and no name of a user or machine. It takes up to two minutes.
"""


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``doctor`` to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        parents=[common],
        help="say what is wrong with the build or the machine",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help="also load this model (a GGUF file, or a name of `edge-tr model list`) and say where "
        "its layers are and what memory it takes",
    )
    parser.add_argument(
        "--ctx", type=int, default=4096, metavar="N", help="context for its memory (default 4096)"
    )
    options.add_gpu_layers(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--report",
        metavar="FILE",
        nargs="?",
        const="-",
        help="measure, and write one JSON object to send to us (default: to stdout)",
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Examine and tell."""
    from edge_tr.doctor import findings
    from edge_tr.doctor.text import render

    if args.report is not None:
        if args.report != "-":
            options.check_writable("--report", Path(args.report))
        return _report(args)
    model = None if args.model is None else options.model_path(args)
    found = findings.report(model, n_gpu_layers=args.gpu_layers, n_ctx=args.ctx)
    write((json.dumps(found) if args.json else render(found)) + "\n")
    return _code(found)


def _report(args: argparse.Namespace) -> int:
    from edge_tr.doctor import machine_report

    model: Path | None = None
    try:
        model = options.model_path(args)
    except (ModelError, OSError) as error:
        note(f"nothing is measured, since there is no model: {error}")
    found = machine_report.gather(model, n_gpu_layers=args.gpu_layers, progress=note)
    text = json.dumps(found, indent=1) + "\n"
    if args.report == "-":
        write(text)
    else:
        Path(args.report).write_text(text, encoding="utf-8")
        note(f"written: {args.report}; have a look, then send it with an issue")
    return _code(found) or int(bool((found["measured"] or {}).get("error")))


def _code(found: dict[str, Any]) -> int:
    broken = not found["decode"]["works"] or (found["model"] or {}).get("error")
    return 1 if broken else 0
