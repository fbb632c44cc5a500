"""The conversation of ``edge-tr chat``: messages, answers, and slash commands."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edge_tr.cli import options
from edge_tr.cli.answer import show_answer, tell
from edge_tr.cli.interrupt import Interruptible
from edge_tr.cli.output import OutputClosedError, note
from edge_tr.cli.words import ENDS, statistics
from edge_tr.errors import ConfigError, ModelUnsupportedError, PromptTooLongError

if TYPE_CHECKING:
    from edge_tr.session import Session


class Conversation:
    """Messages, and what the user can do with them.

    Parameters
    ----------
    session : the open model.
    args : options of the command.

    Raises
    ------
    ModelUnsupportedError : the model has no chat template.
    """

    def __init__(self, session: Session, args: argparse.Namespace) -> None:
        self._session, self._args = session, args
        self._system: str | None = args.system
        self._turns: list[dict[str, str]] = []
        self._finish_reason = ""
        if session.model.chat_template is None:
            raise ModelUnsupportedError(
                f"{session.model.path.name} has no chat template; `edge-tr run` continues a text"
            )

    def hear(self, text: str) -> bool:
        """Answer a message or do a command; whether the conversation goes on."""
        try:
            if text.startswith("/") and "\n" not in text:
                return self._command(text)
            if text.strip():
                self._ask(text)
        except ConfigError as error:
            note(f"error: {error}")
        return True

    def _messages(self) -> list[dict[str, str]]:
        first = [] if self._system is None else [{"role": "system", "content": self._system}]
        return first + self._turns

    def _ask(self, text: str) -> None:
        """Answer a message; one that cannot be answered is forgotten."""
        self._turns.append({"role": "user", "content": text})
        try:
            self._answer()
        except (ConfigError, KeyboardInterrupt):
            self._turns.pop()
            raise

    def _answer(self) -> None:
        session, guard = self._session, Interruptible(self._session)
        tokens = session.model.chat_tokens(self._messages(), must=True)
        n_told = len(session.notices)
        try:
            answer = guard.run(
                lambda: show_answer(
                    session,
                    tokens,
                    max_tokens=self._args.max_tokens,
                    sampling=options.sampling_config(self._args),
                    guard=guard,
                )
            )
        except PromptTooLongError as error:
            drop = "/drop forgets the oldest message and its answer, /reset all of them, and "
            raise ConfigError(
                f"{error}; {drop if len(self._turns) > 1 else ''}--ctx makes more room"
            ) from None
        tell(session, n_told)
        if answer.output_closed:
            raise OutputClosedError
        self._finish_reason = answer.finish_reason
        self._turns.append({"role": "assistant", "content": answer.text})
        if answer.error is not None:
            note(f"error: {answer.error}")
        elif answer.finish_reason == "context":
            note("the context is full; /drop forgets the oldest message and its answer")
        elif answer.finish_reason != "stop":
            note(ENDS[answer.finish_reason])

    def _command(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        if name in ("/exit", "/quit"):
            return False
        command = _COMMANDS.get(name)
        if command is None:
            raise ConfigError(f"there is no command {name}; /help tells them")
        command[0](self, rest.strip())
        return True

    def help(self, _rest: str) -> None:
        """Tell the commands."""
        for line in command_lines():
            note(line)

    def stats(self, _rest: str) -> None:
        """Tell what the last answer did."""
        if not self._finish_reason:
            raise ConfigError("there is no answer yet")
        for line in statistics(self._session.stats, self._finish_reason):
            note(line)
        if self._session.explain():
            note(self._session.explain())

    def system(self, rest: str) -> None:
        """Change the instructions, or tell them."""
        if rest:
            self._system = rest
        note(f"system: {self._system or '(none)'}")

    def reset(self, _rest: str) -> None:
        """Forget the conversation."""
        self._turns.clear()
        note("a new conversation")

    def drop(self, _rest: str) -> None:
        """Forget the oldest message and its answer."""
        if not self._turns:
            raise ConfigError("there is nothing to forget")
        del self._turns[:2]
        note(f"messages with their answers that are left: {len(self._turns) // 2}")

    def retry(self, _rest: str) -> None:
        """Answer the last message once more."""
        if not self._turns:
            raise ConfigError("there is no message yet")
        old = self._turns.pop()
        try:
            self._answer()
        except (ConfigError, KeyboardInterrupt):
            self._turns.append(old)
            raise

    def save(self, rest: str) -> None:
        """Write the conversation to a file."""
        if not rest:
            raise ConfigError("/save needs the name of a file")
        text = json.dumps(self._messages(), ensure_ascii=False, indent=1) + "\n"
        try:
            with Path(rest).expanduser().open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise ConfigError(f"{rest} exists already; use another name") from None
        except OSError as error:
            raise ConfigError(f"{rest} cannot be written: {error.strerror}") from None
        note(f"saved to {rest}")


_COMMANDS: dict[str, tuple[Callable[[Conversation, str], None], str, str]] = {
    "/help": (Conversation.help, "", "tell the commands"),
    "/stats": (Conversation.stats, "", "tell what the last answer did"),
    "/system": (Conversation.system, "TEXT", "change the instructions; without TEXT tell them"),
    "/retry": (
        Conversation.retry,
        "",
        "answer the last message once more (another way with --temp)",
    ),
    "/drop": (Conversation.drop, "", "forget the oldest message and its answer"),
    "/reset": (Conversation.reset, "", "forget the conversation"),
    "/save": (Conversation.save, "FILE", "write the conversation to a file, as JSON"),
}


def command_lines() -> list[str]:
    rows = [(f"{name} {what}", told) for name, (_, what, told) in _COMMANDS.items()]
    return [f"{name:<14}{told}" for name, told in (*rows, ("/exit", "leave; so does Ctrl-D"))]
