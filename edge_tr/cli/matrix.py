"""``edge-tr matrix``: look at the saved adjacency matrix, or forget it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from edge_tr.cli import options
from edge_tr.cli.output import note, write
from edge_tr.errors import MatrixFileError

_DESCRIPTION = """\
The adjacency matrix holds the most probable next tokens last seen after each token. It is
learned while text is generated and saved, so that the next run starts with it. It is kept
for each tokenizer: models that share a tokenizer share it. `show` also tells how often
the candidates of each source were the model's choice of late, by rank, the best first.
With --history FILE, `show` and `reset` are about that file of earlier texts, which other
commands keep where they are given the same option.
"""


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``matrix`` and its actions to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "matrix",
        help="show or reset what was learned for drafting",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, command, what in (
        ("show", show, "say what the saved matrix holds"),
        ("reset", reset, "delete the saved matrix; the next run starts empty"),
        ("path", path, "print the path of its file, which may not exist yet"),
    ):
        action = actions.add_parser(name, parents=[common], help=what, description=what)
        options.add_model(action)
        action.add_argument(
            "--k",
            type=int,
            default=8,
            metavar="K",
            help="candidates of each row (1 to 16, default 8)",
        )
        action.add_argument(
            "--file", type=Path, metavar="FILE", help="this file, whatever the model"
        )
        if name != "path":
            action.add_argument(
                "--history", type=Path, metavar="FILE", help="this file of earlier texts"
            )
        if name == "show":
            action.add_argument("--json", action="store_true", help="print a JSON object")
        action.set_defaults(command=command)
    _add_learn(actions, common)


def _add_learn(actions: Any, common: argparse.ArgumentParser) -> None:
    what = "learn from texts of your own: documents, code, earlier conversations"
    action = actions.add_parser(
        "learn",
        parents=[common],
        help=what,
        description=f"{what[0].upper()}{what[1:]}. What was learned is saved as it goes; the same "
        "command goes on where it was stopped, and leaves out texts that were learned before.",
    )
    action.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a text in UTF-8")
    options.add_model(action)
    action.add_argument(
        "--fast",
        action="store_true",
        help="look at the tokens only; else the model reads the texts, which takes as long as any "
        "prompt of that length",
    )
    options.add_learned(action)
    action.set_defaults(command=learn)


def learn(args: argparse.Namespace) -> int:
    """Learn, and say how much."""
    from edge_tr.learning import learn_files
    from edge_tr.session import Session

    options.prepare_llama(args)
    draft = options.learned_config(args)
    with Session(options.model_path(args), draft=draft, progress=note) as session:
        n_tokens = learn_files(session, args.files, fast=args.fast, progress=note)
        note(f"learned {n_tokens} tokens; saved to {session.matrix_path}")
    return 0


def _file(args: argparse.Namespace) -> Path:
    """The file the options mean."""
    if args.file is not None:
        return Path(args.file)
    options.prepare_llama(args)
    from edge_tr.config import DraftConfig
    from edge_tr.drafts import matrix_file
    from edge_tr.llama.model import Model

    options.configured(DraftConfig, args, {"k": "k"})
    with Model(options.model_path(args)) as model:
        return matrix_file.default_path(model.fingerprint(), args.k)


def path(args: argparse.Namespace) -> int:
    """Print the path and nothing else."""
    write(f"{_file(args)}\n")
    return 0


def show(args: argparse.Namespace) -> int:
    """Say what the file holds."""
    from edge_tr.drafts import matrix_file

    if args.history is not None:
        return _show_history(args)
    file = _file(args)
    if not file.exists():
        run = "edge-tr run" if args.k == 8 else f"edge-tr run --k {args.k}"
        raise MatrixFileError(f"no matrix is saved at {file}; `{run}` makes one")
    header = matrix_file.read_header(file)
    acceptance = _acceptance(matrix_file.read_extra(file).get("rank_counts"))
    if args.json:
        write(json.dumps({"path": str(file), **header, "acceptance": acceptance}) + "\n")
        return 0
    share = header["n_seen"] / header["n_vocab"]
    write(
        f"file       {file}, {header['size_bytes'] / 1e3:.1f} kB\n"
        f"saved      {header['saved_at']}\n"
        f"tokenizer  {header['fingerprint']}, {header['n_vocab']} tokens\n"
        f"rows       {header['n_seen']} of {header['n_vocab']} tokens have candidates "
        f"({share:.1%}), up to {header['k']} each\n"
    )
    for source, shares in acceptance.items():
        write(f"{source:<14} right: " + " ".join(f"{share:.0%}" for share in shares) + "\n")
    return 0


def _show_history(args: argparse.Namespace) -> int:
    from edge_tr.drafts import history_file

    header = history_file.read_header(args.history)
    if args.json:
        write(json.dumps({"path": str(args.history), **header}) + "\n")
        return 0
    write(
        f"file       {args.history}, {header['size_bytes'] / 1e3:.1f} kB\n"
        f"saved      {header['saved_at']}\n"
        f"tokenizer  {header['fingerprint']}, {header['n_vocab']} tokens\n"
        f"texts      {header['n_texts']}, {header['n_tokens']} tokens\n"
    )
    return 0


_SOURCES = ("two-token row", "one-token row", "matches")


def _acceptance(rank_counts: Any) -> dict[str, list[float]]:
    """Of each source, how often its candidate of each rank was the model's choice of late."""
    if rank_counts is None or rank_counts.ndim != 3 or len(rank_counts) != 2:
        return {}
    return {
        name: [round(float(h / t), 4) for h, t in zip(hits, trials, strict=True) if t > 0]
        for name, hits, trials in zip(_SOURCES, *rank_counts, strict=False)
    }


def reset(args: argparse.Namespace) -> int:
    """Delete the file."""
    from edge_tr.drafts import history_file, matrix_file

    kind = matrix_file.FILE if args.history is None else history_file.FILE
    file = _file(args) if args.history is None else Path(args.history)
    if args.file is not None or args.history is not None:
        kind.check_own(file)
    try:
        file.unlink()
    except FileNotFoundError:
        note(f"no {kind.name} is saved at {file}")
    except OSError as error:
        raise MatrixFileError(f"{file} cannot be deleted: {error.strerror}") from None
    else:
        note(f"deleted {file}")
    return 0
