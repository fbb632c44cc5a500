"""What the commands that answer share: prompts, an answer written while it comes, its end."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edge_tr.cli.interrupt import Interruptible
from edge_tr.cli.output import OutputClosedError, note, write
from edge_tr.errors import CancelledError, ConfigError, DecodeError, MatrixFileError

if TYPE_CHECKING:
    from edge_tr.config import SamplingConfig
    from edge_tr.session import Session
    from edge_tr.target import Int32


@dataclass
class Answer:
    """What came out, and why it ended."""

    parts: list[str] = field(default_factory=list)
    finish_reason: str = ""
    output_closed: bool = False
    error: DecodeError | None = None

    @property
    def text(self) -> str:
        return "".join(self.parts)


def chat_tokens(session: Session, messages: list[dict[str, str]]) -> Int32:
    """Token ids of a conversation that the assistant is to continue, int32[n].

    Raises
    ------
    ConfigError : the model has no chat template, or the template refuses the messages.
    """
    tokens = session.model.chat_tokens(messages)
    if tokens is None:
        raise ConfigError(f"{session.model.path.name} has no chat template")
    return tokens


def generate(
    session: Session,
    tokens: Int32,
    *,
    max_tokens: int | None,
    sampling: SamplingConfig,
    guard: Interruptible,
    show: Callable[[str], None] = write,
) -> Answer:
    """Answer a prompt; ``show`` gets each part of the text at once.

    Raises
    ------
    ConfigError, PromptTooLongError : before anything is decoded.
    """
    answer = Answer()
    texts = guard.stream(session, tokens, max_tokens=max_tokens, sampling=sampling)
    try:
        for text in texts:
            answer.parts.append(text)
            show(text)
        answer.finish_reason = _finish_reason(session, max_tokens)
    except CancelledError:
        answer.finish_reason = "interrupted"
    except DecodeError as error:
        answer.finish_reason, answer.error = "error", error
    except OutputClosedError:
        answer.output_closed = True
        return answer
    if answer.text and not answer.text.endswith("\n"):
        show("\n")
    return answer


def _finish_reason(session: Session, max_tokens: int | None) -> str:
    n_tokens = session.stats.n_tokens
    if n_tokens and int(session.decoder.tokens[-1]) in session.stop_tokens:
        return "stop"
    return "length" if n_tokens == max_tokens else "context"


def tell(session: Session, first: int) -> int:
    """Show the notices from number ``first`` on; how many there are."""
    for line in session.notices[first:]:
        note(line)
    return len(session.notices)


def save_matrix(session: Session, args: argparse.Namespace) -> None:
    """Save what was learned, where the options want that."""
    learned = session.decoder.drafter is not None and session.stats.n_tokens > 0
    own_start = session.draft.start == "inherited" or args.matrix is not None
    if args.no_save or not learned or not own_start:
        return
    try:
        session.save_matrix()
    except MatrixFileError as error:
        note(f"warning: what was learned is not saved: {error}")
