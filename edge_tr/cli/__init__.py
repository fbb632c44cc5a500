"""The command line: ``edge-tr COMMAND``. Heavy imports stay inside the commands."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from edge_tr import __version__
from edge_tr.cli import bench, chat, demo, doctor, matrix, model, rpc_server, run, serve, tune
from edge_tr.cli.output import OutputClosedError, discard_stdout, note, prepare_stdout, write
from edge_tr.errors import CancelledError, ConfigError, EdgeTRError, ModelError

OK, FAILED, USAGE, MODEL, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes; 0 also when the reader of the output closed it."""

EXIT_CODES = """\
exit codes:
  0    done
  1    something failed while running
  2    wrong usage, or a value that is not allowed
  3    the model is missing, damaged or cannot be used
  130  interrupted with Ctrl-C

Each command explains its options: edge-tr COMMAND --help
"""
_COMMANDS = (run, chat, serve, demo, tune, bench, doctor, model, matrix, rpc_server)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, and no usage text that pushes it off the screen."""
        note(f"error: {message}; see {self.prog} --help")
        sys.exit(USAGE)


def make_parser() -> argparse.ArgumentParser:
    """The parser of every command; ``args.command`` is the function to run."""
    parser = _Parser(
        prog="edge-tr",
        description="Makes a GGUF model answer faster on the machine it is on, with the same "
        "answer: drafts by Token Recycling, verified by llama.cpp.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"edge-tr {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--verbose", action="store_true", help="show llama.cpp's log, and where an error arose"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add_command(commands, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Raises
    ------
    SystemExit : after --help and --version, and on wrong usage.
    """
    words = sys.argv[1:] if argv is None else argv
    args, unknown = make_parser().parse_known_args(words)
    if unknown:
        command = next(word for word in words if not word.startswith("-"))
        note(f"error: unrecognized arguments: {' '.join(unknown)}; see edge-tr {command} --help")
        return USAGE
    prepare_stdout()
    try:
        code: int = args.command(args)
        write("")
        return code
    except OutputClosedError:
        discard_stdout()
        return OK
    except (CancelledError, KeyboardInterrupt):
        note("interrupted")
        return INTERRUPTED
    except Exception as error:  # the end of the line: every failure becomes one line and a code
        if args.verbose:
            traceback.print_exc()
        return _report(error)


def _report(error: Exception) -> int:
    text = " ".join(str(error).splitlines())
    if not isinstance(error, (EdgeTRError, OSError)):
        text = f"unexpected {type(error).__name__}: {text} (--verbose shows where)"
    note(f"error: {text}")
    if isinstance(error, ModelError):
        return MODEL
    return USAGE if isinstance(error, ConfigError) else FAILED
