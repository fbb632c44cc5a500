from __future__ import annotations

import json

from edge_tr.stats import Stats


def test_rates_of_a_generation() -> None:
    stats = Stats(n_prompt=30, n_reused=10, n_tokens=21, n_steps=8, n_drafted=48, n_accepted=12)
    stats.prefill_s, stats.total_s = 0.5, 2.5
    assert stats.mat == 2.5
    assert stats.acceptance_rate == 0.25
    assert stats.decode_tps == 10
    assert stats.prefill_tps == 40


def test_rates_before_anything_happened_are_zero() -> None:
    stats = Stats()
    assert [stats.mat, stats.acceptance_rate, stats.decode_tps, stats.prefill_tps] == [0] * 4


def test_depths_are_counted_up_to_what_was_reached() -> None:
    stats = Stats()
    stats.count_depths(3, 1)
    stats.count_depths(2, 2)
    stats.count_depths(0, 0)
    assert stats.drafted_by_depth == [2, 2, 1]
    assert stats.accepted_by_depth == [2, 1]
    assert stats.acceptance_by_depth == [1.0, 0.5, 0.0]


def test_everything_goes_to_json() -> None:
    assert json.loads(json.dumps(Stats(n_tokens=3).to_dict()))["n_tokens"] == 3
