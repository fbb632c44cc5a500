"""What the commands that answer share: prompts, an answer written while it comes, its end."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge_tr.cli.interrupt import Interruptible
from edge_tr.cli.output import OutputClosedError, note, write
from edge_tr.errors import CancelledError, DecodeError, MatrixFileError

if TYPE_CHECKING:
    from edge_tr.answer import Answer
    from edge_tr.config import SamplingConfig
    from edge_tr.session import Session
    from edge_tr.target import Int32


@dataclass
class Shown:
    """An answer that was written to the user, and why it ended.

    Attributes
    ----------
    finish_reason : as of an ``Answer``, or "interrupted" or "error".
    """

    answer: Answer
    finish_reason: str = ""
    output_closed: bool = False
    error: DecodeError | None = None

    @property
    def text(self) -> str:
        return self.answer.text


def show_answer(
    session: Session,
    tokens: Int32,
    *,
    max_tokens: int | None,
    sampling: SamplingConfig,
    guard: Interruptible,
    show: Callable[[str], None] = write,
) -> Shown:
    """Answer a prompt; ``show`` gets each part of the text at once.

    Raises
    ------
    ConfigError, PromptTooLongError : before anything is decoded.
    """
    answer = guard.answer(session, tokens, max_tokens=max_tokens, sampling=sampling)
    shown = Shown(answer)
    try:
        for piece in answer:
            if piece.text:
                show(piece.text)
        shown.finish_reason = answer.finish_reason or ""
    except CancelledError:
        shown.finish_reason = "interrupted"
    except DecodeError as error:
        shown.finish_reason, shown.error = "error", error
    except OutputClosedError:
        shown.output_closed = True
        return shown
    if answer.text and not answer.text.endswith("\n"):
        show("\n")
    return shown


def tell(session: Session, first: int) -> int:
    """Show the notices from number ``first`` on; how many there are."""
    for line in session.notices[first:]:
        note(line)
    return len(session.notices)


def save_matrix(session: Session, args: argparse.Namespace) -> None:
    """Save what was learned, where the options want that."""
    if args.no_save or not session.has_learned:
        return
    try:
        if session.draft.start == "inherited" or args.matrix is not None:
            session.save_matrix()
        else:
            session.save_history()
    except MatrixFileError as error:
        note(f"warning: what was learned is not saved: {error}")
