"""Plain steps in a row: the same text, and the drafter learns the same rows."""

from __future__ import annotations

import numpy as np
import pytest
from fake_target import FakeTarget, HashModel
from samplers import TemperatureSampler

from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import CostTable
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.grown_tree import GrownTreeDrafter

PROMPT = [3, 1, 4, 1, 5]


def steep() -> StepCosts:
    """Costs with which no draft can pay."""
    return StepCosts(CostTable((1, 8), (0,), ((1.0, 1000.0),)), 8)


def generate(
    n_rests: int, *, n: int = 40, sampled: bool = False
) -> tuple[list[int], GrownTreeDrafter]:
    target = FakeTarget(HashModel(memory=2))
    candidates = Candidates(AdjacencyMatrix(target.n_vocab, 4), n_pairs=64)
    drafter = GrownTreeDrafter(
        candidates, n_ctx=target.n_ctx, costs=steep(), max_nodes=7, max_lanes=8
    )
    drafter.n_rests = n_rests
    decoder = Decoder(target, drafter)
    sampler = TemperatureSampler(1.0, 7) if sampled else None
    text = [t for step in decoder.generate(PROMPT, max_tokens=n, sampler=sampler) for t in step]
    assert decoder.stats.n_plain_steps == decoder.stats.n_steps == n - 1
    return text, drafter


@pytest.mark.parametrize("n", [1, 6, 9, 11, 40])
@pytest.mark.parametrize("n_rests", [1, 3, 5])
def test_a_rested_drafter_has_learned_the_same_rows(n_rests: int, n: int) -> None:
    text, rested = generate(n_rests, n=n)
    expected, asked = generate(0, n=n)
    assert text == expected
    for one, other in zip(rested.candidates.sources[:5], asked.candidates.sources[:5], strict=True):
        np.testing.assert_array_equal(one, other)


def test_one_draw_per_token_while_the_drafter_rests() -> None:
    assert generate(3, sampled=True)[0] == generate(0, sampled=True)[0]


def test_a_generation_that_is_left_early_does_not_reach_into_the_next() -> None:
    target = FakeTarget(HashModel(memory=2))
    candidates = Candidates(AdjacencyMatrix(target.n_vocab, 4), n_pairs=64)
    drafter = GrownTreeDrafter(
        candidates, n_ctx=target.n_ctx, costs=steep(), max_nodes=7, max_lanes=8
    )
    decoder = Decoder(target, drafter)
    for _ in range(3):
        steps = decoder.generate(PROMPT, max_tokens=30)
        for _, _step in zip(range(9), steps, strict=False):
            pass
        steps.close()  # type: ignore[attr-defined]
    text = [t for step in decoder.generate(PROMPT, max_tokens=30) for t in step]
    assert text == generate(0, n=30)[0]
