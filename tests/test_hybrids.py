"""Chains on hybrids: a recurrent state gives up rejected tokens, on tiny models of llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drop_in import EXACT, open_own, open_stock
from tree_bench import TreeBench

from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import CancelledError, DecodeError
from edge_tr.llama.library import lib
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.widths import probe_widths
from edge_tr.models.hybrids import HYBRIDS
from edge_tr.session import Session

N_SNAPSHOTS = 5
CHAIN = TreeTemplate.from_breadths([1] * N_SNAPSHOTS)
BIT_EQUAL = {"flash_attn": True, "type_k": "q8_0", "type_v": "q8_0"}
TEXT = [5, 6, 7, 8, 9, 10, 11, 12]

Open = Callable[..., LlamaTarget]
TinyModel = Callable[[str], Path]

pytestmark = pytest.mark.parametrize("arch", HYBRIDS)


@pytest.fixture(scope="module")
def model_of(tiny_model: TinyModel) -> Iterator[Callable[[str], Model]]:
    opened: list[Model] = []

    @cache
    def load(arch: str) -> Model:
        opened.append(Model(tiny_model(arch)))
        return opened[-1]

    yield load
    for model in opened:
        model.close()


@pytest.fixture
def open_target(model_of: Callable[[str], Model]) -> Iterator[Open]:
    """``open_target(arch, **config)``: a context on one thread, closed when the test ends."""
    opened: list[LlamaTarget] = []

    def make(arch: str, n_snapshots: int = N_SNAPSHOTS, **config: Any) -> LlamaTarget:
        options: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1}
        options |= BIT_EQUAL | config
        config_of_it = ContextConfig(**options, n_snapshots=n_snapshots)
        opened.append(LlamaTarget(model_of(arch), config_of_it))
        return opened[-1]

    yield make
    for target in opened:
        target.close()


def prompt_of(n: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 500, n)]


def chains(target: LlamaTarget) -> Decoder:
    """Drafts a chain as long as can be at every step."""
    candidates = Candidates(AdjacencyMatrix(target.n_vocab))
    n_nodes = target.n_rewind
    drafter = GrownTreeDrafter(candidates, n_ctx=target.n_ctx, max_nodes=n_nodes, max_lanes=1)
    return Decoder(target, drafter)


def text_of(decoder: Decoder, prompt: Any, **options: Any) -> list[int]:
    return [token for emitted in decoder.generate(prompt, **options) for token in emitted]


# The state


def test_snapshots_are_there_where_they_are_asked_for(open_target: Open, arch: str) -> None:
    target = open_target(arch)
    assert (target.n_rewind, target.n_lanes, target.can_rewind) == (N_SNAPSHOTS, 1, False)
    assert target.plain_reason == ""
    assert target.snapshot_bytes() > 0
    plain = open_target(arch, n_snapshots=0)
    assert plain.n_rewind == 0
    assert "state" in plain.plain_reason


def test_a_step_and_the_state_before_it_fit_one_graph(open_target: Open, arch: str) -> None:
    assert open_target(arch, n_ubatch=4).n_rewind == 3


def test_rows_are_the_same_with_snapshots_and_without(open_target: Open, arch: str) -> None:
    rows = []
    for n_snapshots in (0, N_SNAPSHOTS):
        bench = TreeBench(open_target(arch, n_snapshots))
        rows.append([bench.read(TEXT), *(bench.read([token]) for token in TEXT)])
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize("n_back", range(1, N_SNAPSHOTS + 1))
def test_what_was_given_up_leaves_no_trace(open_target: Open, arch: str, n_back: int) -> None:
    bench = TreeBench(open_target(arch))
    bench.read([1, 2, 3])
    alone = [bench.read([token]) for token in TEXT]
    bench.lanes.recover(0)
    bench.read([1, 2, 3])
    bench.read([*TEXT[: N_SNAPSHOTS + 1 - n_back], *[99] * n_back])
    n_past = 3 + N_SNAPSHOTS + 1 - n_back
    assert bench.lanes.rewind(n_past) == n_past
    np.testing.assert_array_equal(bench.read([TEXT[n_past - 3]]), alone[n_past - 3])


def test_tokens_are_given_up_once_until_the_next_batch(open_target: Open, arch: str) -> None:
    bench = TreeBench(open_target(arch))
    bench.read(TEXT)
    assert bench.lanes.rewind(6) == 6
    with pytest.raises(DecodeError, match="cannot drop"):
        bench.target.seq_rm(0, 5, -1)
    assert bench.lanes.rewind(5) == 0  # dropped whole instead
    bench.read(TEXT)
    assert bench.lanes.rewind(5) == 5


def test_a_batch_cannot_be_given_up_whole(open_target: Open, arch: str) -> None:
    """llama.cpp would go back to a snapshot of some batch before."""
    bench = TreeBench(open_target(arch))
    bench.read(TEXT)
    bench.read([1, 2])
    assert bench.lanes.rewind(len(TEXT)) == 0


def test_chains_are_bit_equal_after_chains_given_up(open_target: Open, arch: str) -> None:
    probe = probe_widths(open_target(arch), max_width=N_SNAPSHOTS + 1, contexts=(32, 300))
    assert probe.chain_width == N_SNAPSHOTS + 1
    assert probe.tree_width == 1


# The text


@pytest.mark.parametrize("seed", range(3))
def test_drafted_text_is_plain_text(open_target: Open, arch: str, seed: int) -> None:
    prompt = prompt_of(40, seed)
    plain = text_of(Decoder(open_target(arch, n_snapshots=0)), prompt, max_tokens=200)
    decoder = chains(open_target(arch))
    for _ in range(2):  # the second time much is accepted
        assert text_of(decoder, prompt, max_tokens=200) == plain
    stats = decoder.stats
    assert 0 < stats.n_accepted < stats.n_drafted
    assert stats.n_redone == 0


def test_the_next_turn_goes_on(open_target: Open, arch: str) -> None:
    decoder = chains(open_target(arch))
    prompt = [*prompt_of(30), *text_of(decoder, prompt_of(30), max_tokens=50), 5, 6]
    second = text_of(decoder, prompt, max_tokens=50)
    assert decoder.stats.n_reused >= len(prompt) - 3
    assert second == text_of(chains(open_target(arch)), prompt, max_tokens=50)


def test_a_prompt_that_differs_at_the_end_goes_on_from_a_snapshot(
    open_target: Open, arch: str
) -> None:
    decoder = Decoder(open_target(arch))
    first, second = [*prompt_of(60), 1, 2, 3], [*prompt_of(60), 1, 7, 8, 9]
    decoder.read(first)
    text = text_of(decoder, second, max_tokens=20)
    assert decoder.stats.n_reused == 61
    assert text == text_of(Decoder(open_target(arch, n_snapshots=0)), second, max_tokens=20)


def test_a_prompt_that_differs_earlier_is_read_from_the_start(open_target: Open, arch: str) -> None:
    decoder = chains(open_target(arch))
    text_of(decoder, prompt_of(60), max_tokens=20)
    prompt = [*prompt_of(60)[:30], *prompt_of(20, seed=1)]
    text = text_of(decoder, prompt, max_tokens=20)
    assert decoder.stats.n_reused == 0
    assert text == text_of(Decoder(open_target(arch, n_snapshots=0)), prompt, max_tokens=20)


def test_a_stopped_draft_is_taken_back(open_target: Open, arch: str) -> None:
    """The token limit falls into a chain of which more would have been accepted."""
    plain = text_of(Decoder(open_target(arch, n_snapshots=0)), prompt_of(30), max_tokens=90)
    decoder = chains(open_target(arch))
    text_of(decoder, prompt_of(30), max_tokens=90)
    for n in (31, 32, 33, 34):
        steps = decoder.generate(prompt_of(30), max_tokens=90, stop_tokens={plain[n]})
        text = [token for emitted in steps for token in emitted]
        assert text == plain[: plain.index(plain[n]) + 1]
        assert text_of(decoder, prompt_of(30), max_tokens=90) == plain


def test_cancelled_in_the_middle(open_target: Open, arch: str) -> None:
    target = open_target(arch)
    decoder = chains(target)
    expected = text_of(decoder, prompt_of(30), max_tokens=60)
    steps = decoder.generate(prompt_of(30), max_tokens=60)
    seen = [*next(steps), *next(steps), *next(steps)]
    decoder.cancel()
    with pytest.raises(CancelledError):
        next(steps)
    assert seen == expected[: len(seen)]
    assert text_of(decoder, prompt_of(30), max_tokens=60) == expected


def test_an_error_inside_a_step(
    open_target: Open, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is decoded, yet the step fails: what it left behind cannot be taken back."""
    target = open_target(arch)
    decoder = chains(target)
    expected = text_of(decoder, prompt_of(30), max_tokens=60)
    steps = decoder.generate(prompt_of(30), max_tokens=60)
    next(steps)
    next(steps)
    decode = target.decode

    def fail(batch: Any) -> Any:
        decode(batch)
        raise DecodeError("no more")

    monkeypatch.setattr(target, "decode", fail)
    with pytest.raises(DecodeError, match="no more"):
        next(steps)
    monkeypatch.undo()
    assert decoder.n_past == 0
    assert text_of(decoder, prompt_of(30), max_tokens=60) == expected


