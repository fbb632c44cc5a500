"""Fit the numbers of ``edge_tr.calibration``: ``python -m bench.fit_prior``.

Automatic drafting runs at several tree sizes over questions that no benchmark measures and
counts, cell by cell, how often a candidate was right; a logistic model with one number for the
match class and one for the code of each row is fitted to the counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_tr import candidates as candidates_module
from edge_tr import models
from edge_tr.adjacency import AdjacencyMatrix
from edge_tr.bench.questions import load_questions, sample
from edge_tr.calibration import prior
from edge_tr.candidates import Candidates
from edge_tr.config import DraftConfig
from edge_tr.generate import Decoder
from edge_tr.kernels.candidates import N_CLASSES, N_CODES
from edge_tr.llama.target import ContextConfig
from edge_tr.recycler import Recycler
from edge_tr.session import Session

SIZES = (3, 7, 15, 31)
_SHAPE = (N_CLASSES, N_CODES, N_CODES)
_RIDGE = 2.0


def count(session: Session, per_category: int, n_tokens: int) -> Any:
    """float64[2, N_CELLS]; hits and trials over all questions and tree sizes, cold each size."""
    candidates_module._MAX_TRIALS = float("inf")
    total = np.zeros_like(prior())
    for size in SIZES:
        learned = Candidates(AdjacencyMatrix(session.model.n_vocab))
        drafter = Recycler(learned, n_ctx=session.target.n_ctx, max_nodes=size)
        decoder = Decoder(session.target, drafter)
        for question in sample(load_questions(), per_category, half="calibration"):
            print(f"{size} nodes: {question.id}", file=sys.stderr)
            prompt = session.prompt_tokens(question.turns[0])[-2000:]
            for _ in decoder.generate(prompt, max_tokens=n_tokens, stop_tokens=session.stop_tokens):
                pass
        total += learned.calibration - prior()
    return total


def fit(hits: Any, trials: Any) -> list[Any]:
    """Base, match class, two-token code and one-token code, as log-odds that add up."""
    hits, trials = hits.reshape(_SHAPE), trials.reshape(_SHAPE)
    parts = [
        np.zeros((1, 1, 1)),
        *(np.zeros(s) for s in ((N_CLASSES, 1, 1), (1, N_CODES, 1), (1, 1, N_CODES))),
    ]
    for _ in range(300):
        for part in parts:
            p = 1 / (1 + np.exp(-sum(parts)))
            axes = tuple(i for i in range(3) if part.shape[i] == 1)
            slope = (hits - trials * p).sum(axis=axes, keepdims=True) - _RIDGE * part
            curve = (trials * p * (1 - p)).sum(axis=axes, keepdims=True) + _RIDGE
            part += np.clip(slope / curve, -0.5, 0.5)
    return [part.ravel() for part in parts]


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, fit and print; the last line is one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.fit_prior", description=__doc__)
    parser.add_argument("--model", default=models.DEFAULT)
    parser.add_argument("--per-category", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args(arguments)
    context = ContextConfig(n_ctx=4096, flash_attn=True, type_k="q8_0", type_v="q8_0")
    draft = DraftConfig(speculative="off", start="empty")
    with Session(models.path(options.model), context=context, draft=draft) as session:
        hits, trials = count(session, options.per_category, options.tokens)
    names = ("base", "match_class", "two_token_code", "one_token_code")
    fitted = {n: part.round(2).tolist() for n, part in zip(names, fit(hits, trials), strict=True)}
    print(json.dumps({"trials": float(trials.sum()), "hits": float(hits.sum())} | fitted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
