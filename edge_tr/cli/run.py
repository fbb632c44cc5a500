"""``edge-tr run``: answer one prompt."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_tr.cli import options
from edge_tr.cli.answer import Shown, save_matrix, show_answer, tell
from edge_tr.cli.interrupt import Interruptible
from edge_tr.cli.output import OutputClosedError, note, write
from edge_tr.cli.words import statistics
from edge_tr.errors import ConfigError

if TYPE_CHECKING:
    from edge_tr.config import SamplingConfig
    from edge_tr.session import Session
    from edge_tr.target import Int32

_DESCRIPTION = """\
Answers one prompt. The answer goes to stdout as it is written, statistics to stderr.
The prompt is PROMPT, the files of -f, both one below the other, or, without either, stdin.
Ctrl-C stops: what was written stays.
"""
_EPILOG = """\
examples:
  edge-tr run "Why is the sky blue?"
  edge-tr run -f letter.txt --system "Correct the spelling." --max-tokens 1000
  git diff | edge-tr run -f - "Write a commit message." --json
  edge-tr run -m model.gguf --tree off "plain decoding, to compare"
"""


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``run`` to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        parents=[common],
        help="answer a prompt",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="the prompt (default: stdin)")
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="read the prompt, or what PROMPT is about, from a file (- is stdin; repeatable)",
    )
    options.add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="instructions before the prompt")
    parser.add_argument(
        "--no-chat",
        action="store_true",
        help="continue the prompt as it is, without the model's chat template",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=512,
        metavar="N",
        help="most tokens to generate (default 512)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object at the end: text, finish_reason, stats, model, config, notices",
    )
    options.add_sampling(parser)
    options.add_drafting(parser)
    options.add_rpc(options.add_context(parser))
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Answer the prompt of the options."""
    text = _read_prompt(args)
    if args.max_tokens < 0:
        raise ConfigError(f"--max-tokens {args.max_tokens} is not allowed; it must be 0 or more")
    if args.no_chat and args.system is not None:
        raise ConfigError("--system needs the chat template that --no-chat leaves out")
    options.prepare_llama(args)
    sampling = options.sampling_config(args)
    settings = {
        "context": options.context_config(args),
        "draft": options.draft_config(args),
        **options.placement(args),
    }
    path = options.model_path(args)
    guard = Interruptible()
    return guard.run(lambda: _run(args, text, sampling, guard, path, settings))


def _run(
    args: argparse.Namespace,
    prompt: str,
    sampling: SamplingConfig,
    guard: Interruptible,
    path: Path,
    settings: dict[str, Any],
) -> int:
    from edge_tr.session import Session

    with Session(path, progress=note, **settings) as session:
        n_told = tell(session, 0)
        tokens = _prompt_tokens(session, prompt, args)
        guard.watch(session)
        if args.verbose:
            note(f"reading {len(tokens)} tokens")
        answer = show_answer(
            session,
            tokens,
            max_tokens=args.max_tokens,
            sampling=sampling,
            guard=guard,
            show=_keep_quiet if args.json else write,
        )
        tell(session, n_told)
        save_matrix(session, args)
        if answer.output_closed:
            raise OutputClosedError
        for line in statistics(session.stats, answer.finish_reason):
            note(line)
        if session.explain():
            note(session.explain())
        if answer.error is not None:
            raise answer.error
        if args.json:
            write(json.dumps(_report(session, answer, sampling)) + "\n")
        return 130 if answer.finish_reason == "interrupted" else 0


_MAX_PROMPT_BYTES = 64 << 20


def _read_prompt(args: argparse.Namespace) -> str:
    """The prompt; of a file or stdin the last line break is dropped."""
    texts = [] if args.prompt is None else [str(args.prompt)]
    for name in args.file or ([] if texts else ["-"]):
        texts.append(_read_file(name).removesuffix("\n").removesuffix("\r"))
    text = "\n\n".join(part for part in texts if part)
    if not text.strip():
        raise ConfigError("the prompt is empty")
    return text


def _read_file(name: str) -> str:
    if name == "-" and sys.stdin.isatty():
        raise ConfigError("no prompt: give it as an argument, with -f FILE or through a pipe")
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as stream:
            data = stream.read(_MAX_PROMPT_BYTES + 1)
        if len(data) > _MAX_PROMPT_BYTES:
            raise ConfigError(
                f"the prompt of {'stdin' if name == '-' else name} is longer than "
                f"{_MAX_PROMPT_BYTES >> 20} MiB, which is the most that is read"
            )
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"the prompt file {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the prompt of {'stdin' if name == '-' else name} is not UTF-8 text: {error}"
        ) from None


def _prompt_tokens(session: Session, prompt: str, args: argparse.Namespace) -> Int32:
    if args.system is None:
        return session.prompt_tokens(prompt, chat=not args.no_chat)
    messages = [{"role": "system", "content": args.system}, {"role": "user", "content": prompt}]
    try:
        return session.model.chat_tokens(messages, must=True)
    except ConfigError as error:
        raise ConfigError(f"--system: {error}") from None


def _keep_quiet(_text: str) -> None:
    """Show nothing; the whole text comes at the end."""


def _report(session: Session, answer: Shown, sampling: SamplingConfig) -> dict[str, Any]:
    """Everything about the run, as JSON can hold it."""
    tree = session.draft.speculative
    draft = vars(session.draft) | {
        "speculative": tree if isinstance(tree, str) else [list(path) for path in tree.paths],
        "matrix_path": str(session.matrix_path),
    }
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "stats": session.stats.to_dict(),
        "model": asdict(session.model.info) | {"path": str(session.model.path)},
        "config": {
            "context": asdict(session.target.config) | {"n_ctx": session.target.n_ctx},
            "draft": draft,
            "sampling": asdict(sampling),
        },
        "notices": session.notices,
    }
