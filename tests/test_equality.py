"""The report of text equality, on a target whose rounding is known."""

from __future__ import annotations

import numpy as np
import pytest
from fake_target import FakeTarget, HashModel

from edge_tr.errors import ConfigError
from edge_tr.measuring.equality import EqualityReport, Known, TextPair, compare_texts
from edge_tr.target import Batch, Float32

PROMPT = np.array([1, 2, 3], dtype=np.int32)


class RoundingTarget(FakeTarget):
    """Wider batches lift token 0 by ``error``."""

    def __init__(self, error: float) -> None:
        super().__init__(HashModel(seed=1), n_ctx=256)
        self.error = error

    def decode(self, batch: Batch) -> Float32:
        rows = super().decode(batch)
        if batch.n > 1 and batch.logits[: batch.n].all():
            rows[:, 0] += self.error
        return rows


def pair(n: int = 40, changed: int | None = None) -> TextPair:
    plain = HashModel(seed=1).generate(PROMPT.tolist(), 256, max_tokens=n)
    drafted = list(plain)
    if changed is not None:
        drafted[changed] = (drafted[changed] + 1) % 16
    return TextPair("text", PROMPT, plain, drafted)


def test_equal_texts_on_an_exact_target_have_nothing_to_explain() -> None:
    report = compare_texts(RoundingTarget(0.0), [pair()], widths=[2, 5])
    assert report == EqualityReport(1, 1, (), 0.0, (2, 5), 40)


def test_the_gap_is_that_of_the_two_best_logits_at_the_first_difference() -> None:
    text = pair(changed=7)
    (difference,) = compare_texts(RoundingTarget(0.0), [text], widths=[2]).differences
    row = np.sort(HashModel(seed=1).logits([*PROMPT.tolist(), *text.plain[:7]]))
    assert (difference.name, difference.index) == ("text", 7)
    assert difference.gap == pytest.approx(row[-1] - row[-2])


def test_the_control_is_the_change_of_the_gap_in_batches() -> None:
    report = compare_texts(RoundingTarget(0.25), [pair()], widths=[3])
    assert report.control == pytest.approx(0.25, abs=1e-6)


def test_a_difference_above_twice_the_control_is_a_violation() -> None:
    report = compare_texts(RoundingTarget(0.0), [pair(changed=3), pair()], widths=[2])
    assert report.to_dict()["violations"] == 1
    assert report.to_dict()["identical_share"] == 0.5


def test_the_control_stops_after_enough_positions() -> None:
    report = compare_texts(
        RoundingTarget(0.0), [pair(), pair(), pair()], widths=[2], n_positions=50
    )
    assert report.n_positions == 80


def test_texts_of_different_lengths_are_refused() -> None:
    text = pair()
    short = TextPair("short", PROMPT, text.plain, text.drafted[:-1])
    with pytest.raises(ConfigError, match="short: 40 plain and 39 drafted"):
        compare_texts(RoundingTarget(0.0), [short], widths=[2])


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ConfigError, match="no texts"):
        compare_texts(RoundingTarget(0.0), [], widths=[2])


def test_more_texts_serve_the_control_where_the_plain_ones_are_short() -> None:
    text = np.array(HashModel(seed=1).generate([4], 256, max_tokens=30), dtype=np.int32)
    report = compare_texts(
        RoundingTarget(0.0), [pair(8)], widths=[2], n_positions=30, more_texts=[text]
    )
    assert report.n_positions == 38


def test_a_text_that_is_known_is_not_read_one_by_one_again() -> None:
    known: Known = {}
    first, second = RoundingTarget(0.0), RoundingTarget(0.0)
    reports = [
        compare_texts(target, [pair()], widths=[2], known=known) for target in (first, second)
    ]
    assert reports[0] == reports[1]
    assert second.n_calls < first.n_calls
