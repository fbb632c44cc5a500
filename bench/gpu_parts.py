"""The parts of the GPU script; each runs in a process of its own and reports as it goes."""

from __future__ import annotations

import json
import logging
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numba
import numpy as np

from bench.gpu_arms import Arms, Prompt
from bench.gpu_meter import StepMeter, coarse_first, staircase, topk_threads
from bench.gpu_topk import compare_topk
from bench.record import SIZES
from bench.record import record as record_run
from edge_tr.bench.questions import Half, load_questions, sample
from edge_tr.config import ContextConfig
from edge_tr.costs.expected import RecordedRun, Recording
from edge_tr.errors import ConfigError
from edge_tr.files.paths import cache_dir
from edge_tr.llama.devices import has_gpu
from edge_tr.llama.library import logger, system_info, version
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.machine import facts as machine
from edge_tr.machine.facts import n_cores
from edge_tr.measuring.widths import probe_widths

Report = Callable[[str, Any], None]
"""Takes the name of a result and its value so far; a later value replaces it."""

_TOLD = re.compile(r"offloaded|buffer size|graph splits|graph nodes|flash_attn|using device")
_SMI = "name,driver_version,clocks.sm,clocks.max.sm,power.limit,pcie.link.gen.current"


def context(n_ctx: int, *, flash_attn: bool = True, cache: str = "f16") -> ContextConfig:
    """The context of every part; threads given, so that each arm gets the same."""
    n = _n_threads()
    return ContextConfig(
        n_ctx=n_ctx,
        n_threads=n,
        n_threads_batch=n,
        flash_attn=flash_attn,
        type_k=cache,
        type_v=cache,
    )


@cache
def _n_threads() -> int:
    """All cores, as is the product's default; one for the tiny models of a dry run."""
    return n_cores() if machine.gpus() else 1


def facts(report: Report, stop: float, *, model: Path) -> None:
    """The machine, the build, and where llama.cpp puts the layers."""
    gpus = machine.gpus()
    on_gpu = has_gpu()
    report("device", gpus[0]["name"] if on_gpu and gpus else machine.processor())
    report("gpu_offload", on_gpu)
    report("gpus", gpus)
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={_SMI}", "--format=csv"]
        report("nvidia_smi", subprocess.run(command, capture_output=True, text=True).stdout)
    report("processor", [machine.processor(), n_cores(), platform.platform()])
    report("memory", machine.memory())
    report("system_info", system_info())
    versions = {"python": sys.version, "llama-cpp-python": version()}
    report("versions", versions | {"numpy": np.__version__, "numba": numba.__version__})
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage().strip())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    with Model(model, n_gpu_layers=-1) as opened, LlamaTarget(opened, context(1024)):
        report("llama_log", [line for line in lines if _TOLD.search(line)])


def costs(
    report: Report,
    stop: float,
    *,
    model: Path,
    contexts: Sequence[int],
    max_width: int,
    flash_attn: bool = True,
    threads: Sequence[int] = (),
) -> None:
    """T(n) of one model at several context lengths."""
    n_ctx = max(contexts) + 2 * max_width + 256
    started = perf_counter()
    with Model(model, n_gpu_layers=-1) as opened:
        report("load_s", round(perf_counter() - started, 2))
        with LlamaTarget(opened, context(n_ctx, flash_attn=flash_attn)) as target:
            meter = StepMeter(target, max_width=max_width, n_threads=min(4, n_cores()))
            tables = []
            for i, n_past in enumerate(contexts):
                share = (stop - perf_counter()) / (len(contexts) - i)
                widths = coarse_first(max_width)
                end = perf_counter() + 0.9 * share
                tables.append(staircase(meter, n_past, stop=end, widths=widths))
                report("tables", tables)
            if threads:
                report("topk_ms", topk_threads(meter, threads))


def backend_topk(report: Report, stop: float, *, model: Path, n_past: int, max_width: int) -> None:
    """Top-k on the back end against top-k on the host, steps of several widths."""
    n_ctx = n_past + 2 * max_width + 256
    with Model(model, n_gpu_layers=-1) as opened, LlamaTarget(opened, context(n_ctx)) as target:
        meter = StepMeter(target, max_width=max_width, n_threads=min(4, n_cores()))
        meter.read(n_past)
        widths = [w for w in (1, 2, 4, 8, 16, 32, 64) if w <= max_width]
        report("topk", compare_topk(meter, widths))


def probe(report: Report, stop: float, *, model: Path, max_width: int) -> None:
    """Which widths are bit-equal to one-token decoding, with either cache."""
    with Model(model, n_gpu_layers=-1) as opened:
        for flash_attn, cache in ((True, "f16"), (True, "q8_0"), (False, "f16")):
            with LlamaTarget(opened, context(1024, flash_attn=flash_attn, cache=cache)) as target:
                found = probe_widths(target, max_width=max_width)
            name = f"{cache} cache, flash attention {'on' if flash_attn else 'off'}"
            report(name, {"chain": found.chain_width, "tree": found.tree_width})


