"""Drafted text equals plain text, token for token, whatever is drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from drafters import FixedCosts, MoodyDrafter, OracleDrafter, RandomDrafter
from fake_target import FakeTarget, HashModel
from hypothesis import given, settings
from hypothesis import strategies as st
from samplers import TemperatureSampler

from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import CostTable
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.draft import Draft, Drafter
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.template import TreeTemplate

INF = float("inf")
TEMPLATES = (
    TreeTemplate([]),
    TreeTemplate([(0,), (1,), (0, 0)]),
    TreeTemplate.from_breadths([1] * 7),
    TreeTemplate.from_breadths([4, 2, 1]),
    TreeTemplate.from_breadths([8]),
    TreeTemplate([(2,), (2, 1), (2, 1, 0), (5,)]),
    TreeTemplate.paper(),
    TreeTemplate.paper().prefix(15),
)
COUNTED = settings(max_examples=150, deadline=None, derandomize=True, database=None)


@st.composite
def templates(draw: st.DrawFn) -> TreeTemplate:
    """One of ``TEMPLATES``, or random paths with their parents."""
    if draw(st.booleans()):
        return draw(st.sampled_from(TEMPLATES))
    ends = draw(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=5), max_size=8))
    return TreeTemplate({tuple(path[: i + 1]) for path in ends for i in range(len(path))})


@dataclass
class Case:
    """One way of running the decoder on one text."""

    model: HashModel
    n_ctx: int
    n_batch: int
    prompt: list[int]
    max_tokens: int | None
    stop_tokens: frozenset[int]
    temperature: float | None
    max_width: int | None
    token_s: float

    def sampler(self) -> TemperatureSampler | None:
        return TemperatureSampler(self.temperature, seed=7) if self.temperature else None

    def expected(self, prompt: Sequence[int] | None = None) -> list[int]:
        return self.model.generate(
            self.prompt if prompt is None else prompt,
            self.n_ctx,
            max_tokens=self.max_tokens,
            sampler=self.sampler(),
            stop_tokens=self.stop_tokens,
        )

    def decoder(self, drafter: Drafter | None) -> tuple[Decoder, FakeTarget]:
        n_lanes = drafter.max_lanes if drafter else 1
        target = FakeTarget(self.model, n_ctx=self.n_ctx, n_batch=self.n_batch, n_lanes=n_lanes)
        costs = FixedCosts(self.token_s)
        return Decoder(target, drafter, costs=costs, max_width=self.max_width), target

    def generate(
        self, decoder: Decoder, target: FakeTarget, prompt: Sequence[int] | None = None
    ) -> list[int]:
        """The text; after every step only committed cells are there."""
        text: list[int] = []
        steps = decoder.generate(
            self.prompt if prompt is None else prompt,
            max_tokens=self.max_tokens,
            sampler=self.sampler(),
            stop_tokens=self.stop_tokens,
        )
        for emitted in steps:
            assert emitted
            text += emitted
            assert_only_committed(decoder, target)
        return text


def assert_only_committed(decoder: Decoder, target: FakeTarget) -> int:
    n_cells = target.assert_only_committed(decoder.tokens.tolist())
    assert n_cells == decoder.n_past
    return n_cells


@st.composite
def cases(draw: st.DrawFn) -> Case:
    model = HashModel(
        draw(st.integers(2, 24)),
        seed=draw(st.integers(0, 99)),
        memory=draw(st.sampled_from((1, 2, 3, None))),
        levels=draw(st.sampled_from((None, None, 2, 4))),
    )
    tokens = st.integers(0, model.n_vocab - 1)
    n_ctx = draw(st.integers(2, 70))
    return Case(
        model,
        n_ctx,
        n_batch=draw(st.integers(1, 90)),
        prompt=draw(st.lists(tokens, min_size=1, max_size=min(20, n_ctx - 1))),
        max_tokens=draw(st.one_of(st.none(), st.integers(0, 8), st.integers(9, 60))),
        stop_tokens=draw(st.one_of(st.just(frozenset()), st.frozensets(tokens, max_size=2))),
        temperature=draw(st.sampled_from((None, None, 0.4, 1.0, 3.0))),
        max_width=draw(st.one_of(st.none(), st.integers(1, 12))),
        token_s=draw(st.sampled_from((0.0, 1e-5, INF))),
    )


@COUNTED
@given(case=cases())
def test_plain(case: Case) -> None:
    assert case.generate(*case.decoder(None)) == case.expected()


@COUNTED
@given(
    case=cases(),
    template=templates(),
    pollution=st.sampled_from(("empty", "random", "holes")),
    update=st.sampled_from(("all", "accepted")),
    harvest=st.booleans(),
)
def test_recycled(
    case: Case, template: TreeTemplate, pollution: str, update: Any, harvest: bool
) -> None:
    matrix = AdjacencyMatrix(case.model.n_vocab)
    if pollution != "empty":
        matrix = AdjacencyMatrix.random(case.model.n_vocab, seed=1)
    if pollution == "holes":
        matrix.rows[np.random.default_rng(1).random(matrix.rows.shape) < 0.3] = -1
    drafter = FixedTreeDrafter(matrix, template, update=update, harvest=harvest)
    decoder, target = case.decoder(drafter)
    assert case.generate(decoder, target) == case.expected()
    assert case.generate(decoder, target) == case.expected()


TABLE = CostTable((1, 2, 4, 8, 16, 64), (0, 50), ((1.0, 1.1, 1.2, 1.3, 1.5, 3.0),) * 2, row_s=0.01)


@COUNTED
@given(
    case=cases(),
    max_nodes=st.integers(0, 30),
    max_lanes=st.integers(1, 12),
    weighs_costs=st.booleans(),
    n_pairs=st.sampled_from((0, 4, 64)),
    harvest=st.booleans(),
)
def test_grown_trees(
    case: Case, max_nodes: int, max_lanes: int, weighs_costs: bool, n_pairs: int, harvest: bool
) -> None:
    drafter = GrownTreeDrafter(
        Candidates(AdjacencyMatrix.random(case.model.n_vocab), n_pairs=n_pairs),
        n_ctx=case.n_ctx,
        costs=StepCosts(TABLE, 64) if weighs_costs else None,
        max_nodes=max_nodes,
        max_lanes=max_lanes,
        harvest=harvest,
    )
    decoder, target = case.decoder(drafter)
    for _ in range(2):
        assert case.generate(decoder, target) == case.expected()
    prompt = case.prompt[::-1]
    assert case.generate(decoder, target, prompt) == case.expected(prompt)


@COUNTED
@given(
    case=cases(),
    n_rewind=st.integers(1, 9),
    weighs_costs=st.booleans(),
    harvest=st.booleans(),
    seed=st.one_of(st.none(), st.integers(0, 1000)),
)
def test_chains_where_few_tokens_can_be_given_up(
    case: Case, n_rewind: int, weighs_costs: bool, harvest: bool, seed: int | None
) -> None:
    drafter: Drafter = GrownTreeDrafter(
        Candidates(AdjacencyMatrix.random(case.model.n_vocab)),
        n_ctx=case.n_ctx,
        costs=StepCosts(TABLE, 64) if weighs_costs else None,
        max_nodes=12,
        max_lanes=1,
        harvest=harvest,
    )
    if seed is not None:
        drafter = RandomDrafter(case.model.n_vocab, seed, max_lanes=1)
    target = FakeTarget(
        case.model,
        n_ctx=case.n_ctx,
        n_batch=case.n_batch,
        n_lanes=1,
        can_rewind=False,
        n_rewind=n_rewind,
    )
    decoder = Decoder(target, drafter, max_width=case.max_width)
    for _ in range(2):
        assert case.generate(decoder, target) == case.expected()
    prompt = case.prompt[::-1]
    assert case.generate(decoder, target, prompt) == case.expected(prompt)


@COUNTED
@given(case=cases(), seed=st.integers(0, 1000))
def test_random_drafts(case: Case, seed: int) -> None:
    decoder, target = case.decoder(RandomDrafter(case.model.n_vocab, seed))
    assert case.generate(decoder, target) == case.expected()


@COUNTED
@given(case=cases(), reach=st.integers(1, 9), decoys_first=st.booleans(), wrong_last=st.booleans())
def test_right_drafts(case: Case, reach: int, decoys_first: bool, wrong_last: bool) -> None:
    drafter = OracleDrafter(
        case.model.n_vocab,
        case.expected(),
        reach=reach,
        decoys_first=decoys_first,
        wrong_last=wrong_last,
    )
    decoder, target = case.decoder(drafter)
    assert case.generate(decoder, target) == case.expected()


@COUNTED
@given(case=cases(), template=templates())
def test_a_drafter_that_drafts_nothing_at_random_steps(case: Case, template: TreeTemplate) -> None:
    drafter = MoodyDrafter(AdjacencyMatrix.random(case.model.n_vocab), template)
    decoder, target = case.decoder(drafter)
    assert case.generate(decoder, target) == case.expected()


@COUNTED
@given(case=cases(), template=templates(), data=st.data())
def test_several_prompts_on_one_decoder(
    case: Case, template: TreeTemplate, data: st.DataObject
) -> None:
    decoder, target = case.decoder(FixedTreeDrafter(AdjacencyMatrix(case.model.n_vocab), template))
    prompt = case.prompt
    for _ in range(3):
        held = target.token[: assert_only_committed(decoder, target)].tolist()
        assert case.generate(decoder, target, prompt) == case.expected(prompt)
        if case.max_tokens != 0:
            shared = [a == b for a, b in zip(held, prompt[:-1], strict=False)]
            n_reused = [*shared, False].index(False)
            if held == prompt:  # its last row may be there still
                assert decoder.stats.n_reused in (n_reused, len(prompt))
            else:
                assert decoder.stats.n_reused == n_reused
        keep = data.draw(st.integers(0, len(decoder.tokens)))
        more = data.draw(st.lists(st.integers(0, case.model.n_vocab - 1), max_size=5))
        prompt = [*decoder.tokens[:keep].tolist(), *more][: case.n_ctx - 1] or case.prompt


class FailingDrafter(FixedTreeDrafter):
    """Token Recycling that calls ``fail`` before it does anything."""

    fail: Callable[[], None] = staticmethod(lambda: None)

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        self.fail()
        super().propose(draft, max_nodes=max_nodes, max_depth=max_depth)

    def learn(self, *outcome: Any) -> None:
        self.fail()
        super().learn(*outcome)


def failing_after(n: int) -> Callable[[], None]:
    left = iter(range(n - 1, -1, -1))

    def fail() -> None:
        if next(left, 1) == 0:
            raise ZeroDivisionError

    return fail


@COUNTED
@given(
    case=cases(),
    template=templates(),
    failures=st.lists(
        st.tuples(st.sampled_from(("decode", "draft")), st.one_of(st.just(1), st.integers(1, 40))),
        min_size=2,
        max_size=5,
    ),
    data=st.data(),
)
def test_errors_at_any_place_leave_the_decoder_usable(
    case: Case, template: TreeTemplate, failures: list[tuple[str, int]], data: st.DataObject
) -> None:
    drafter = FailingDrafter(AdjacencyMatrix.random(case.model.n_vocab), template)
    decoder, target = case.decoder(drafter)
    for place, n in failures:
        drafter.fail = failing_after(n) if place == "draft" else lambda: None
        target.on_decode = failing_after(n) if place == "decode" else lambda: None
        prompt = case.prompt[: data.draw(st.integers(1, len(case.prompt)))]
        if data.draw(st.booleans()):
            prompt[-1] = data.draw(st.integers(0, case.model.n_vocab - 1))
        with suppress(ZeroDivisionError):
            assert case.generate(decoder, target, prompt) == case.expected(prompt)
        assert_only_committed(decoder, target)
    drafter.fail = target.on_decode = lambda: None
    assert case.generate(decoder, target) == case.expected()


@COUNTED
@given(case=cases(), template=templates())
def test_counts_agree_with_the_text(case: Case, template: TreeTemplate) -> None:
    decoder, target = case.decoder(FixedTreeDrafter(AdjacencyMatrix(case.model.n_vocab), template))
    text = case.generate(decoder, target)
    stats = decoder.stats
    assert stats.n_tokens == len(text)
    assert stats.n_prompt == len(case.prompt)
    assert stats.n_tokens == stats.n_accepted + stats.n_steps + bool(text)
    assert sum(stats.accepted_by_depth) == stats.n_accepted
    assert stats.n_accepted <= stats.n_drafted <= stats.n_steps * template.n_nodes
    assert stats.n_plain_steps <= stats.n_steps
    if case.max_tokens is not None:  # prefill gives the first token, the bonus token is free
        assert len(stats.drafted_by_depth) <= max(0, case.max_tokens - 2)


@pytest.mark.parametrize("token_s", [0.0, INF])
def test_keep_and_redo_give_one_text(token_s: float) -> None:
    model = HashModel(12, memory=None)
    case = Case(model, 200, 64, [3, 1, 2], 150, frozenset(), None, None, token_s)
    drafter = OracleDrafter(12, case.expected(), reach=4)
    decoder, target = case.decoder(drafter)
    assert case.generate(decoder, target) == case.expected()
    assert decoder.stats.mat > 4
    n_kept = decoder.stats.n_accepted - decoder.stats.n_redone
    assert n_kept == decoder.stats.n_accepted if token_s else n_kept <= 4  # the last step's
