"""``edge-tr doctor``: what is wrong with this build or machine, in words."""

from __future__ import annotations

import argparse
import json
from typing import Any

from edge_tr.cli import options
from edge_tr.cli.output import write

_DESCRIPTION = """\
Shows what this machine has, what the build of llama.cpp can do with it, whether it decodes, and
what to do about what is wrong. llama.cpp runs in a process of its own, so a build that crashes
is reported like anything else. The exit code is 1 when the build or the model does not work.
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
        "its layers are",
    )
    options.add_gpu_layers(parser)
    parser.add_argument(
        "--report", action="store_true", help="print one JSON object, to put into a bug report"
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Examine and tell."""
    from edge_tr import doctor

    model = None if args.model is None else options.model_path(args)
    found = doctor.report(model, n_gpu_layers=args.gpu_layers)
    write((json.dumps(found) if args.report else doctor.render(found)) + "\n")
    broken = not found["decode"]["works"] or (found["model"] or {}).get("error")
    return 1 if broken else 0
