"""A drafter that can be used only later: until then every step is plain."""

from __future__ import annotations

import pytest
from drafters import TestDrafter
from fake_target import FakeTarget, HashModel
from samplers import TemperatureSampler

from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.draft import Draft
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.target import Int32

PROMPT = [3, 1, 4, 1, 5]
N_TOKENS = 40


class Begun(TestDrafter):
    """Notes what texts it began with."""

    def __init__(self) -> None:
        super().__init__(16)
        self.texts: list[list[int]] = []

    def begin(self, tokens: Int32, temperature: float = 0.0) -> None:
        self.texts.append(tokens.tolist())

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        pass


class After:
    """Ready after so many questions."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self) -> bool:
        self.n -= 1
        return self.n < 0


def target() -> FakeTarget:
    return FakeTarget(HashModel(16, memory=1), n_ctx=128, n_batch=32)


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("n_plain", [0, 1, 2, 9, 100])
def test_the_text_is_the_same_whenever_drafting_begins(
    n_plain: int, temperature: float, one_by_one: bool
) -> None:
    def answer(decoder: Decoder) -> list[int]:
        sampler = TemperatureSampler(temperature, seed=7) if temperature else None
        steps = decoder.generate(
            PROMPT, max_tokens=N_TOKENS, sampler=sampler, one_by_one=one_by_one and bool(sampler)
        )
        return [token for step in steps for token in step]

    drafter = GrownTreeDrafter(Candidates(AdjacencyMatrix(16)), n_ctx=128, max_lanes=4)
    late = Decoder(target(), drafter, is_ready=After(n_plain))
    texts = [answer(late), answer(late)]
    plain = Decoder(target())
    assert texts == [answer(plain), answer(plain)]
    assert late.stats.n_drafted > 0 or n_plain == 100


def test_it_begins_with_all_that_stands_there() -> None:
    drafter = Begun()
    decoder = Decoder(target(), drafter, is_ready=After(3))
    tokens = [t for step in decoder.generate(PROMPT, max_tokens=6) for t in step]
    assert drafter.texts == [PROMPT + tokens[:3]]
    for _ in decoder.generate(PROMPT, max_tokens=2):
        pass
    assert drafter.texts[1:] == [PROMPT]
