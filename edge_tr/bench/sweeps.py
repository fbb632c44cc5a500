"""Experiments that open several models or contexts: length, quantisation, model shape, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr import models
from edge_tr.bench import summary
from edge_tr.bench.engine import warm_up
from edge_tr.bench.experiments import AUTO, PAPER, Setup
from edge_tr.bench.main_table import answers
from edge_tr.bench.methods import Sources
from edge_tr.bench.pairs import Record, Records
from edge_tr.bench.peers import SERVER_OPTIONS, SERVER_TYPES, PeerError, PeerServer, find_peers
from edge_tr.bench.questions import Question
from edge_tr.bench.rest import build_datastore, standard_library
from edge_tr.bench.runner import PLAIN, Case, Runner
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.costs.expected import expect, read_recording, relative_costs
from edge_tr.decode.topk import default_threads
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import ConfigError
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.kept_costs import costs_of
from edge_tr.models.fetch import sha256_of
from edge_tr.session import Session

LENGTHS = (512, 2048, 8192, 32768)
QUANTISATIONS = ("smollm2-f16", "smollm2-q8_0", "smollm2-q4_1", "smollm2-q4_0", "smollm2-q4_k_m")
SHAPES = ("0.5b", "1b", "3b", "8b")
_LONG = 8192
"""Length from which one prompt is enough: reading it takes most of the time."""

Say = Callable[[str], None]


@contextmanager
def open_session(
    path: Path, context: ContextConfig, n_gpu_layers: int, progress: Say
) -> Iterator[Session]:
    """A session in automatic mode from an empty matrix, warmed up."""
    draft = DraftConfig(start="empty")
    with Session(
        path, context=context, draft=draft, n_gpu_layers=n_gpu_layers, progress=progress
    ) as session:
        warm_up(session)
        yield session


def _setting_cases(setup: Setup, setting: str) -> list[Case]:
    return [
        Case(PLAIN, setup.plain, setting),
        Case(PAPER, partial(setup.recycling, setting), setting),
        Case(AUTO, partial(setup.automatic, setting), setting),
    ]


def _result(found: Sequence[Record], unavailable: dict[str, str]) -> dict[str, Any]:
    return {
        "rows": summary.rows(found),
        "unavailable": unavailable,
        "answers": answers(found),
    }


def context_lengths(
    path: Path,
    context: ContextConfig,
    records: Records,
    state: Path,
    *,
    lengths: Sequence[int],
    n_tokens: int,
    n_gpu_layers: int = 0,
    progress: Say = lambda line: None,
) -> dict[str, Any]:
    """Plain, paper and automatic behind prompts of each length, source code to be explained."""
    found: list[Record] = []
    unavailable: dict[str, str] = {}
    for length in lengths:
        config = replace(context, n_ctx=length + n_tokens + 1)
        with open_session(path, config, n_gpu_layers, progress) as session:
            setup = Setup(session, (), n_tokens, state)
            cases = _setting_cases(setup, f"{length} tokens")
            runner = Runner(session, cases, records, n_tokens=n_tokens, phase="context")
            found += runner.run(long_questions(session, length))
            unavailable |= runner.unavailable
    return _result(found, unavailable)


def long_questions(session: Session, length: int) -> list[Question]:
    """Prompts of about so many tokens: parts of Python's standard library, each other ones."""
    room = max(16, length - 64)  # for the chat template and the question itself
    n_prompts = 1 if length >= _LONG else 2
    text = "".join(standard_library(12 * length * n_prompts))
    tokens = session.model.tokenize(text, add_special=False, parse_special=False)
    questions = []
    for i in range(n_prompts):
        part = session.model.detokenize(tokens[i * room : (i + 1) * room].tolist())
        wanted = "Explain in plain words what this code does.\n\n" + part.decode("utf-8", "replace")
        questions.append(Question(f"{length} tokens/{i}", f"{length} tokens", (wanted,)))
    return questions


def quantisations(
    names: Sequence[str],
    context: ContextConfig,
    questions: Sequence[Question],
    records: Records,
    state: Path,
    *,
    n_tokens: int,
    n_gpu_layers: int = 0,
    progress: Say = lambda line: None,
) -> dict[str, Any]:
    """Plain, paper and automatic on several files of one model."""
    found: list[Record] = []
    unavailable: dict[str, str] = {}
    files: dict[str, str] = {}
    for name in names:
        path = models.path(name, progress)
        files[name] = sha256_of(path)
        with open_session(path, context, n_gpu_layers, progress) as session:
            setup = Setup(session, (), n_tokens, state)
            runner = Runner(
                session, _setting_cases(setup, name), records, n_tokens=n_tokens, phase="quant"
            )
            found += runner.run(questions)
            unavailable |= runner.unavailable
    return _result(found, unavailable) | {"files": files}


