from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import CostTable, measured_widths, median_table
from edge_tr.errors import ConfigError

INF = float("inf")
TABLE = CostTable((1, 2, 4, 8), (100, 300), ((10.0, 12.0, 12.0, 20.0), (20.0, 30.0, 40.0, 60.0)))


def test_times_between_measured_widths_are_interpolated() -> None:
    assert TABLE.at(100, 8).tolist() == [10, 10, 12, 12, 12, 14, 16, 18, 20]


def test_times_between_measured_contexts_are_interpolated() -> None:
    assert TABLE.at(200, 4).tolist() == [15, 15, 21, 23.5, 26]


def test_times_beyond_the_widest_follow_the_last_slope() -> None:
    assert TABLE.at(100, 10)[8:].tolist() == [20, 22, 24]


def test_times_beyond_the_longest_context_follow_the_last_slope() -> None:
    assert TABLE.at(500, 1).tolist() == [30, 30]


def test_a_context_shorter_than_measured_counts_as_the_shortest() -> None:
    assert TABLE.at(0, 2).tolist() == [10, 10, 12]


def test_times_never_fall_with_the_context() -> None:
    table = CostTable((1, 2), (0, 100), ((2.0, 9.0), (3.0, 5.0)))
    assert table.at(1000, 2).tolist() == [12, 12, 9]


def test_one_context_and_one_width_are_enough() -> None:
    assert CostTable((1,), (0,), ((5.0,),)).at(7, 3).tolist() == [5, 5, 5, 5]


def test_another_context_has_the_measured_seconds() -> None:
    table = TABLE.extended(900, {1: 50.0, 2: 90.0, 4: 100.0, 8: 90.0})
    assert table.contexts == (100, 300, 900)
    assert table.at(900, 8)[[1, 2, 4, 8]].tolist() == pytest.approx([50, 90, 100, 90])
    np.testing.assert_array_equal(table.at(200, 8), TABLE.at(200, 8))


def test_widths_without_seconds_grow_as_the_nearest_ones() -> None:
    table = TABLE.extended(900, {1: 40.0, 2: 60.0})
    assert table.at(900, 8)[[1, 2, 4, 8]].tolist() == pytest.approx([40, 60, 80, 120])


def test_a_context_without_a_plain_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 must be there"):
        TABLE.extended(900, {2: 1.0})


def test_a_context_that_is_not_the_longest_is_refused() -> None:
    with pytest.raises(ConfigError, match="must rise"):
        TABLE.extended(300, {1: 1.0})


def test_a_table_survives_json() -> None:
    assert CostTable.from_dict(json.loads(json.dumps(TABLE.to_dict()))) == TABLE


@pytest.mark.parametrize(
    ("widths", "contexts", "seconds"),
    [
        ((), (0,), ((),)),
        ((2, 3), (0,), ((1.0, 1.0),)),
        ((1, 1), (0,), ((1.0, 1.0),)),
        ((1,), (-1,), ((1.0,),)),
        ((1,), (0, 0), ((1.0,), (1.0,))),
        ((1,), (0,), ((1.0, 2.0),)),
        ((1,), (0, 1), ((1.0,),)),
        ((1,), (0,), ((0.0,),)),
        ((1,), (0,), ((INF,),)),
        ((1,), (0,), ((float("nan"),),)),
    ],
)
def test_what_is_no_cost_table_is_refused(widths: Any, contexts: Any, seconds: Any) -> None:
    with pytest.raises(ConfigError, match="cost table"):
        CostTable(widths, contexts, seconds)


@pytest.mark.parametrize("data", [None, [], {}, {"widths": [1]}, {"widths": "a", "contexts": []}])
def test_a_damaged_dictionary_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match="cost table"):
        CostTable.from_dict(data)


def test_the_median_of_the_samples_is_taken() -> None:
    samples = {(0, 1): [1.0, 9.0, 2.0], (0, 2): [4.0], (0, 3): []}
    assert median_table([1, 2, 3], [0], samples) == CostTable((1, 2), (0,), ((2.0, 4.0),))


@pytest.mark.parametrize("max_width", [2, 16, 17, 81, 500])
def test_measured_widths_rise_to_the_widest(max_width: int) -> None:
    widths = measured_widths(max_width)
    assert widths == sorted(set(widths))
    assert widths[0] == 1
    assert widths[-1] == max_width


def test_costs_without_a_table_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match="not measured"):
        StepCosts().steady(0)


def test_a_token_costs_the_slope_between_the_widest_and_the_narrowest_step() -> None:
    costs = StepCosts()
    for n_tokens, seconds in ((1, 0.01), (3, 9.0), (5, 0.03)):
        costs.observe(n_tokens, 0, seconds, 1)
    assert costs.token_s() == pytest.approx(0.005)


def test_the_cost_of_a_token_is_unknown_before_two_widths_were_seen() -> None:
    costs = StepCosts()
    costs.observe(4, 0, 1.0, 1)
    costs.observe(4, 0, 2.0, 1)
    assert costs.token_s() == INF


def test_the_cost_of_a_token_is_never_negative() -> None:
    costs = StepCosts()
    costs.observe(1, 0, 2.0, 1)
    costs.observe(2, 0, 1.0, 1)
    assert costs.token_s() == 0.0


