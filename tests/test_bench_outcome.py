"""How an answer is timed and counted."""

from __future__ import annotations

from collections.abc import Iterator

from edge_tr.bench.outcome import Outcome, collect, until_end


def steps(*lists: list[int]) -> Iterator[list[int]]:
    yield from lists


def test_each_list_behind_the_first_is_one_decode_step() -> None:
    outcome = collect(steps([1], [2, 3], [4]))
    assert (outcome.tokens, outcome.n_tokens, outcome.n_steps) == ([1, 2, 3, 4], 4, 2)


def test_an_answer_of_one_token_has_no_speed() -> None:
    assert not collect(steps([1])).counts


def test_nothing_is_generated_behind_the_end_of_the_text() -> None:
    assert list(until_end(steps([1], [2], [9], [3]), frozenset({9}))) == [[1], [2], [9]]


def test_what_is_empty_stays_out_of_a_record() -> None:
    assert Outcome(**Outcome(n_tokens=2, error="why").to_dict()) == Outcome(n_tokens=2, error="why")