def shapes(
    sizes: Sequence[str],
    context: ContextConfig,
    *,
    quantisation: str = "q4_0",
    n_gpu_layers: int = 0,
    progress: Say = lambda line: None,
) -> dict[str, Any]:
    """Measured cost of a decode step of model shapes, and the speed to be expected of it.

    The weights are random, so nothing is generated: recorded acceptance is taken through the
    measured T(n). The speeds are expectations.
    """
    recording = read_recording()
    rows = []
    for size in sizes:
        name = f"shape-{size}-{quantisation}"
        path = models.path(name, progress)
        with (
            Model(path, n_gpu_layers=n_gpu_layers) as model,
            LlamaTarget(model, context) as target,
        ):
            table = costs_of(
                target, k=8, n_threads=default_threads(), budget_s=12.0, progress=progress
            )
        for costs in relative_costs(name, table)[:1]:
            e = expect(recording, costs)
            plain_s = float(table.seconds[0][0])
            n_paper = min(TreeTemplate.paper().n_nodes, len(e.speedup_of) - 1)
            steps = {str(w): round(r, 3) for w, r in zip(costs.widths, costs.ratio, strict=True)}
            for method, speedup, mat in (
                (PLAIN, 1.0, 1.0),
                (f"{n_paper} nodes", e.speedup_of[n_paper], e.mat_of[n_paper]),
                (AUTO, e.speedup, e.mat),
            ):
                whole = {
                    "tps": round(speedup / plain_s, 3),
                    "mat": round(mat, 3),
                    "ratio": round(speedup, 4),
                    "n": 0,
                }
                row = {"setting": size, "method": method, "all": whole, "by_category": {}}
                rows.append(row | ({"step_ratio": steps} if method == PLAIN else {}))
    return {
        "rows": rows,
        "kind": "expectation",
        "files": {size: f"shape-{size}-{quantisation}" for size in sizes},
        "acceptance": recording.about,
        "unavailable": {},
        "answers": [],
    }


def memory(
    session: Session, sources: Sources, *, progress: Say = lambda line: None
) -> dict[str, Any]:
    """What each method keeps in memory beside the model, its context and one row of logits."""
    n_vocab, config = session.model.n_vocab, session.target.config
    row_bytes = 4 * n_vocab
    paper_rows = TreeTemplate.paper().n_nodes
    matrix = session.matrix.rows.nbytes
    progress("building the datastore")
    datastore = build_datastore(session.model, sources.datastore).n_bytes
    text_bytes = 4 * session.target.n_ctx
    widest = session.decoder.drafter.max_nodes if session.decoder.drafter else 0
    rows: list[dict[str, Any]] = [
        _memory(PLAIN, 0, 0, "nothing"),
        _memory(PAPER, matrix, paper_rows * row_bytes, "adjacency matrix"),
        _memory(
            AUTO,
            matrix + session.candidates.n_bytes,
            widest * row_bytes,
            "adjacency matrix, two-token rows, probabilities",
        ),
        _memory("pld", text_bytes, 10 * row_bytes, "the text"),
        _memory("rest", datastore, 64 * row_bytes, "datastore: tokens and sorted suffixes"),
        _memory(
            "lookahead",
            n_vocab * 15 * 4 * 4,
            (1 + 15 + 15 * 4) * row_bytes,
            "15 n-grams of 4 tokens for each token (W = 15, N = 5, G = 15)",
        ),
    ]
    try:
        rows += _server_memory(session, sources, progress)
        unavailable = {}
    except (ConfigError, PeerError) as error:
        unavailable = {name: str(error) for name in SERVER_TYPES}
    return {
        "rows": rows,
        "kind": "memory",
        "unavailable": unavailable,
        "answers": [],
        "n_ctx": config.n_ctx,
    }


def _memory(method: str, own: int, logits: int, what: str) -> dict[str, Any]:
    return {
        "setting": "",
        "method": method,
        "own_bytes": own,
        "logits_bytes": logits,
        "what": what,
        "how": "counted",
    }


def _server_memory(session: Session, sources: Sources, progress: Say) -> list[dict[str, Any]]:
    """Peak memory of a server of each type, less that of one that does not speculate."""
    folder = find_peers(sources.peers)
    prompt = session.prompt_tokens("Write the numbers from one to fifty as words.")
    peaks = {}
    for name, options in SERVER_OPTIONS.items():
        progress(f"measuring {name}")
        server = PeerServer(session.model, session.target.config, folder, options)
        try:
            server.answer(np.asarray(prompt), 64)
        finally:
            server.close()
        peaks[name] = server.peak_bytes
    if not peaks["plain-server"]:
        raise ConfigError("this system does not tell the memory of a process")
    rows = []
    for name in SERVER_TYPES:
        more = max(0, peaks[name] - peaks["plain-server"])
        row = _memory(name, more, 0, "peak memory beyond a server without speculation")
        rows.append(row | {"how": "measured"})
    return rows
