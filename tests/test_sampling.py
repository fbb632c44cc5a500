from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from drafters import OracleDrafter
from fake_target import FakeTarget, HashModel
from samplers import TemperatureSampler

from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import ConfigError, DecodeError
from edge_tr.target import Float32

CRITICAL = 24.32
"""Chi-square with 7 degrees of freedom is above this once in a thousand."""


def chi_square(counts: Counter[int], logits: Float32, temperature: float) -> float:
    weights = np.exp(logits.astype(np.float64) / temperature)
    expected = weights / weights.sum() * counts.total()
    return float(sum((counts[t] - e) ** 2 / e for t, e in enumerate(expected)))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    logits = HashModel(8).logits([1])
    sampler = TemperatureSampler(temperature, seed=3)
    counts = Counter(sampler.sample(0, logits) for _ in range(5000))
    assert chi_square(counts, logits, temperature) < CRITICAL


def test_drafted_tokens_follow_the_softmax_too() -> None:
    """The second token is drafted in every run, and accepted in part of them."""
    model = HashModel(8, memory=None)
    matrix = AdjacencyMatrix(8)
    matrix.rows[:] = np.arange(8)
    decoder = Decoder(
        FakeTarget(model),
        FixedTreeDrafter(matrix, TreeTemplate.from_breadths([4, 1]), update="accepted"),
    )
    sampler = TemperatureSampler(1.0, seed=5)
    counts: dict[int, Counter[int]] = {first: Counter() for first in range(8)}
    n_accepted = 0
    for _ in range(5000):
        first, second, _ = (
            t for s in decoder.generate([1, 2], max_tokens=3, sampler=sampler) for t in s
        )
        counts[first][second] += 1
        n_accepted += decoder.stats.n_accepted
    assert n_accepted > 1000
    first, most = max(counts.items(), key=lambda entry: entry[1].total())
    assert chi_square(most, model.logits([1, 2, first]), 1.0) < CRITICAL


def sampled(decoder: Decoder, seed: int) -> list[int]:
    sampler = TemperatureSampler(1.5, seed)
    return [t for s in decoder.generate([1, 2], max_tokens=40, sampler=sampler) for t in s]


def test_a_seed_gives_one_text_with_a_cold_and_a_warm_matrix() -> None:
    drafter = FixedTreeDrafter(AdjacencyMatrix(16), TreeTemplate.paper().prefix(15))
    decoder = Decoder(FakeTarget(n_lanes=16), drafter)
    cold = sampled(decoder, seed=1)
    assert sampled(decoder, seed=1) == cold
    assert sampled(decoder, seed=2) != cold


def test_one_number_is_drawn_for_each_emitted_token() -> None:
    draws = []

    class Counting(TemperatureSampler):
        def sample(self, batch_index: int, logits: Float32) -> int:
            draws.append(super().sample(batch_index, logits))
            return draws[-1]

    model = HashModel(30, memory=None)
    text = model.generate([1], 64, sampler=TemperatureSampler(1.0, 4))
    decoder = Decoder(FakeTarget(model), OracleDrafter(30, text, reach=4, wrong_last=True))
    steps = decoder.generate([1], sampler=Counting(1.0, 4))
    assert [t for s in steps for t in s] == draws == text
    assert decoder.stats.mat > 3


def test_each_draw_names_the_place_of_its_row_in_the_batch() -> None:
    places: list[int] = []

    class Watching(TemperatureSampler):
        def sample(self, batch_index: int, logits: Float32) -> int:
            places.append(batch_index)
            return super().sample(batch_index, logits)

    model = HashModel(30, memory=None)
    text = model.generate([1, 2, 3], 64, sampler=TemperatureSampler(1.0, 4))
    drafter = OracleDrafter(30, text, reach=2, decoys_first=True)
    decoder = Decoder(FakeTarget(model), drafter)
    steps = decoder.generate([1, 2, 3], max_tokens=7, sampler=Watching(1.0, 4))
    assert [t for s in steps for t in s] == text[:7]
    # Prefill; root 0, decoy 1, right 2, decoy 3, right 4; then the same behind a chain of two.
    assert places == [2, 0, 2, 4, 2, 4, 6]


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_not_above_zero_is_refused(temperature: float) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        TemperatureSampler(temperature, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_distribution_is_an_error(bad: float) -> None:
    with pytest.raises(DecodeError, match="highest logit"):
        TemperatureSampler(1.0, 0).sample(0, np.full(4, bad, dtype=np.float32))