def test_a_state_saved_with_tokens_given_up(open_target: Open, arch: str) -> None:
    """It holds what is left, and what it is put into can give up nothing before its next batch."""
    target = open_target(arch)
    bench = TreeBench(target)
    bench.read(TEXT)
    bench.lanes.rewind(6)
    size = lib.llama_state_get_size(target.pointer)
    data = (ctypes.c_uint8 * size)()
    n_bytes = lib.llama_state_get_data(target.pointer, data, size)
    expected = bench.read([40, 41, 42])
    for other in (open_target(arch), target):
        again = TreeBench(other)
        assert lib.llama_state_set_data(other.pointer, data, n_bytes) == n_bytes
        again.lanes.adopt(6)
        np.testing.assert_array_equal(again.read([40, 41, 42]), expected)
        again.lanes.adopt(9)
        assert again.lanes.rewind(8) == 0


# The drop-in class


def test_the_drop_in_class_drafts_a_forced_chain(tiny_model: TinyModel, arch: str) -> None:
    path = tiny_model(arch)
    stock, own = open_stock(path), open_own(path, speculative=CHAIN)
    try:
        for _ in range(2):
            texts = [
                llm.create_completion("the people", max_tokens=60, temperature=0)["choices"]
                for llm in (own, stock)
            ]
            assert texts[0] == texts[1]
        assert own.stats.n_accepted > 0
        assert own.notices == []
    finally:
        own.close()
        stock.close()


