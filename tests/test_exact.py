"""On a real model, drafted text equals plain text to the token, where the widths are bit-equal.

SmolLM2 in Q4_0 with flash attention and a q8_0 cache, on the CPU. Each worker has a context on
one thread, since two contexts on a thread each are faster than one on two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge_tr.config import ContextConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.widths import probe_widths
from edge_tr.stats import Stats

pytestmark = pytest.mark.model

CONTEXT = ContextConfig(
    n_ctx=2048, n_threads=1, n_threads_batch=1, flash_attn=True, type_k="q8_0", type_v="q8_0"
)
N_TOKENS = 200
N_LONG = 520
SEVEN = TreeTemplate([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
FIFTEEN = TreeTemplate(
    [
        *((rank,) for rank in range(5)),
        *((0, 0), (0, 1), (0, 2), (1, 0), (2, 0)),
        *((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)),
        (0, 0, 0, 0),
    ]
)
QUESTIONS = Path(__file__).parents[2] / "shared" / "data" / "spec_bench.jsonl"
BUILT_IN = (
    "Explain how a bicycle stays upright, then list five facts about bicycles.",
    "Write a short story that begins in an old abandoned house.",
    "What is the capital of France, and what is it known for?",
    "Write a Python function that reverses a linked list.",
    "Summarise the plot of Romeo and Juliet in ten sentences.",
    "Translate into German: The weather is nice today and we want to go for a walk.",
    "A train covers 120 km in 90 minutes. What is its speed in km/h? Explain each step.",
    "Compare solar power and wind power in a table with five rows.",
    "Give me a recipe for pancakes with exact amounts.",
    "List the planets of the solar system with one sentence about each.",
    "Write an email that asks a colleague for the minutes of a meeting.",
    "What are the causes of the seasons on Earth?",
    "Repeat this text three times: the quick brown fox jumps over the lazy dog.",
    "Write JSON with the name, age and hobbies of three invented people.",
    "Who was Ada Lovelace, and why is she remembered?",
    "Explain the difference between a list and a tuple in Python with examples.",
    "Write a poem of four verses about the sea.",
    "Give advice to someone who learns to play the guitar.",
    "Count from one to fifty in words.",
    "Describe the water cycle to a child of eight years.",
)


@dataclass
class Job:
    """One prompt and how much text it is to give."""

    prompt: list[int]
    max_tokens: int


@pytest.fixture(scope="module")
def model(smollm2_q4_0: Path) -> Iterator[Model]:
    with Model(smollm2_q4_0) as model:
        yield model


@pytest.fixture(scope="module")
def jobs(model: Model) -> list[Job]:
    """20 questions x 200 tokens, and one prompt of over 1,000 tokens with a longer text."""
    questions = list(BUILT_IN)
    if QUESTIONS.exists():
        lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
        picked = lines[:: len(lines) // 20][:20]
        questions = [json.loads(line)["turns"][0][:600] for line in picked]
    jobs = [Job(prompt(model, question), N_TOKENS) for question in questions]
    story = " ".join(f"{i}. {question}" for i, question in enumerate(BUILT_IN, 1))
    return [Job(prompt(model, "\n".join([story] * 4))[:1200], N_LONG), *jobs]


def prompt(model: Model, text: str) -> list[int]:
    tokens = model.chat_tokens([{"role": "user", "content": text}])
    assert tokens is not None
    return [int(token) for token in tokens]


@pytest.fixture(scope="module")
def max_width(model: Model) -> int:
    with LlamaTarget(model, CONTEXT) as target:
        width = probe_widths(target, max_width=24).tree_width
    if width < 16:
        pytest.skip(f"on this machine batches are bit-equal only up to {width} tokens")
    return width


def run(
    model: Model, jobs: list[Job], template: TreeTemplate | None, max_width: int | None = None
) -> list[tuple[list[int], Stats]]:
    """Text and statistics of each job; a worker takes the next job when it is done with one."""
    done: dict[int, tuple[list[int], Stats]] = {}
    waiting = iter(enumerate(jobs))

    def work(_worker: int) -> None:
        drafter = None
        if template is not None:
            drafter = FixedTreeDrafter(AdjacencyMatrix(model.n_vocab), template)
        with LlamaTarget(model, CONTEXT) as target:
            decoder = Decoder(target, drafter, max_width=max_width)
            for i, job in waiting:
                steps = decoder.generate(job.prompt, max_tokens=job.max_tokens)
                done[i] = [token for emitted in steps for token in emitted], decoder.stats

    n_workers = min(4, os.cpu_count() or 1)
    with ThreadPoolExecutor(n_workers) as pool:
        list(pool.map(work, range(n_workers)))
    return [done[i] for i in range(len(jobs))]


@pytest.fixture(scope="module")
def plain(model: Model, jobs: list[Job]) -> list[list[int]]:
    return [text for text, _ in run(model, jobs, None)]


def test_the_jobs_are_as_long_as_they_should_be(jobs: list[Job], plain: list[list[int]]) -> None:
    assert len(jobs[0].prompt) > 1000
    assert [len(text) for text in plain] == [N_LONG] + [N_TOKENS] * 20


@pytest.mark.parametrize(
    ("template", "first_job"), [(SEVEN, 0), (FIFTEEN, 1)], ids=["7 nodes", "15 nodes"]
)
def test_drafted_text_is_plain_text(
    model: Model,
    jobs: list[Job],
    plain: list[list[int]],
    max_width: int,
    template: TreeTemplate,
    first_job: int,
) -> None:
    """The long job is for the smaller tree only: wide steps behind long texts take minutes."""
    drafted = run(model, jobs[first_job:], template, max_width)
    assert [text for text, _ in drafted] == plain[first_job:]
    n_tokens = sum(stats.n_tokens for _, stats in drafted)
    assert n_tokens / sum(stats.n_steps for _, stats in drafted) > 1.5
