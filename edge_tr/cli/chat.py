"""``edge-tr chat``: a conversation in the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from edge_tr.cli import options
from edge_tr.cli.answer import save_matrix, tell
from edge_tr.cli.conversation import Conversation, command_lines
from edge_tr.cli.interrupt import Interruptible
from edge_tr.cli.output import note, write
from edge_tr.cli.progress import loading
from edge_tr.errors import ConfigError

N_HISTORY = 1000
"""Lines that the history file keeps."""

BLOCK = '"""'

_DESCRIPTION = """\
A conversation. The answers go to stdout as they are written, everything else to stderr.

A line that ends with \\ goes on in the next one; lines between two lines of \"\"\" are one
message. Ctrl-C stops an answer, what was written stays; Ctrl-D or /exit leaves. What you type
is kept in the history file of the data directory, which only you can read.

commands in the conversation:
"""
_EPILOG = """\
examples:
  edge-tr chat
  edge-tr chat -m model.gguf --system "You answer in one sentence." --temp 0.7
  edge-tr chat --ctx 16384 --flash-attn --cache-type-k q8_0 --cache-type-v q8_0
"""


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``chat`` to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "chat",
        parents=[common],
        help="talk with a model",
        description=_DESCRIPTION + "\n".join(f"  {line}" for line in command_lines()),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="instructions before the conversation")
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="most tokens of an answer (default: as many as the context holds)",
    )
    options.add_sampling(parser)
    options.add_drafting(parser)
    options.add_rpc(options.add_context(parser))
    parser.set_defaults(command=chat)


def chat(args: argparse.Namespace) -> int:
    """Talk until the user leaves."""
    if args.max_tokens is not None and args.max_tokens < 1:
        raise ConfigError(f"--max-tokens {args.max_tokens} is not allowed; it must be 1 or more")
    options.prepare_llama(args)
    options.sampling_config(args)
    settings = {
        "context": options.context_config(args),
        "draft": options.draft_config(args),
        **options.placement(args),
    }
    path = options.model_path(args)
    from edge_tr.session import Session

    with loading(path) as progress:
        session = Interruptible().run(lambda: Session(path, progress=progress, **settings))
    with session:
        tell(session, 0)
        conversation = Conversation(session, args)
        try:
            with _history():
                _talk(conversation)
        finally:
            save_matrix(session, args)
    return 0


def _talk(conversation: Conversation) -> None:
    """Read messages and commands until the end of the input or /exit."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        note("/help tells the commands")
    while True:
        try:
            text = read_message(is_terminal)
        except EOFError:
            if is_terminal:
                write("\n")
            return
        except KeyboardInterrupt:
            write("\n")
            note("/exit or Ctrl-D leaves")
            continue
        try:
            if not conversation.hear(text):
                return
        except KeyboardInterrupt:  # before the answer began
            note("interrupted")


def read_message(is_terminal: bool) -> str:
    """A message or command from stdin; it may have several lines.

    Raises
    ------
    EOFError, KeyboardInterrupt : the user wants to leave, or to write the line anew.
    """
    line = _read_line("> " if is_terminal else "")
    lines = []
    if line.strip() == BLOCK:
        with suppress(EOFError):  # the end of the input ends the block too
            while (line := _read_line("| " if is_terminal else "")).strip() != BLOCK:
                lines.append(line)
        return "\n".join(lines)
    while line.endswith("\\"):
        lines.append(line[:-1])
        line = _read_line("| " if is_terminal else "")
    return "\n".join([*lines, line])


def _read_line(prompt: str) -> str:
    try:
        return input(prompt)
    except UnicodeDecodeError as error:
        raise ConfigError(f"the input is not UTF-8 text: {error}") from None


@contextmanager
def _history() -> Iterator[None]:
    """Keep what the user types on a terminal in the history file, where readline exists."""
    try:
        import readline
    except ImportError:  # Windows
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    from edge_tr.files.paths import data_dir

    file = data_dir() / "chat_history"
    readline.set_history_length(N_HISTORY)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        readline.read_history_file(file)
    except OSError as error:
        note(f"warning: no history: {error}")
        yield
        return
    try:
        yield
    finally:
        try:
            readline.write_history_file(file)
        except OSError as error:
            note(f"warning: the history is not saved: {error}")
