"""Perplexity with our kernels and with stock llama.cpp: ``python -m bench.perplexity --json``.

The text is that of the benchmarks' questions, in pieces of 512 tokens; each token but a piece's
first is scored. It is read in batches of 8 tokens, where all of our kernels work, and of 512. Two
builds round differently, which moves the loss of each token by chance: with Spec-Bench and MBPP
(``--questions``) and the 80 pieces of the default the ratio is known to 0.05 % for SmolLM2 Q4_0,
and only to 0.3 % for Gemma 3 in Q4_K_M. ``error`` says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr import models
from edge_tr.bench.questions import load_questions
from edge_tr.config import ContextConfig
from edge_tr.decode.lanes import LaneCache
from edge_tr.errors import EdgeTRError
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.machine import facts
from edge_tr.target import Batch, Float32, Int32

from . import builds

MODELS = ("smollm2-q4_0", "gemma3-q4_k_m")
WIDTHS = (8, 512)
PIECE = 512
MOST_CHANGE = 0.001
"""By which share our perplexity may differ from stock's."""


class Scorer:
    """Reads a text with one model; made in a child process."""

    def __init__(self, model: str, n_threads: int, flash_attn: bool, questions: str | None) -> None:
        self._questions = Path(questions) if questions else None
        self._model = Model(model)
        config = ContextConfig(
            n_ctx=PIECE,
            n_threads=n_threads,
            n_threads_batch=n_threads,
            flash_attn=flash_attn,
            n_lanes=1,
        )
        self._target = LlamaTarget(self._model, config)
        self._lanes = LaneCache(self._target)
        self._batch = Batch(self._target.n_batch, 1)

    def losses(self, width: int, n_pieces: int) -> list[list[float]]:
        """-log p of each token of each piece, read in batches of ``width`` tokens."""
        questions = load_questions(self._questions)
        text = "\n\n".join(turn for question in questions for turn in question.turns)
        tokens = self._model.tokenize(text, parse_special=False)
        pieces = tokens[: len(tokens) // PIECE * PIECE].reshape(-1, PIECE)[:n_pieces]
        if len(pieces) < 2:
            raise EdgeTRError(f"the text has only {len(tokens)} tokens")
        return [self._losses(piece, width).tolist() for piece in pieces]

    def _losses(self, tokens: Int32, width: int) -> Float32:
        self._lanes.recover(0)
        found = []
        for first in range(0, len(tokens) - 1, width):
            chunk = tokens[first : min(first + width, len(tokens) - 1)]
            self._batch.set_chain(chunk, first, want_rows=len(chunk))
            rows = self._target.decode(self._batch)
            self._lanes.extend(len(chunk))
            found.append(losses(rows, tokens[first + 1 : first + 1 + len(chunk)]))
        return np.concatenate(found)


def losses(rows: Float32, following: Int32) -> Float32:
    """-log p of the token that follows each row of logits.

    Parameters
    ----------
    rows : float32[n, n_vocab].
    following : int32[n].
    """
    highest = rows.max(axis=1)
    total = np.array(
        [np.exp(row - top).sum(dtype=np.float64) for row, top in zip(rows, highest, strict=True)]
    )
    chosen = rows[np.arange(len(rows)), following]
    return np.asarray(np.log(total) + highest - chosen, dtype=np.float32)


def measure(model: Path, flash_attn: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Perplexities of one model by width: ours, stock's, and their ratio."""
    arguments = {
        "model": str(model),
        "n_threads": options.threads,
        "flash_attn": flash_attn,
        "questions": str(options.questions.resolve()) if options.questions else None,
    }
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        ours, stock = (
            stack.enter_context(
                closing(builds.Remote(folder, "bench.perplexity:Scorer", **arguments))
            )
            for folder in (builds.ours(), builds.stock())
        )
        for width in options.widths:
            one, two = (
                np.array(build.call("losses", width=width, n_pieces=options.pieces))
                for build in (ours, stock)
            )
            found[str(width)] = compare(one, two)
    return found


def compare(ours: Any, stock: Any) -> dict[str, float]:
    """Two perplexities of one text.

    Parameters
    ----------
    ours, stock : float64[pieces, tokens]; -log p.

    Returns
    -------
    ``ratio`` of ours to stock's, and ``error``, its standard error over the pieces: a rounding
    that differs moves each token's loss by chance.
    """
    by_piece = (ours - stock).mean(axis=1)
    return {
        "ours": exp(ours.mean()),
        "stock": exp(stock.mean()),
        "ratio": round(exp(by_piece.mean()), 6),
        "error": round(float(by_piece.std(ddof=1)) / len(by_piece) ** 0.5, 6),
        "token_spread": round(float((ours - stock).std()), 4),
        "n_tokens": ours.size,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.perplexity", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--pieces", type=int, default=80, help="of 512 tokens (default 80)")
    parser.add_argument("--questions", type=Path, help="directory of Spec-Bench and MBPP")
    parser.add_argument("--threads", type=int, default=facts.n_cores())
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    try:
        for name in options.models:
            path = models.path(name, lambda line: print(line, file=sys.stderr))
            for flash_attn in (False, True):
                key = f"{name}{' flash attention' if flash_attn else ''}"
                found[key] = measure(path, flash_attn, options)
                print(f"{key}: {found[key]}", flush=True)
    except EdgeTRError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    largest = max(abs(r["ratio"] - 1) for by_width in found.values() for r in by_width.values())
    result = {
        "bench": "perplexity",
        "largest_change": round(largest, 6),
        "passed": largest <= MOST_CHANGE,
        "models": found,
    }
    print(f"largest change: {largest:.4%}")
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
