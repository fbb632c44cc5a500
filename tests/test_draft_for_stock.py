from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from drop_in import open_stock

from edge_tr import TokenRecyclingDraft
from edge_tr.errors import ConfigError


def draft_of(model: TokenRecyclingDraft, text: list[int]) -> list[int]:
    draft = model(np.array(text, dtype=np.intc))
    assert draft.dtype == np.intc
    drafted: list[int] = draft.tolist()
    return drafted


def test_nothing_is_drafted_where_nothing_is_known() -> None:
    assert draft_of(TokenRecyclingDraft(), []) == []
    assert draft_of(TokenRecyclingDraft(), [1, 2, 3]) == []


def test_what_followed_last_time_is_drafted() -> None:
    assert draft_of(TokenRecyclingDraft(3), [1, 2, 3, 4, 5, 1]) == [2, 3, 4]


def test_two_tokens_know_better_than_one() -> None:
    assert draft_of(TokenRecyclingDraft(1), [1, 2, 3, 9, 2, 4, 1, 2]) == [3]


def test_what_was_learned_is_kept_for_the_next_text() -> None:
    model = TokenRecyclingDraft(2)
    draft_of(model, [1, 2, 3])
    assert draft_of(model, [7, 1]) == [2, 3]


@pytest.mark.parametrize("n", [0, 65])
def test_a_length_out_of_range(n: int) -> None:
    with pytest.raises(ConfigError, match=f"num_pred_tokens {n} is not allowed"):
        TokenRecyclingDraft(n)


def test_the_stock_class_writes_the_same_text(tiny_model: Callable[[str], Path]) -> None:
    path, prompt = tiny_model("llama"), [5, 6, 7, 8]
    plain = open_stock(path)
    drafting = open_stock(path, draft_model=TokenRecyclingDraft())
    expected = list(islice(plain.generate(prompt, temp=0.0), 60))
    assert list(islice(drafting.generate(prompt, temp=0.0), 60)) == expected
