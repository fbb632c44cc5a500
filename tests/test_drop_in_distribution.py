"""5,000 samples with and without drafting are of one distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from drop_in import open_own

from edge_tr import Llama

N = 5000
PROMPT = [*range(60, 70)]


def samples(llm: Llama, first_seed: int, options: dict[str, Any]) -> Counter[tuple[int, ...]]:
    """The fourth and fifth token of each of N texts; later steps draft most of them."""
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(first_seed, first_seed + N):
        llm.set_seed(seed)
        found[tuple(islice(llm.generate(PROMPT, **options), 3, 5))] += 1
    return found


def chi_square(a: Counter[tuple[int, ...]], b: Counter[tuple[int, ...]]) -> tuple[float, float]:
    """The statistic of two samples of one size, and what it exceeds once in a thousand; rare
    outcomes (under 20 in both together) are one."""
    pairs = [(a[key], b[key]) for key in a | b]
    rare = [pair for pair in pairs if sum(pair) < 20]
    pairs = [pair for pair in pairs if sum(pair) >= 20]
    pairs.append((sum(x for x, _ in rare), sum(y for _, y in rare)))
    statistic = sum((x - y) ** 2 / (x + y) for x, y in pairs if x + y)
    degrees = len(pairs) - 1
    limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * math.sqrt(2 / (9 * degrees))) ** 3
    return statistic, limit  # Wilson and Hilferty's approximation


def test_drafting_leaves_the_distribution(tiny_model: Callable[[str], Path]) -> None:
    options = {"temp": 0.6, "top_k": 8}
    tree = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
    path = tiny_model("llama")
    with (
        open_own(path, n_ctx=256, speculative="off") as plain,
        open_own(path, n_ctx=256, speculative=tree) as drafting,
    ):
        expected = samples(plain, 0, options)
        found = samples(drafting, N, options)
        assert drafting.stats.n_drafted > 0
    assert len(expected) > 20
    statistic, limit = chi_square(expected, found)
    assert statistic < limit