def arms(
    report: Report,
    stop: float,
    *,
    model: Path,
    names: Sequence[str],
    n_ctx: int,
    n_tokens: int,
    questions: Path | None,
    per_category: int,
    n_prompt: int = 0,
    peers: Path | None = None,
) -> None:
    """Answers of every arm in turn, question by question.

    With ``n_prompt`` two prompts of so many tokens, made of questions in a row, take the place
    of the questions.
    """
    compared = Arms(model, n_gpu_layers=-1, context=context(n_ctx), names=names, peers=peers)
    try:
        room = n_ctx - n_tokens - 128
        if n_prompt:
            prompts = _long_prompts(compared.model, questions, min(n_prompt, room))
        else:
            prompts = _prompts(compared.model, questions, per_category, room)
        rows: list[dict[str, Any]] = []
        slowest = 0.0
        for turn, prompt in enumerate(prompts):
            started = perf_counter()
            if started + slowest > stop:
                report("left_out", [p.id for p in prompts[turn:]])
                break
            answers = compared.run(prompt, n_tokens, turn=turn)
            if prompt.measured:
                rows = [row for row in rows + answers if row["arm"] not in compared.failed]
                slowest = max(slowest, perf_counter() - started)
                report("rows", rows)
            if compared.failed:
                report("failed_peers", compared.failed)
    finally:
        compared.close()
    files = sorted((cache_dir() / "costs").glob("*.json"))
    report("cost_tables", [json.loads(file.read_text())["costs"] for file in files])


def record(
    report: Report,
    stop: float,
    *,
    model: Path,
    n_ctx: int,
    n_tokens: int,
    questions: Path | None,
    per_category: int,
    max_nodes: int,
) -> None:
    """What would be accepted at every position of the answers of ``arms``, for the simulator."""
    with Model(model, n_gpu_layers=-1) as opened, LlamaTarget(opened, context(n_ctx)) as target:
        prompts = _prompts(opened, questions, per_category, n_ctx - n_tokens - 128)
        measured = [prompt.tokens for prompt in prompts if prompt.measured]
        runs: list[RecordedRun] = []
        for size in [size for size in SIZES if size <= max_nodes]:
            if perf_counter() > stop:
                break
            run = record_run(
                target,
                measured,
                max_nodes=size,
                n_tokens=n_tokens,
                n_skipped=min(16, n_tokens // 2),
                stop_tokens=opened.stop_tokens(),
            )
            if run.hits:
                runs.append(run)
                recording = Recording(f"{model.stem}, {len(measured)} answers", (*runs,))
                report("recording", recording.to_dict())


def _prompts(model: Model, path: Path | None, per_category: int, room: int) -> list[Prompt]:
    """First turns that fit: one of each category to fill the matrices, then the measured ones,
    all categories once before any comes twice."""
    questions = load_questions(path)
    prompts: list[Prompt] = []
    halves: tuple[tuple[Half, int], ...] = (("calibration", 1), ("measured", per_category))
    for half, n in halves:
        found: dict[str, list[Prompt]] = {}
        for q in sample(questions, 10 * n, half=half):
            own = found.setdefault(q.category, [])
            if len(own) < n:
                tokens = model.chat_tokens(q.turns[0])
                if len(tokens) <= room:
                    own.append(Prompt(q.id, q.category, tokens, measured=half == "measured"))
        prompts += [own[i] for i in range(n) for own in found.values() if i < len(own)]
    return prompts


def _long_prompts(model: Model, path: Path | None, n_prompt: int) -> list[Prompt]:
    texts = [turn for q in load_questions(path) for turn in q.turns]
    tokens = np.concatenate([model.tokenize(text, add_special=False) for text in texts])
    if len(tokens) < 3 * n_prompt:
        tokens = np.tile(tokens, -(-3 * n_prompt // len(tokens)))
    parts = [tokens[i * n_prompt : (i + 1) * n_prompt] for i in range(3)]
    return [Prompt(f"long/{i}", "long", part, measured=i > 0) for i, part in enumerate(parts)]


def write_model(path: Path, size: str, quantisation: str) -> None:
    """Write a shape model, or a tiny one, under its final name only when it is whole.

    Raises
    ------
    ConfigError : an unknown size or quantisation.
    """
    from edge_tr.models import write_shape, write_tiny

    partial = path.with_suffix(".part")
    if size == "tiny":
        if quantisation not in ("f16", "q8_0", "q4_0"):
            raise ConfigError(f"quantisation {quantisation!r} of a tiny model is not allowed")
        write_tiny(partial, "llama", quantisation=quantisation)  # type: ignore[arg-type]
    else:
        write_shape(partial, size, quantisation)
    partial.replace(path)
