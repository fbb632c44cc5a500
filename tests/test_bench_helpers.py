"""What the benchmarks count with: bounds of medians, static trees, records, prompts."""

from __future__ import annotations

from itertools import product
from math import inf
from pathlib import Path

import numpy as np
import pytest
from fake_target import FakeTarget, HashModel

from bench.oracle import CHAIN_NODES, TREE_NODES, Setting, best_settings, fixed_settings, rank_rates
from bench.static_trees import RankCounter, best_static_tree
from edge_tr.bench.pairs import Records
from edge_tr.bench.prompts import Prompt, adversarial_prompts, copied_share, interleave
from edge_tr.bench.statistics import median_bounds
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.template import SMALL_TREE, TreeTemplate
from edge_tr.errors import ConfigError
from edge_tr.target import Int32


@pytest.mark.parametrize(("n", "place"), [(5, 4), (6, 5), (8, 6), (10, 8), (12, 9), (28, 18)])
def test_upper_bound_is_the_order_statistic_of_the_binomial(n: int, place: int) -> None:
    assert median_bounds(range(n)).upper == place


def test_bounds_mirror_each_other() -> None:
    values = [0.9, 1.3, 1.0, 1.1, 0.95, 1.7, 1.2, 0.8]
    assert median_bounds(values).lower == -median_bounds([-v for v in values]).upper


def test_under_five_values_have_no_bound() -> None:
    assert median_bounds([1.0, 2.0, 3.0, 4.0]).upper == inf
    assert median_bounds([1.0, 2.0, 3.0, 4.0]).to_dict()["upper"] is None


def test_the_bound_holds_in_95_percent_of_samples() -> None:
    rng = np.random.default_rng(0)
    covered = [median_bounds(sample).upper >= 1.0 for sample in rng.lognormal(0, 1, (2000, 9))]
    assert np.mean(covered) >= 0.94


def expected_tokens(template: TreeTemplate, rates: list[float]) -> float:
    return sum(float(np.prod([rates[rank] for rank in path])) for path in template.paths)


@pytest.mark.parametrize("n_nodes", [1, 2, 3, 4])
def test_the_best_static_tree_beats_every_other_tree(n_nodes: int) -> None:
    rates = [0.4, 0.25, 0.3]
    paths = [p for depth in range(1, n_nodes + 1) for p in product(range(3), repeat=depth)]
    best = 0.0

    def search(chosen: list[tuple[int, ...]], first: int) -> None:
        nonlocal best
        if len(chosen) == n_nodes:
            best = max(best, expected_tokens(TreeTemplate(chosen), rates))
            return
        for i in range(first, len(paths)):
            if len(paths[i]) == 1 or paths[i][:-1] in chosen:
                search([*chosen, paths[i]], i + 1)

    search([], 0)
    assert expected_tokens(best_static_tree(rates, n_nodes), rates) == pytest.approx(best)


def test_ranks_that_never_hit_come_last() -> None:
    assert best_static_tree([0.5, 0.0, 0.1], 3).paths == ((0,), (0, 0), (0, 0, 0))
    assert (2,) in best_static_tree([0.5, 0.0, 0.1], 5).paths


def test_the_rank_counter_counts_tokens_that_were_not_drafted() -> None:
    model = HashModel(memory=1)
    matrix = AdjacencyMatrix(16, 4)
    for token in range(16):  # the right token stands at rank 1 until a step writes the row
        best = np.argsort(-model.logits([token]), kind="stable")[:4]
        matrix.set_row(token, np.roll(best, 1).astype(np.int32))
    counter = RankCounter(matrix, TreeTemplate([]))
    steps = list(Decoder(FakeTarget(model), counter).generate([3], max_tokens=20))
    n_new = len({3, *(step[0] for step in steps[:-1])})
    assert counter.rates == [1 - n_new / 20, n_new / 20, 0.0, 0.0]


def test_the_setting_that_copies_the_text_wins() -> None:
    target = FakeTarget(HashModel(memory=1), n_ctx=256)
    prompts = [np.array([i, i + 1], dtype=np.int32) for i in range(3)]
    rates = rank_rates(target, prompts, 40)
    assert rates[0] > 0.5
    settings = [Setting("off"), Setting("tree-3", template=SMALL_TREE)]
    best, speeds = best_settings(target, settings, prompts, 60)
    assert set(best) == {"static"}
    assert set(speeds) == {"off", "tree-3"}


def test_fixed_settings_have_the_sizes_they_are_named_after() -> None:
    settings = fixed_settings([0.3, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01, 0.01], grown=True)
    sizes = {s.name: s.template.n_nodes for s in settings if s.template}
    assert sizes == {f"tree-{n}": n for n in TREE_NODES} | {f"chain-{n}": n for n in CHAIN_NODES}
    assert [Setting.from_dict(s.to_dict()) for s in settings] == settings


def test_records_go_on_after_a_line_that_was_cut(tmp_path: Path) -> None:
    file = tmp_path / "out" / "pairs.jsonl"
    Records(file, {"n": 1}).append("m", "measured", "q1", value=3)
    with file.open("a") as whole:
        whole.write('{"model": "m", "pha')
    again = Records(file, {"n": 1})
    again.append("m", "measured", "q2", value=4)
    third = Records(file, {"n": 1})
    assert [r["value"] for r in third.of("m", "measured")] == [3, 4]
    assert third.find("m", "measured", "q2") is not None
    assert third.find("m", "measured", "q3") is None


@pytest.mark.parametrize("first", ['{"settings": {}}', '{"format": 99, "settings": {}}'])
def test_records_of_another_format_are_refused(tmp_path: Path, first: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(first + "\n")
    with pytest.raises(ConfigError, match=r"is of format \d+, .* use another directory"):
        Records(file, {})


def test_records_of_other_settings_are_refused(tmp_path: Path) -> None:
    Records(tmp_path / "pairs.jsonl", {"n": 1, "m": (2,)})
    with pytest.raises(ConfigError, match=r"other settings \(n\)"):
        Records(tmp_path / "pairs.jsonl", {"n": 2, "m": (2,)})


def test_a_file_without_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text("x\n")
    with pytest.raises(ConfigError, match="not a record"):
        Records(tmp_path / "pairs.jsonl", {})


def tokenize(text: str) -> Int32:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def test_adversarial_prompts_differ_and_hold_no_stop_token() -> None:
    prompts = adversarial_prompts(16, tokenize, 100, 256, frozenset({0, 7}))
    assert len({tuple(p.tokens.tolist()) for p in prompts}) == 16
    assert not any(np.isin([0, 7], p.tokens).any() for p in prompts[::2])


def test_interleaved_prompts_come_from_each_category_in_turn() -> None:
    none = np.zeros(1, dtype=np.int32)
    prompts = [Prompt(f"{c}{i}", c, none) for c in "ab" for i in range(3 if c == "a" else 1)]
    assert [(r, c, p.id) for r, c, p in interleave(prompts)] == [
        (0, 0, "a0"),
        (0, 1, "b0"),
        (1, 0, "a1"),
        (2, 0, "a2"),
    ]


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ([1, 2, 3, 4], 0.0),
        (range(10, 18), 1.0),
        ([0, *range(10, 20), 0], 10 / 12),
        ([*range(10, 18), *range(12, 20)], 1.0),
    ],
)
def test_copied_share_counts_tokens_in_long_matches(answer: list[int], share: float) -> None:
    assert copied_share(list(range(100)), list(answer)) == pytest.approx(share)
