"""``edge-tr demo``: the same answer with and without drafting, and what each cost."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_tr.cli import comparison, options
from edge_tr.cli.interrupt import Interruptible
from edge_tr.cli.output import note, write
from edge_tr.errors import ConfigError
from edge_tr.machine.idle import BusyCores, wait_until_quiet

if TYPE_CHECKING:
    from edge_tr.session import Session

PROMPT = """\
Correct the spelling mistakes in this letter and return the whole letter:

Dear Ms Okafor,

thank you for you're letter of 3 May. The kitchen window that you ordered has arived at our \
workshop, and we would like to fit it on Tuesday. Our two carpenters need about four hours. Please \
move the table and the chairs away from the window, so that they can reach it, and let the dog \
stay in another room. The old window will be taken away at no cost. If Tuesday does not suit you, \
call us before Friday and we will find another day.

Yours sincerely,
Anna Lindqvist"""

_PATIENCE_S = 10.0
"""Seconds to wait at most for other programs to end."""

_SETTING = "Each run starts with an empty matrix."
_SETTING_PUBLISHED = (
    f"{_SETTING} Flash attention and a q8_0 cache are in use: with them\n"
    "llama.cpp can give bit-equal results in batches of different widths, so that texts compare."
)
_DESCRIPTION = """\
Answers one prompt with plain decoding and with Token Recycling: with the paper's tree of 80
nodes, with a small tree, and with the tree that edge-tr picks itself. Shows whether the text
is the same, how fast each was, and whether drafting paid on this machine. Plain decoding runs
before and after each of them, since a machine's speed drifts; where this build has our kernels,
llama.cpp's own come first and last. The prompt asks for a corrected copy
of a letter, the kind of text that gains most; prose gains less (--prompt).
"""


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``demo`` to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        parents=[common],
        help="answer a prompt with and without drafting, and compare",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    parser.add_argument("--prompt", default=PROMPT, metavar="TEXT", help="another prompt")
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=160,
        metavar="N",
        help="tokens of each answer (default 160)",
    )
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="CPU threads (default: all cores)"
    )
    options.add_gpu_layers(parser)
    options.add_rpc(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run the comparison and show it."""
    if args.max_tokens < 1:
        raise ConfigError(f"--max-tokens {args.max_tokens} is not allowed; it must be 1 or more")
    if not args.prompt.strip():
        raise ConfigError("the prompt is empty")
    options.prepare_llama(args)
    path = options.model_path(args)
    guard = Interruptible()
    return guard.run(lambda: _compare(args, path, guard))


def _compare(args: argparse.Namespace, path: Path, guard: Interruptible) -> int:
    from edge_tr.drafts import compiled
    from edge_tr.drafts.template import SMALL_TREE, TreeTemplate

    compiled.compile_now()
    demo = _Demo(args, path, guard)
    paper = TreeTemplate.paper()
    reason = demo.prepare(paper)
    if not args.json:
        write(f"{path.name} is asked:\n\n{args.prompt}\n\nIt answers:\n\n")
    wait_until_quiet(_PATIENCE_S, lambda: note("waiting for other programs to end"))
    others = BusyCores()
    published = [demo.measure_published()] if demo.has_kernels else []
    before = demo.measure("plain decoding", "off", show=not args.json)
    comparisons = []
    for name, tree in (
        (f"paper's tree, {paper.n_nodes} nodes", paper),
        (f"small tree, {SMALL_TREE.n_nodes} nodes", SMALL_TREE),
        ("automatic choice", "auto"),
    ):
        if reason:
            break
        drafted = demo.measure(name, tree)
        after = demo.measure("plain decoding", "off")
        comparisons.append(comparison.Comparison(drafted, before, after))
        before = after
    if published:
        published.append(demo.measure_published())
    used = others()
    if args.json:
        facts = {
            "model": str(path),
            "prompt": args.prompt,
            "text": before.text,
            "plain": before.stats.to_dict(),
            "published": [run.stats.to_dict() for run in published],
            "drafted": comparison.report(comparisons),
            "plain_reason": reason,
            "cores_of_others": used,
        }
        write(json.dumps(facts) + "\n")
        return 0
    setting = _SETTING if demo.has_kernels else _SETTING_PUBLISHED
    lines = [*comparison.table(before, comparisons, published), "", setting, ""]
    lines += [reason] if reason else comparison.sentences(comparisons, used)
    if published and not reason:
        lines.append(comparison.against_published(comparisons, published))
    write("\n".join(lines) + "\n")
    return 0


class _Demo:
    def __init__(self, args: argparse.Namespace, path: Path, guard: Interruptible) -> None:
        from edge_tr.llama import kernels

        self.args = args
        self.path = path
        self.guard = guard
        self.has_kernels = kernels.active() == kernels.ALL

    def prepare(self, tree: Any) -> str:
        """Compile what is compiled on first use; why nothing can be drafted, or nothing."""
        note("preparing (the first time takes some seconds)")
        with self._open(tree) as session:
            for _ in self.guard.answer(session, session.prompt_tokens("Hello"), max_tokens=4):
                pass
            return str(session.target.plain_reason)

    def _open(self, tree: Any, **others: Any) -> Session:
        from edge_tr.config import ContextConfig, DraftConfig
        from edge_tr.session import Session

        threads = self.args.threads
        context = ContextConfig(n_ctx=1024, n_threads=threads, n_threads_batch=threads)
        if not self.has_kernels:
            context = replace(context, flash_attn=True, type_k="q8_0", type_v="q8_0")
        context = replace(context, **others)
        draft = DraftConfig(speculative=tree, start="empty")
        return Session(
            self.path,
            context=context,
            draft=draft,
            **options.placement(self.args),
            progress=note,
        )

    def measure_published(self) -> comparison.Run:
        """Plain decoding with llama.cpp's own kernels, and its default of flash attention."""
        from edge_tr.llama import kernels

        with kernels.only(0):
            return self.measure("llama.cpp alone, plain", "off", flash_attn=True)

    def measure(
        self, name: str, tree: Any, *, show: bool = False, **context: Any
    ) -> comparison.Run:
        """Answer the prompt once, from an empty matrix and an empty cache."""
        with self._open(tree, **context) as session:
            prompt = session.prompt_tokens(self.args.prompt)
            answer = self.guard.answer(session, prompt, max_tokens=self.args.max_tokens)
            for piece in answer:
                if show:
                    write(piece.text)
            if show:
                write("\n\n")
            tokens = session.decoder.tokens[len(prompt) :].tolist()
            pieces = [
                session.model.piece(t, special=True).decode("utf-8", "replace") for t in tokens
            ]
            notices = [line for line in (*session.notices, session.explain()) if line]
            run = comparison.Run(name, tokens, pieces, answer.text, session.stats, notices)
        note(f"{name}: {run.stats.decode_tps:.1f} tok/s")
        return run
