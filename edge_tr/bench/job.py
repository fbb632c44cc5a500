"""One experiment from its options to its result on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_tr.bench import sweeps
from edge_tr.bench.conditions import conditions
from edge_tr.bench.experiments import EXPERIMENTS, Setup, run_experiment
from edge_tr.bench.main_table import Plan, run_main
from edge_tr.bench.methods import Sources
from edge_tr.bench.pairs import Records
from edge_tr.bench.questions import load_questions, sample
from edge_tr.bench.report import quoted
from edge_tr.config import ContextConfig
from edge_tr.drafts import compiled
from edge_tr.errors import ConfigError
from edge_tr.models.catalog import entry

TITLES = {
    "main": (
        "Every method on every kind of task",
        "Greedy answers to the same prompts, each read whole, up to the end of the text or the "
        "limit; speed is tokens after the first over their seconds, ratios are to plain decoding "
        "of the same prompts. Methods take turns at each prompt, after a short answer that is not "
        "counted. Bounds: one-sided 95 % of the median ratio, by order statistics.",
    ),
    **{name: (e.title, e.about) for name, e in EXPERIMENTS.items()},
    "context": ("Length of the context", "prompts of source code, each length in its own context"),
    "quant": ("Quantisations", "files of one model; each is compared with its own plain decoding"),
    "shapes": (
        "Shapes of larger models",
        "decode steps measured with random weights of the shape, recorded acceptance taken "
        "through them",
    ),
    "memory": ("Memory", "what each method keeps beside the model and its context"),
}
"""Every experiment with its title and what it does, in the order of ``edge-tr bench all``."""


@dataclass(frozen=True)
class Options:
    """What a user asks for.

    Attributes
    ----------
    quick : one question of each category, and fewer values.
    per_category, n_tokens : None = what suits the experiment.
    questions : see ``load_questions``.
    methods : of the main table; none = all.
    values : what an experiment varies: lengths, models, sizes; none = its own.
    out : where records, results and the report go.
    """

    path: Path
    context: ContextConfig
    out: Path
    n_gpu_layers: int = 0
    quick: bool = False
    per_category: int | None = None
    n_tokens: int | None = None
    questions: Path | None = None
    methods: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    sources: Sources = field(default_factory=Sources)


def run_job(
    name: str, options: Options, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure one experiment, keep its result as ``<name>.json``, and return it.

    Raises
    ------
    EdgeTRError : a value, a model, a question or the records of an earlier run cannot be used.
    """
    title, about = TITLES[name]
    n_tokens = options.n_tokens or (128 if name == "main" else 64)
    per_category = options.per_category or (1 if options.quick else 10 if name == "main" else 2)
    if n_tokens < 2 or per_category < 1:
        raise ConfigError("an answer has at least 2 tokens, a category at least 1 question")
    known = conditions(options.path, options.context, options.n_gpu_layers)
    settings = {
        "experiment": name,
        "n_tokens": n_tokens,
        "per_category": per_category,
        "questions": str(options.questions) if options.questions else None,
        "methods": list(options.methods),
        "values": list(options.values),
        "context": known.pop("context"),
        "datastore": str(options.sources.datastore) if options.sources.datastore else None,
        "draft_model": str(options.sources.draft_model) if options.sources.draft_model else None,
        "draft_type": options.sources.draft_type,
    }
    identity = settings | {"model": known["model"], "build": known["build"]}
    records = Records(options.out / "records" / f"{name}.jsonl", identity)
    state = options.out / "state" / name
    if not records.all:
        shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True, exist_ok=True)
    compiled.compile_now()
    result = {
        "bench": "edge-tr",
        "experiment": name,
        "title": title,
        "about": about,
        **_measure(name, options, n_tokens, per_category, records, state, progress),
        **known,
        "settings": settings,
        "quoted": quoted(),
    }
    (options.out / f"{name}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    return result


def _measure(
    name: str,
    options: Options,
    n_tokens: int,
    per_category: int,
    records: Records,
    state: Path,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    common: dict[str, Any] = {"n_gpu_layers": options.n_gpu_layers, "progress": progress}
    questions = load_questions(options.questions)
    measured = sample(questions, per_category, half="measured")
    if name == "main":
        plan = Plan(n_tokens, methods=options.methods)
        return run_main(
            options.path, options.context, plan, measured, options.sources, records, state, **common
        )
    if name == "context":
        lengths = _numbers(options.values) or sweeps.LENGTHS[: 2 if options.quick else None]
        return sweeps.context_lengths(
            options.path,
            options.context,
            records,
            state,
            lengths=lengths,
            n_tokens=n_tokens,
            **common,
        )
    if name == "quant":
        names = options.values or sweeps.QUANTISATIONS
        return sweeps.quantisations(
            names, options.context, measured, records, state, n_tokens=n_tokens, **common
        )
    if name == "shapes":
        sizes = options.values or sweeps.SHAPES[: 1 if options.quick else None]
        for size in sizes:
            entry(f"shape-{size}-q4_0")
        return sweeps.shapes(sizes, options.context, **common)
    with sweeps.open_session(options.path, options.context, **common) as session:
        if name == "memory":
            return sweeps.memory(session, options.sources, progress=progress)
        other = sample(questions, 1, half="calibration")
        setup = Setup(session, other, n_tokens, state)
        found = run_experiment(name, setup, measured, records)
    return found | {"parts": EXPERIMENTS[name].parts}


def _numbers(values: Sequence[str]) -> list[int]:
    try:
        return [int(value) for value in values]
    except ValueError:
        raise ConfigError(f"--values {','.join(values)} is not allowed; use numbers") from None


def without_answers(result: dict[str, Any]) -> dict[str, Any]:
    """A result without each single answer, for the last line of stdout."""
    return {key: value for key, value in result.items() if key != "answers"}
