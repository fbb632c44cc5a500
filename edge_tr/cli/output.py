"""Where words go: the answer to stdout, everything about it to stderr."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys


class OutputClosedError(Exception):
    """Whoever reads stdout has closed it; not a failure."""


def note(line: str) -> None:
    """Tell the user one line on stderr."""
    if sys.stderr is not None:
        print(f"edge-tr: {line}", file=sys.stderr, flush=True)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(self.format(record))


def show_log() -> None:
    """From now on tell the user what the package logs: what takes long, and warnings."""
    logger = logging.getLogger("edge_tr")
    if not any(isinstance(handler, _Notes) for handler in logger.handlers):
        logger.addHandler(_Notes())
    logger.setLevel(logging.INFO)


def write(text: str) -> None:
    """Write a part of the answer to stdout, at once.

    Raises
    ------
    OutputClosedError : the reader closed it.
    OSError : it cannot be written for another reason, such as a full disk.
    """
    if sys.stdout is None:  # it was closed before the process began
        raise OutputClosedError
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.EPIPE or (os.name == "nt" and error.errno == errno.EINVAL):
            raise OutputClosedError from None
        discard_stdout()
        raise


def prepare_stdout() -> None:
    """A character that the terminal's encoding lacks becomes ``?``, not an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        piped_on_windows = os.name == "nt" and not sys.stdout.isatty()
        sys.stdout.reconfigure(encoding="utf-8" if piped_on_windows else None, errors="replace")


def discard_stdout() -> None:
    """Send what Python still wants to flush nowhere, so that it ends without complaint."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
