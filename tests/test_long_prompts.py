"""Steps that are measured behind a long prompt: nothing of them stays."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from fake_target import FakeTarget, HashModel

from edge_tr.costs.running import StepCosts
from edge_tr.decode.decoder import Decoder
from edge_tr.decode.lanes import LaneCache
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.errors import DecodeError
from edge_tr.measuring import steps
from edge_tr.target import Float32


class FarCosts(StepCosts):
    """Costs that are to be measured behind every prompt.

    Attributes
    ----------
    n_measured : how often they were.
    """

    n_measured = 0

    def is_far(self, n_past: int) -> bool:
        return n_past > 0

    def extend(self, n_past: int, seconds: Mapping[int, float]) -> None:
        self.n_measured += 1


def far_decoder(n_ctx: int = 64) -> tuple[Decoder, FakeTarget, FarCosts]:
    target = FakeTarget(HashModel(memory=2), n_ctx=n_ctx, n_batch=16)
    costs = FarCosts(max_width=16)
    drafter = GrownTreeDrafter(
        Candidates(AdjacencyMatrix(target.n_vocab, 4)), n_ctx=n_ctx, max_lanes=8
    )
    return Decoder(target, drafter, costs=costs, measure_behind=steps.extend_costs), target, costs


@pytest.mark.parametrize("n_prompt", [17, 20, 40])
def test_measuring_behind_a_text_leaves_no_trace(n_prompt: int) -> None:
    decoder, target, costs = far_decoder(128)
    prompt = [i % target.n_vocab for i in range(n_prompt)]
    for _ in range(2):
        text = [t for step in decoder.generate(prompt, max_tokens=40) for t in step]
        assert text == target.model.generate(prompt, target.n_ctx, max_tokens=40)
        target.assert_only_committed(decoder.tokens.tolist())
    assert costs.n_measured > 0


def test_the_row_of_the_prompt_is_still_there_when_it_is_asked_for() -> None:
    decoder, target, _ = far_decoder()
    rows = []

    class Spy:
        temperature = 0.0

        def sample(self, index: int, logits: Float32) -> int:
            rows.append(logits)
            return int(logits.argmax())

    prompt = [i % target.n_vocab for i in range(20)]
    first = next(decoder.generate(prompt, max_tokens=40, sampler=Spy()))
    assert first == [int(rows[0].argmax())] == target.model.generate(prompt, 64, max_tokens=1)


@pytest.mark.parametrize(("n_prompt", "max_tokens"), [(20, 31), (57, 40), (0, 40)])
def test_nothing_is_measured_where_it_cannot_pay(n_prompt: int, max_tokens: int) -> None:
    decoder, target, costs = far_decoder()
    if n_prompt == 0:
        decoder, n_prompt = Decoder(target, costs=costs, measure_behind=steps.extend_costs), 20
    prompt = [i % target.n_vocab for i in range(n_prompt)]
    for _ in decoder.generate(prompt, max_tokens=max_tokens):
        pass
    assert costs.n_measured == 0


def test_a_failure_while_measuring_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, target, costs = far_decoder()

    def fail(target: FakeTarget, topk: object, lanes: LaneCache, *rest: object) -> None:
        target.seq_cp(0, 1, 0, lanes.n_past)
        raise DecodeError("no memory")

    monkeypatch.setattr(steps, "measure_behind", fail)
    prompt = [i % target.n_vocab for i in range(20)]
    text = [t for step in decoder.generate(prompt, max_tokens=40) for t in step]
    assert text == target.model.generate(prompt, target.n_ctx, max_tokens=40)
    assert costs.n_measured == 1
