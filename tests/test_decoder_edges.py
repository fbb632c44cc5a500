"""The decode loop at its limits: budgets, stops, full contexts, bad input, cancelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drafters import FixedCosts, OracleDrafter, RandomDrafter
from fake_target import FakeTarget, HashModel

from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import (
    CancelledError,
    ConfigError,
    ContextFullError,
    DecodeError,
    PromptTooLongError,
)
from edge_tr.target import Batch, Float32

MODEL = HashModel(16, memory=2)
PROMPT = [3, 1, 4, 1, 5]


def text_of(decoder: Decoder, prompt: Any = PROMPT, **options: Any) -> list[int]:
    return [token for emitted in decoder.generate(prompt, **options) for token in emitted]


def recycling(target: FakeTarget, template: TreeTemplate | None = None) -> Decoder:
    template = template or TreeTemplate.from_breadths([2, 2, 1])
    return Decoder(target, FixedTreeDrafter(AdjacencyMatrix(target.n_vocab), template))


def oracle(model: HashModel = MODEL, *, n_ctx: int = 64, costs: Any = None) -> Decoder:
    drafter = OracleDrafter(model.n_vocab, model.generate(PROMPT, n_ctx), reach=6)
    return Decoder(FakeTarget(model, n_ctx=n_ctx), drafter, costs=costs)


# Budgets and stops


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_a_budget_below_the_accepted_path_is_kept(max_tokens: int) -> None:
    assert text_of(oracle(), max_tokens=max_tokens) == MODEL.generate(
        PROMPT, 64, max_tokens=max_tokens
    )


def test_no_tokens_means_no_decoding() -> None:
    decoder = recycling(FakeTarget())
    assert text_of(decoder, max_tokens=0) == []
    assert decoder.target.n_calls == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", range(1, 8))
def test_a_stop_token_inside_an_accepted_path_ends_the_text(place: int) -> None:
    model = HashModel(200, memory=None)
    stop = model.generate(PROMPT, 64)[place]
    expected = model.generate(PROMPT, 64, stop_tokens={stop})
    assert text_of(oracle(model), stop_tokens={stop}) == expected


def test_after_a_stop_the_next_turn_reuses_what_was_accepted() -> None:
    model = HashModel(200, memory=None)
    decoder = oracle(model)
    first = text_of(decoder, stop_tokens={model.generate(PROMPT, 64)[4]})
    prompt = [*PROMPT, *first, 7]
    assert text_of(decoder, prompt, max_tokens=5) == model.generate(prompt, 64, max_tokens=5)
    assert decoder.stats.n_reused == len(PROMPT) + len(first) - 1


# Context and batch


@pytest.mark.parametrize("n_ctx", range(len(PROMPT) + 1, len(PROMPT) + 14))
def test_the_context_fills_up_inside_a_tree(n_ctx: int) -> None:
    decoder = oracle(n_ctx=n_ctx)
    assert text_of(decoder) == MODEL.generate(PROMPT, n_ctx)
    assert len(decoder.tokens) == n_ctx


@pytest.mark.parametrize("n_batch", [1, 2, 5, 80, 81])
def test_more_nodes_than_the_batch_holds(n_batch: int) -> None:
    target = FakeTarget(MODEL, n_ctx=200, n_batch=n_batch, n_lanes=40)
    matrix = AdjacencyMatrix.random(16)
    decoder = Decoder(target, FixedTreeDrafter(matrix, TreeTemplate.paper()))
    assert text_of(decoder) == MODEL.generate(PROMPT, 200)


@pytest.mark.parametrize("max_width", [1, 3, 5])
def test_no_step_is_wider_than_allowed(max_width: int) -> None:
    widths: list[int] = []

    class Watched(FakeTarget):
        def decode(self, batch: Batch) -> Float32:
            widths.append(batch.n)
            return super().decode(batch)

    drafter = OracleDrafter(16, MODEL.generate(PROMPT, 64))
    text_of(Decoder(Watched(MODEL), drafter, max_width=max_width))
    assert max(widths[1:]) == max_width


def test_a_prompt_that_fills_all_but_one_cell() -> None:
    prompt = list(range(15)) * 4
    decoder = recycling(FakeTarget(MODEL, n_ctx=61))
    assert text_of(decoder, prompt) == MODEL.generate(prompt, 61)


def test_a_context_that_is_full_against_all_counting_is_an_error() -> None:
    target = FakeTarget(MODEL, n_ctx=20)
    decoder = recycling(target)
    steps = decoder.generate(PROMPT)
    next(steps)
    free = np.flatnonzero(target.pos < 0)
    target.pos[free], target.carries[free, 0] = 1000 + free, True
    target._span = lambda lane: (0, len(PROMPT) - 1)  # type: ignore[method-assign]
    with pytest.raises(ContextFullError):
        next(steps)


# Bad input


@pytest.mark.parametrize("prompt", [[], [[1, 2]], [1.5], ["a"], "text", [None], 3])
def test_what_is_no_list_of_tokens_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigError, match="token"):
        Decoder(FakeTarget()).generate(prompt)


@pytest.mark.parametrize("token", [-1, 16, 1 << 40, 1 << 80])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(ConfigError, match="token"):
        Decoder(FakeTarget()).generate([1, token])


@pytest.mark.parametrize("n", [64, 65, 1000])
def test_a_prompt_longer_than_the_context_is_refused(n: int) -> None:
    with pytest.raises(PromptTooLongError, match=f"has {n} tokens; a context of 64 "):
        Decoder(FakeTarget(n_ctx=64)).generate([1] * n)


def test_refused_input_leaves_the_sequence_alone() -> None:
    decoder = recycling(FakeTarget(MODEL))
    text_of(decoder, max_tokens=9)
    before = decoder.tokens.tolist()
    with pytest.raises(ConfigError):
        decoder.generate([99])
    assert decoder.tokens.tolist() == before


def test_a_negative_number_of_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_tokens -1"):
        Decoder(FakeTarget()).generate([1], max_tokens=-1)


def test_a_width_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_width 0"):
        Decoder(FakeTarget(), max_width=0)


def test_a_tree_with_more_leaves_than_lanes_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs 4 lanes"):
        recycling(FakeTarget(n_lanes=3), TreeTemplate.from_breadths([4]))


def test_a_drafter_of_another_vocabulary_is_refused() -> None:
    drafter = FixedTreeDrafter(AdjacencyMatrix(17), TreeTemplate([]))
    with pytest.raises(ConfigError, match="17"):
        Decoder(FakeTarget(), drafter)


def test_drafting_for_a_target_that_cannot_rewind_is_refused() -> None:
    with pytest.raises(ConfigError, match="rejected"):
        recycling(FakeTarget(n_lanes=1, can_rewind=False), TreeTemplate.from_breadths([1]))


# A state that cannot rewind


def test_two_equal_calls_give_one_text_where_nothing_can_be_rewound() -> None:
    decoder = Decoder(FakeTarget(MODEL, n_lanes=1, can_rewind=False))
    expected = MODEL.generate(PROMPT, 64, max_tokens=20)
    assert text_of(decoder, max_tokens=20) == expected
    assert text_of(decoder, max_tokens=20) == expected
    assert decoder.stats.n_reused == 0


def test_a_next_turn_is_reused_where_nothing_can_be_rewound() -> None:
    decoder = Decoder(FakeTarget(MODEL, n_lanes=1, can_rewind=False))
    prompt = [*PROMPT, *text_of(decoder, max_tokens=20), 2]
    assert text_of(decoder, prompt, max_tokens=5) == MODEL.generate(prompt, 64, max_tokens=5)
    assert decoder.stats.n_reused == len(prompt) - 2


# Numbers that are none


def test_a_row_without_a_finite_logit_is_an_error() -> None:
    class Blind(HashModel):
        def logits(self, path: Any, *, broken: bytes = b"") -> Float32:
            return np.full(self.n_vocab, np.nan, dtype=np.float32)

    with pytest.raises(DecodeError, match="finite"):
        text_of(Decoder(FakeTarget(Blind())))


def test_a_bad_row_of_a_rejected_node_does_no_harm() -> None:
    class Picky(HashModel):
        def logits(self, path: Any, *, broken: bytes = b"") -> Float32:
            logits = super().logits(path, broken=broken)
            return logits if list(path) in good else np.full_like(logits, np.nan)

    good = [PROMPT]
    plain = HashModel(200, memory=None)
    text = plain.generate(PROMPT, 64)
    good = [PROMPT + text[:i] for i in range(60)]
    target = FakeTarget(Picky(200, memory=None), n_lanes=7)
    assert text_of(Decoder(target, OracleDrafter(200, text, decoys_first=True))) == text


# Random drafts are rejected, and every step still emits a token


def test_random_drafts_in_a_large_vocabulary_are_counted_as_rejected() -> None:
    model = HashModel(5000, memory=None)
    target = FakeTarget(model, n_ctx=200, n_lanes=6)
    decoder = Decoder(target, RandomDrafter(5000, seed=1))
    assert text_of(decoder) == model.generate(PROMPT, 200)
    assert decoder.stats.n_drafted > 500
    assert decoder.stats.acceptance_rate < 0.01
    assert decoder.stats.mat < 1.05


# Cancelling, errors and more than one generation


def cancelled_by(hook: Callable[[Decoder], None], at_call: int) -> tuple[Decoder, FakeTarget]:
    """A decoder whose ``decode`` runs ``hook`` in its ``at_call``-th call."""
    target = FakeTarget(MODEL, n_batch=2)
    decoder = recycling(target)

    def on_decode() -> None:
        if target.n_calls == at_call:
            hook(decoder)

    target.on_decode = on_decode
    return decoder, target


@pytest.mark.parametrize("at_call", [1, 2, 3, 4, 7])
def test_cancelling_inside_prefill_or_a_step(at_call: int) -> None:
    decoder, target = cancelled_by(Decoder.cancel, at_call)
    with pytest.raises(CancelledError):
        text_of(decoder)
    target.assert_only_committed(decoder.tokens.tolist())
    assert text_of(decoder) == MODEL.generate(PROMPT, 64)


@pytest.mark.parametrize("at_call", [1, 3, 6])
def test_an_interrupt_from_the_keyboard(at_call: int) -> None:
    def interrupt(decoder: Decoder) -> None:
        raise KeyboardInterrupt

    decoder, target = cancelled_by(interrupt, at_call)
    with pytest.raises(KeyboardInterrupt):
        text_of(decoder)
    target.assert_only_committed(decoder.tokens.tolist())
    assert text_of(decoder) == MODEL.generate(PROMPT, 64)


def test_cancelling_before_the_first_step() -> None:
    decoder = recycling(FakeTarget(MODEL))
    steps = decoder.generate(PROMPT)
    decoder.cancel()
    with pytest.raises(CancelledError):
        next(steps)


def test_cancelling_between_steps() -> None:
    decoder = recycling(FakeTarget(MODEL))
    steps = decoder.generate(PROMPT)
    next(steps)
    decoder.cancel()
    with pytest.raises(CancelledError):
        next(steps)


def test_cancelling_what_has_ended_does_not_stop_the_next() -> None:
    decoder = recycling(FakeTarget(MODEL))
    text_of(decoder)
    decoder.cancel()
    assert text_of(decoder) == MODEL.generate(PROMPT, 64)


def test_tokens_yielded_before_an_error_stay_committed() -> None:
    decoder, _ = cancelled_by(Decoder.cancel, 6)
    seen: list[int] = []
    steps = decoder.generate(PROMPT)
    with pytest.raises(CancelledError):
        seen.extend(token for emitted in steps for token in emitted)
    assert len(seen) > 1
    assert decoder.tokens.tolist() == PROMPT + seen


def test_a_generation_closed_early_is_no_burden() -> None:
    decoder = recycling(FakeTarget(MODEL))
    steps = decoder.generate(PROMPT)
    next(steps)
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert text_of(decoder, [3, 1, 9]) == MODEL.generate([3, 1, 9], 64)


def test_a_new_generation_ends_the_one_before() -> None:
    decoder = recycling(FakeTarget(MODEL))
    first = decoder.generate(PROMPT)
    next(first)
    second = decoder.generate([9, 9])
    text = next(second)
    with pytest.raises(DecodeError, match="another generation"):
        next(first)
    assert [*text, *[t for emitted in second for t in emitted]] == MODEL.generate([9, 9], 64)


def test_a_generation_that_never_began_cannot_disturb_a_newer_one() -> None:
    decoder = recycling(FakeTarget(MODEL))
    first = decoder.generate(PROMPT)
    second = decoder.generate([9, 9])
    text = next(second)
    with pytest.raises(DecodeError, match="another generation"):
        next(first)
    assert [*text, *[t for emitted in second for t in emitted]] == MODEL.generate([9, 9], 64)


def test_a_second_decoder_starts_clean_on_a_used_target() -> None:
    target = FakeTarget(MODEL)
    text_of(recycling(target))
    assert text_of(recycling(target), [9, 9]) == MODEL.generate([9, 9], 64)


def test_what_a_failing_step_accepted_is_dropped() -> None:
    decoder = oracle(HashModel(200, memory=None), costs=FixedCosts(float("inf")))
    steps = decoder.generate(PROMPT)
    first = next(steps)
    assert decoder.drafter is not None
    decoder.drafter.learn = lambda *_: 1 / 0  # type: ignore[assignment, method-assign]
    with pytest.raises(ZeroDivisionError):
        next(steps)
    assert decoder.tokens.tolist() == PROMPT + first
    assert decoder.target.assert_only_committed(PROMPT) == len(PROMPT)  # type: ignore[attr-defined]