def test_the_rate_is_what_the_last_steps_gave() -> None:
    costs = StepCosts()
    for _ in range(2000):
        costs.observe(1, 0, 0.5, 1)
    assert costs.rate == pytest.approx(2.0)
    for _ in range(2000):
        costs.observe(4, 0, 1.0, 3)
    assert costs.rate == pytest.approx(3.0)


def test_a_text_starts_with_a_rate_of_its_own() -> None:
    costs = StepCosts(TABLE, 8)
    costs.observe(4, 100, 0.5, 4)
    costs.forget_rate()
    assert costs.rate == 0
    costs.observe(1, 100, 0.5, 1)
    assert costs.rate == pytest.approx(2.0)


def test_costs_follow_a_machine_that_slows_down() -> None:
    costs = StepCosts(TABLE, 8)
    for _ in range(100):
        costs.observe(1, 100, 20.0, 1)
    np.testing.assert_allclose(costs.steady(100), 2 * TABLE.at(100, 8), rtol=0.02)


def test_costs_follow_a_width_that_was_measured_wrongly() -> None:
    costs = StepCosts(TABLE, 8)
    for _ in range(300):
        costs.observe(1, 100, 10.0, 1)
        costs.observe(4, 100, 24.0, 2)
    seconds = costs.steady(100)
    assert seconds[1] == pytest.approx(10, rel=0.05)
    assert seconds[4] == pytest.approx(24, rel=0.05)
    assert seconds[2] == pytest.approx(12, rel=0.05)


def test_one_odd_step_changes_little() -> None:
    costs = StepCosts(TABLE, 8)
    costs.observe(1, 100, 1e6, 1)
    assert costs.steady(100)[1] < 10 * 1.2


def test_a_machine_that_stays_slower_is_told_once() -> None:
    told: list[int] = []
    costs = StepCosts(TABLE, 8, lambda: told.append(1))
    for _ in range(200):
        costs.observe(1, 100, 14.0, 1)
    assert told == [1]


def test_a_width_that_was_measured_wrongly_is_told_once() -> None:
    told: list[int] = []
    costs = StepCosts(TABLE, 8, lambda: told.append(1))
    for _ in range(40):
        costs.observe(1, 100, 10.0, 1)
        costs.observe(4, 100, 0.5 * TABLE.at(100, 8)[4], 2)
    assert told == [1]


@pytest.mark.parametrize("seconds", [8.0, 10.0, 12.5])
def test_a_machine_that_changed_little_is_not_told(seconds: float) -> None:
    told: list[int] = []
    costs = StepCosts(TABLE, 8, lambda: told.append(1))
    for _ in range(200):
        costs.observe(1, 100, seconds, 1)
    assert told == []


def test_a_step_of_another_width_costs_the_change_too() -> None:
    costs = StepCosts(CostTable((1, 2), (0,), ((10.0, 12.0),), change_s=3.0), 2)
    costs.observe(2, 0, 15.0, 1)
    assert costs.next_step(0)[1:].tolist() == [13, 12]
    costs.observe(1, 0, 13.0, 1)
    assert costs.next_step(0)[1:].tolist() == [10, 15]


def far(told: list[CostTable]) -> StepCosts:
    return StepCosts(TABLE, 8, on_extend=told.append)


@pytest.mark.parametrize(("n_past", "is_far"), [(1199, False), (2047, False), (2048, True)])
def test_a_text_far_beyond_the_table_is_to_be_measured(n_past: int, is_far: bool) -> None:
    assert far([]).is_far(n_past) == is_far


def test_nothing_is_far_without_a_table() -> None:
    assert not StepCosts().is_far(10**6)


def test_a_context_is_measured_once() -> None:
    costs = far([])
    costs.extend(3000, {1: 50.0})
    assert not costs.is_far(11999)
    assert costs.is_far(12000)


def test_a_context_that_could_not_be_measured_is_not_tried_at_each_step() -> None:
    told: list[CostTable] = []
    costs = far(told)
    costs.extend(3000, {})
    assert not costs.is_far(5999)
    assert costs.is_far(6000)
    assert told == []


def test_what_was_learned_about_a_width_stays() -> None:
    told: list[CostTable] = []
    costs = far(told)
    for _ in range(300):
        costs.observe(1, 100, 10.0, 1)
        costs.observe(4, 100, 15.0, 2)
    for n_past in (3000, 20000):
        costs.extend(n_past, {1: 50.0, 2: 60.0, 4: 100.0})
        assert costs.steady(n_past)[4] == pytest.approx(100, rel=0.01)
        assert costs.steady(100)[4] == pytest.approx(15, rel=0.05)
    assert told[-1].seconds[2] == told[-1].seconds[3]
    assert told[-1].at(3000, 4)[4] == pytest.approx(100, rel=0.05)


def test_what_was_measured_is_kept_in_the_time_of_the_table() -> None:
    told: list[CostTable] = []
    costs = far(told)
    for _ in range(200):
        costs.observe(1, 100, 11.0, 1)  # the machine takes a tenth longer now
    costs.extend(3000, {1: 55.0, 2: 110.0})
    assert costs.steady(3000)[1:3].tolist() == pytest.approx([55, 110], rel=0.01)
    assert told[0].at(3000, 2)[1:].tolist() == pytest.approx([50, 100], rel=0.01)


def test_a_table_that_is_no_longer_believed_is_not_kept() -> None:
    told: list[CostTable] = []
    costs = far(told)
    for _ in range(200):
        costs.observe(1, 100, 20.0, 1)
    costs.extend(3000, {1: 55.0})
    assert told == []
