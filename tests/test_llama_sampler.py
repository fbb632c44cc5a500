from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tree_bench import TreeBench

from edge_tr.config import ContextConfig, SamplingConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import ConfigError
from edge_tr.llama.model import Model
from edge_tr.llama.sampler import LlamaSampler
from edge_tr.llama.target import LlamaTarget

PROMPT = list(range(60, 90))


@pytest.fixture(scope="module")
def target(tiny_model: Callable[[str], Path]) -> Iterator[LlamaTarget]:
    config = ContextConfig(
        n_ctx=512, n_threads=1, n_threads_batch=1, flash_attn=True, type_k="q8_0", type_v="q8_0"
    )
    with Model(tiny_model("llama")) as model, LlamaTarget(model, config) as target:
        yield target


def drafting(target: LlamaTarget) -> Decoder:
    matrix = AdjacencyMatrix(target.n_vocab)
    return Decoder(target, FixedTreeDrafter(matrix, TreeTemplate.paper()))


def text_of(decoder: Decoder, config: SamplingConfig) -> list[int]:
    target: Any = decoder.target
    steps = decoder.generate(PROMPT, max_tokens=150, sampler=LlamaSampler(target, config))
    return [token for emitted in steps for token in emitted]


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(temperature=0.6, seed=1),
        SamplingConfig(temperature=1.0, seed=2, top_k=0, top_p=1.0, min_p=0.0),
        SamplingConfig(temperature=0.7, seed=3, repeat_penalty=1.2, presence_penalty=0.5),
        SamplingConfig(temperature=0.8, seed=4, typical_p=0.9),
        SamplingConfig(temperature=0.0, repeat_penalty=1.3),
        SamplingConfig(temperature=0.0, frequency_penalty=0.4),
    ],
)
def test_a_seed_gives_the_plain_text_with_a_cold_and_a_warm_matrix(
    target: LlamaTarget, config: SamplingConfig
) -> None:
    plain = text_of(Decoder(target), config)
    decoder = drafting(target)
    assert text_of(decoder, config) == plain
    assert text_of(decoder, config) == plain
    assert decoder.stats.n_accepted > 0


def test_other_seeds_give_other_texts(target: LlamaTarget) -> None:
    texts = [text_of(drafting(target), SamplingConfig(1.0, seed=seed)) for seed in (1, 2)]
    assert texts[0] != texts[1]


def test_no_seed_gives_other_texts_each_time(target: LlamaTarget) -> None:
    texts = [text_of(drafting(target), SamplingConfig(1.0)) for _ in range(2)]
    assert texts[0] != texts[1]


def test_draws_follow_the_distribution(target: LlamaTarget) -> None:
    row = TreeBench(target).read(PROMPT)
    logits = row.astype(np.float64)
    best = np.argsort(-logits)[:8]
    weights = np.exp((logits[best] - logits[best[0]]) / 0.8)
    expected = 5000 * weights / weights.sum()
    config = SamplingConfig(0.8, seed=7, top_k=8, top_p=1.0, min_p=0.0)
    sampler = LlamaSampler(target, config)
    counts = Counter(sampler.sample(len(PROMPT) - 1, row) for _ in range(5000))
    assert set(counts) <= set(best.tolist())
    drawn = np.array([counts[token] for token in best.tolist()])
    assert ((drawn - expected) ** 2 / expected).sum() < 24.32  # once in a thousand, 7 degrees


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1.0}, {"top_p": 1.5}, {"min_p": -0.1}, {"top_k": -1}, {"seed": -1}],
)
def test_a_value_out_of_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not allowed; it must be"):
        SamplingConfig(**options)
