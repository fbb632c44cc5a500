"""Fit the numbers of ``edge_tr.drafts.prior``: ``python -m bench.fit_prior``.

Automatic drafting runs at several tree sizes over questions that no benchmark measures, and over
requests to copy what they hold, and counts, cell by cell, how often a candidate was right; a
logistic model with one number for the match class and one for the code of each row is fitted to
the counts. With ``--classes`` the numbers of the codes stay as they are.
"""

from __future__ import annotations

import argparse
import calendar
import colorsys
import fnmatch
import heapq
import inspect
import json
import random
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr import models
from edge_tr.bench.questions import load_questions, sample
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts import candidates as candidates_module
from edge_tr.drafts import prior
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.kernels.candidates import N_CLASSES, N_CODES
from edge_tr.session import Session

SIZES = (3, 7, 15, 31)
_SHAPE = (N_CLASSES, N_CODES, N_CODES)
_RIDGE = 2.0
_N_PASSAGES = 8
_CODE = (
    textwrap.dedent,
    textwrap.indent,
    shlex.quote,
    colorsys.rgb_to_hsv,
    heapq.nsmallest,
    heapq.merge,
    fnmatch.filter,
    calendar.monthrange,
)


def copies(source: Path | None = None) -> list[str]:
    """Requests to return, correct or quote passages of the questions, and to rename in code of
    Python's standard library."""
    mixed = random.Random(5)
    questions = sample(load_questions(source), _N_PASSAGES // 2, half="calibration")
    prompts = []
    for question in (q for q in questions if q.category in ("summarization", "rag")):
        words = question.turns[0].split("\n", 1)[-1].split()[:110]
        passage = " ".join(words)
        for i in mixed.sample(range(len(words)), min(4, len(words))):
            words[i] = words[i][::-1]
        prompts += [
            f"Return this text unchanged.\n\n{passage}",
            f"Quote the first three sentences of this text word for word.\n\n{passage}",
            "Correct the spelling of this text and return all of it.\n\n" + " ".join(words),
        ]
    rename = 'Rename the first parameter to "item" in this code and return the whole code.'
    return prompts + [f"{rename}\n\n```\n{inspect.getsource(f)[:900]}\n```" for f in _CODE]


def count(session: Session, per_category: int, n_tokens: int) -> Any:
    """float64[2, N_CELLS]; hits and trials over all questions and tree sizes, cold each size."""
    candidates_module._MAX_TRIALS = float("inf")
    total = np.zeros_like(prior.prior())
    questions = sample(load_questions(), per_category, half="calibration")
    texts = [question.turns[0] for question in questions] + copies()
    for size in SIZES:
        learned = Candidates(AdjacencyMatrix(session.model.n_vocab))
        drafter = GrownTreeDrafter(learned, n_ctx=session.target.n_ctx, max_nodes=size)
        decoder = Decoder(session.target, drafter)
        for number, text in enumerate(texts):
            print(f"{size} nodes: {number + 1} of {len(texts)}", file=sys.stderr)
            prompt = session.prompt_tokens(text)[-2000:]
            for _ in decoder.generate(prompt, max_tokens=n_tokens, stop_tokens=session.stop_tokens):
                pass
        total += learned.calibration - prior.prior()
    return total


def fit(hits: Any, trials: Any, start: Sequence[Any], fitted: Sequence[int]) -> list[Any]:
    """Base, match class, two-token code and one-token code, as log-odds that add up.

    Parameters
    ----------
    start : where each of the four starts, and what it is drawn to.
    fitted : which of them are fitted.
    """
    hits, trials = hits.reshape(_SHAPE), trials.reshape(_SHAPE)
    shapes = ((1, 1, 1), (N_CLASSES, 1, 1), (1, N_CODES, 1), (1, 1, N_CODES))
    centres = [np.reshape(part, shape) for part, shape in zip(start, shapes, strict=True)]
    parts = [centre.astype(float) for centre in centres]
    for _ in range(300):
        for part, centre in ((parts[i], centres[i]) for i in fitted):
            p = 1 / (1 + np.exp(-sum(parts)))
            axes = tuple(i for i in range(3) if part.shape[i] == 1)
            slope = (hits - trials * p).sum(axis=axes, keepdims=True) - _RIDGE * (part - centre)
            curve = (trials * p * (1 - p)).sum(axis=axes, keepdims=True) + _RIDGE
            part += np.clip(slope / curve, -0.5, 0.5)
    return [part.ravel() for part in parts]


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, fit and print; the last line is one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.fit_prior", description=__doc__)
    parser.add_argument("--model", default=models.DEFAULT)
    parser.add_argument("--per-category", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--classes", action="store_true", help="fit the match classes only")
    options = parser.parse_args(arguments)
    context = ContextConfig(n_ctx=4096, flash_attn=True, type_k="q8_0", type_v="q8_0")
    draft = DraftConfig(speculative="off", start="empty")
    with Session(models.path(options.model), context=context, draft=draft) as session:
        hits, trials = count(session, options.per_category, options.tokens)
    names = ("base", "match_class", "two_token_code", "one_token_code")
    start: list[Any] = [0.0, np.zeros(N_CLASSES), np.zeros(N_CODES), np.zeros(N_CODES)]
    if options.classes:
        start = list(prior.LOG_ODDS)
    found = fit(hits, trials, start, [1] if options.classes else range(4))
    fitted = {n: part.round(2).tolist() for n, part in zip(names, found, strict=True)}
    print(json.dumps({"trials": float(trials.sum()), "hits": float(hits.sum())} | fitted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