def test_the_drop_in_class_saves_and_loads_between_steps(tiny_model: TinyModel, arch: str) -> None:
    llm = open_own(tiny_model(arch), speculative=CHAIN)
    prompt = llm.tokenize(b"the people said")
    steps = llm.generate(prompt, temp=0)
    first = [next(steps) for _ in range(20)]
    state = llm.save_state()
    rest = [next(steps) for _ in range(30)]
    llm.load_state(state)
    again = llm.generate(first[-1:], temp=0, reset=False)
    assert [next(again) for _ in range(30)] == rest
    llm.close()


def test_a_branched_tree_is_refused_in_one_line(tiny_model: TinyModel, arch: str) -> None:
    llm = open_own(tiny_model(arch), speculative=TreeTemplate.paper(), **EXACT)
    assert len(llm.notices) == 1
    assert "drafting is off" in llm.notices[0]
    llm.close()


# A session


def test_automatic_mode_writes_the_same_text(
    tiny_model: TinyModel, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the snapshots pay is measured; what comes of it does not change the text."""
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    texts, notices = [], []
    for speculative in ("off", "auto", "auto"):
        context = ContextConfig(n_ctx=512, n_threads=1, n_threads_batch=1)
        draft = DraftConfig(speculative=speculative, start="empty")
        with Session(tiny_model(arch), context=context, draft=draft) as session:
            texts.append(text_of(session.decoder, prompt_of(40), max_tokens=100))
            notices.append(session.notices)
    assert texts[1:] == texts[:1] * 2
    assert [len(lines) for lines in notices] == [0, 1, 1]
    assert "snapshots" in notices[1][0]


def test_a_context_that_is_made_again_has_its_snapshots(open_target: Open, arch: str) -> None:
    target = open_target(arch)
    expected = text_of(chains(target), prompt_of(30), max_tokens=40)
    target.close()
    target.open_again()
    assert int(lib.llama_n_rs_seq(target.pointer)) == N_SNAPSHOTS
    assert int(lib.llama_n_seq_max(target.pointer)) == 1
    assert text_of(chains(target), prompt_of(30), max_tokens=40) == expected
