"""Tiny models of every kind on the GPU, for the tests marked ``gpu``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_tr.config import ContextConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.equality import EqualityReport, TextPair, compare_texts
from edge_tr.target import TargetModel

DRAFTABLE = ("llama", "gemma3", "mixtral")
"""Dense, with a sliding window, of experts."""
CONTEXT: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1}
TREE = TreeTemplate.paper().prefix(7)
WIDTHS = (2, 4, 8)
"""Of the control; steps of ``TREE`` are 8 tokens wide and a little more."""

Open = Callable[..., LlamaTarget]


@pytest.fixture(scope="module")
def model_of(tiny_model: Callable[[str], Path]) -> Iterator[Callable[..., Model]]:
    """``model_of(arch, n_gpu_layers=-1)``: a tiny model, opened once a module."""
    with ExitStack() as stack:

        @cache
        def load(arch: str, n_gpu_layers: int = -1) -> Model:
            return stack.enter_context(Model(tiny_model(arch), n_gpu_layers=n_gpu_layers))

        yield load


@pytest.fixture
def open_target(model_of: Callable[..., Model]) -> Iterator[Open]:
    """``open_target(arch, n_gpu_layers, **config)``: a context, closed when the test ends."""
    with ExitStack() as stack:

        def make(arch: str = "llama", n_gpu_layers: int = -1, **config: Any) -> LlamaTarget:
            options = ContextConfig(**CONTEXT | config)
            return stack.enter_context(LlamaTarget(model_of(arch, n_gpu_layers), options))

        yield make


def prompt_of(n: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 500, n)]


def drafting(target: TargetModel, template: TreeTemplate = TREE) -> Decoder:
    return Decoder(target, FixedTreeDrafter(AdjacencyMatrix(target.n_vocab), template))


def text_of(decoder: Decoder, prompt: Sequence[int], max_tokens: int | None = None) -> list[int]:
    steps = decoder.generate(prompt, max_tokens=max_tokens)
    return [token for emitted in steps for token in emitted]


def compared(
    target: TargetModel, prompts: Sequence[Sequence[int]], max_tokens: int
) -> EqualityReport:
    """Design 6's report on texts drafted with ``TREE`` and plain ones."""
    drafter, plain = drafting(target), Decoder(target)
    pairs = []
    for i, prompt in enumerate(prompts):
        texts = [text_of(decoder, prompt, max_tokens) for decoder in (plain, drafter)]
        pairs.append(TextPair(str(i), np.array(prompt, dtype=np.int32), *texts))
    assert drafter.stats.n_accepted > 0
    return compare_texts(target, pairs, widths=WIDTHS)
