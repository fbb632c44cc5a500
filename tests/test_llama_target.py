"""The lane protocol and the decode loop on real llama.cpp contexts of tiny models."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from tree_bench import TreeBench

from edge_tr.config import ContextConfig
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
from edge_tr.llama.library import lib
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.target import Batch, Float32

DRAFTABLE = ("llama", "qwen2", "gemma3", "mixtral")
RECURRENT = ("mamba", "jamba")
EXACT = {"flash_attn": True, "type_k": "q8_0", "type_v": "q8_0"}
PAPER = TreeTemplate.paper()
SMALL = TreeTemplate([(0,), (1,), (0, 0)])

Open = Callable[..., LlamaTarget]


@pytest.fixture(scope="module")
def model_of(tiny_model: Callable[[str], Path]) -> Iterator[Callable[[str], Model]]:
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

    def make(arch: str = "llama", **config: Any) -> LlamaTarget:
        options = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1} | config
        opened.append(LlamaTarget(model_of(arch), ContextConfig(**options)))
        return opened[-1]

    yield make
    for target in opened:
        target.close()


def prompt_of(n: int, seed: int = 0) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(token) for token in rng.integers(0, 500, n)]


def drafting(target: LlamaTarget, template: TreeTemplate = PAPER) -> Decoder:
    return Decoder(target, FixedTreeDrafter(AdjacencyMatrix(target.n_vocab), template))


def text_of(decoder: Decoder, prompt: Any, **options: Any) -> list[int]:
    return [token for emitted in decoder.generate(prompt, **options) for token in emitted]


def ends_of_lanes(target: LlamaTarget) -> list[int]:
    """Last position of each lane, -1 where it is empty."""
    return [
        int(lib.llama_memory_seq_pos_max(target.memory, lane)) for lane in range(target.n_lanes)
    ]


def assert_only_committed(target: LlamaTarget, n_past: int) -> None:
    """No lane goes beyond the committed sequence, and the other cells are free."""
    ends = ends_of_lanes(target)
    assert ends[0] == max(ends) == n_past - 1
    batch = Batch(target.n_batch, 1)
    while n_past < target.n_ctx:
        n = min(target.n_batch, target.n_ctx - n_past)
        batch.set_chain(np.ones(n, dtype=np.int32), n_past, want_rows=0)
        target.decode(batch)
        n_past += n
    batch.set_chain(np.ones(1, dtype=np.int32), n_past, want_rows=1)
    with pytest.raises(ContextFullError, match=f"context of {target.n_ctx} cells"):
        target.decode(batch)


# Trees: every node sees its own path, at the position of its depth


@pytest.mark.parametrize("arch", DRAFTABLE)
@pytest.mark.parametrize("n_past", [5, 60, 300])
def test_each_row_equals_its_path_decoded_alone(open_target: Open, arch: str, n_past: int) -> None:
    bench = TreeBench(open_target(arch, **EXACT))
    rng = np.random.default_rng(n_past)
    bench.read(prompt_of(n_past))
    bench.plant_random(rng, 20, 500)
    rows = bench.decode()
    for node in range(bench.draft.n):
        bench.rewind(n_past)
        for token in bench.path_to(node):
            alone = bench.read([token])
        np.testing.assert_array_equal(rows[node], alone)


@pytest.mark.parametrize("arch", DRAFTABLE)
@pytest.mark.parametrize("config", [{}, {"type_k": "f32", "type_v": "f32"}, {"flash_attn": True}])
def test_each_row_is_near_its_path_in_any_configuration(
    open_target: Open, arch: str, config: dict[str, Any]
) -> None:
    """Other kernels may round otherwise; a wrong lane or position changes logits by about 1."""
    bench = TreeBench(open_target(arch, **config))
    bench.read(prompt_of(60))
    bench.plant_random(np.random.default_rng(1), 20, 500)
    rows = bench.decode([7, 8, 9])
    for node in range(bench.draft.n):
        bench.rewind(60)
        alone = bench.read([7, 8, 9, *bench.path_to(node)])
        np.testing.assert_allclose(rows[node], alone, rtol=0, atol=0.1)


def test_positions_are_depths(open_target: Open) -> None:
    bench = TreeBench(open_target())
    bench.read(prompt_of(10))
    bench.plant((1, 0), (2, 0), (3, 0), (4, 1), (5, 4), root=9)
    bench.decode()
    assert ends_of_lanes(bench.target)[:3] == [13, 11, 11]  # type: ignore[arg-type]


def test_random_paths_are_committed_in_order(open_target: Open) -> None:
    target = open_target(n_ctx=256, **EXACT)
    bench, rng, front = TreeBench(target), np.random.default_rng(2), list[int]()
    bench.read(prompt_of(5))
    while len(bench.tokens) < 150:
        bench.plant_random(rng, int(rng.integers(0, 20)), 500)
        rows = bench.decode(front)
        parents = bench.draft.parent[1 : bench.draft.n].tolist()
        path: list[int] = []
        below = [i for i, p in enumerate(parents, 1) if p == 0]
        while below and rng.random() < 0.8:
            path.append(int(rng.choice(below)))
            below = [i for i, p in enumerate(parents, 1) if p == path[-1]]
        kept = bench.commit(path, float(rng.choice([0.0, 1e-5, np.inf])), front)
        front = bench.draft.token[path[kept:]].tolist()
    end = [0, *path][-1]
    bench.rewind(len(bench.tokens) + len(front) - len(path) - 1)
    tokens, past = [*bench.path_to(end)], bench.tokens.copy()
    alone = TreeBench(open_target(n_ctx=256, **EXACT))
    alone.read(past)
    np.testing.assert_array_equal(alone.read(tokens), rows[end])


# Drafted text equals plain text


@pytest.mark.parametrize("arch", DRAFTABLE)
@pytest.mark.parametrize("template", [SMALL, PAPER, TreeTemplate.from_breadths([1] * 5)])
def test_drafted_text_equals_plain_text(
    open_target: Open, arch: str, template: TreeTemplate
) -> None:
    plain = text_of(Decoder(open_target(arch, **EXACT)), prompt_of(30), max_tokens=200)
    decoder = drafting(open_target(arch, **EXACT), template)
    assert text_of(decoder, prompt_of(30), max_tokens=200) == plain
    assert decoder.stats.n_accepted > 0


@pytest.mark.parametrize("n_ubatch", [1, 4, 64])
def test_a_small_physical_batch_changes_nothing(open_target: Open, n_ubatch: int) -> None:
    plain = text_of(Decoder(open_target(**EXACT)), prompt_of(30), max_tokens=100)
    decoder = drafting(open_target(n_ubatch=n_ubatch, **EXACT))
    assert text_of(decoder, prompt_of(30), max_tokens=100) == plain


@pytest.mark.parametrize("n_batch", [1, 7, 40])
def test_more_nodes_than_the_batch_holds(open_target: Open, n_batch: int) -> None:
    plain = text_of(Decoder(open_target(**EXACT)), prompt_of(30), max_tokens=100)
    decoder = drafting(open_target(n_batch=n_batch, **EXACT))
    assert text_of(decoder, prompt_of(30), max_tokens=100) == plain


def test_several_turns_reuse_what_they_share(open_target: Open) -> None:
    decoder = drafting(open_target(**EXACT))
    prompt, n_reused = prompt_of(40), [-1]
    for turn in range(3):
        plain = text_of(Decoder(open_target(**EXACT)), prompt, max_tokens=40)
        assert text_of(decoder, prompt, max_tokens=40) == plain
        n_reused.append(decoder.stats.n_reused)
        prompt = [*prompt, *plain, *prompt_of(5, seed=turn)]
    assert n_reused == sorted(set(n_reused))


def test_only_committed_cells_remain_after_a_thousand_steps(open_target: Open) -> None:
    decoder = drafting(target := open_target(n_ctx=4096, **EXACT), SMALL)
    for _ in decoder.generate(prompt_of(30)):
        if decoder.stats.n_steps == 1000:
            break
    assert decoder.stats.n_steps == 1000
    assert_only_committed(target, decoder.n_past)


# Context


def test_a_wide_tree_at_the_end_of_the_context(open_target: Open) -> None:
    prompt = prompt_of(248)
    plain = text_of(Decoder(open_target(n_ctx=256, **EXACT)), prompt)
    decoder = drafting(open_target(n_ctx=256, **EXACT), TreeTemplate.from_breadths([8, 2, 1]))
    assert text_of(decoder, prompt) == plain
    assert len(decoder.tokens) == 256


def test_a_context_that_llama_cpp_pads_is_used_whole(open_target: Open) -> None:
    target = open_target(n_ctx=64)
    assert target.n_ctx == 256
    decoder = drafting(target)
    text_of(decoder, prompt_of(60))
    assert len(decoder.tokens) == 256


def test_a_prompt_longer_than_the_context_is_refused(open_target: Open) -> None:
    with pytest.raises(PromptTooLongError, match="has 256 tokens; a context of 256 "):
        Decoder(open_target(n_ctx=256)).generate(prompt_of(256))


def test_an_empty_prompt_is_refused(open_target: Open) -> None:
    with pytest.raises(ConfigError, match="no tokens"):
        Decoder(open_target()).generate([])


def test_a_token_outside_the_vocabulary_is_refused(open_target: Open) -> None:
    with pytest.raises(ConfigError, match=r"token 512 is not in the vocabulary \(0 to 511\)"):
        Decoder(open_target()).generate([1, 512])


def test_a_batch_that_llama_cpp_refuses_is_an_error(open_target: Open) -> None:
    batch = Batch(1, 1)
    batch.set_chain(np.array([512], dtype=np.int32), 0, want_rows=1)
    with pytest.raises(DecodeError, match="invalid token"):
        open_target().decode(batch)


# Sliding windows: gemma3's is 32, and a cache of windowed layers that is not full has 256 cells

WINDOWED = {"n_ctx": 1024, "n_ubatch": 32, **EXACT}


@pytest.mark.parametrize("template", [SMALL, PAPER])
def test_drafting_goes_on_beyond_the_sliding_window(
    open_target: Open, template: TreeTemplate
) -> None:
    prompt = prompt_of(500)
    plain = text_of(Decoder(open_target("gemma3", **WINDOWED)), prompt, max_tokens=300)
    target = open_target("gemma3", n_lanes=template.n_leaves, **WINDOWED)
    decoder = drafting(target, template)
    assert text_of(decoder, prompt, max_tokens=300) == plain
    assert text_of(decoder, prompt, max_tokens=300) == plain
    assert decoder.stats.n_reused == 499
    assert_only_committed(target, decoder.n_past)


def test_a_small_sliding_window_cache_runs_plain(open_target: Open) -> None:
    prompt = prompt_of(500)
    whole = text_of(Decoder(open_target("gemma3", **WINDOWED)), prompt, max_tokens=100)
    target = open_target("gemma3", swa_full=False, **WINDOWED)
    assert (target.n_lanes, target.can_rewind) == (1, False)
    assert "swa_full" in target.plain_reason
    decoder = Decoder(target)
    assert text_of(decoder, prompt, max_tokens=100) == whole
    assert text_of(decoder, prompt, max_tokens=100) == whole


# Recurrent and hybrid models


@pytest.mark.parametrize("arch", RECURRENT)
def test_a_recurrent_model_gives_one_text_on_two_calls(open_target: Open, arch: str) -> None:
    target = open_target(arch)
    assert (target.n_lanes, target.can_rewind) == (1, False)
    decoder = Decoder(target)
    first = text_of(decoder, prompt_of(30), max_tokens=60)
    assert len(set(first)) > 5
    assert text_of(decoder, prompt_of(30), max_tokens=60) == first
    assert decoder.stats.n_reused == 0


@pytest.mark.parametrize("arch", RECURRENT)
def test_a_recurrent_model_goes_on_with_the_next_turn(open_target: Open, arch: str) -> None:
    decoder = Decoder(open_target(arch))
    prompt = [*prompt_of(30), *text_of(decoder, prompt_of(30), max_tokens=20), 5, 6]
    second = text_of(decoder, prompt, max_tokens=20)
    assert decoder.stats.n_reused == len(prompt) - 3
    assert second == text_of(Decoder(open_target(arch)), prompt, max_tokens=20)


@pytest.mark.parametrize("arch", RECURRENT)
def test_a_recurrent_model_is_usable_after_cancelling(open_target: Open, arch: str) -> None:
    decoder = Decoder(open_target(arch))
    whole = text_of(decoder, prompt_of(30), max_tokens=20)
    steps = decoder.generate(prompt_of(30))
    next(steps)
    decoder.cancel()
    with pytest.raises(CancelledError):
        next(steps)
    assert text_of(decoder, prompt_of(30), max_tokens=20) == whole


@pytest.mark.parametrize("arch", RECURRENT)
def test_nothing_is_drafted_for_a_recurrent_model(open_target: Open, arch: str) -> None:
    with pytest.raises(ConfigError, match="cannot take rejected tokens back"):
        drafting(open_target(arch), TreeTemplate.from_breadths([1]))


# Cancelling from another thread


def cancel_when_running(decoder: Decoder, target: LlamaTarget, at_call: int) -> threading.Thread:
    """A thread that cancels as soon as the ``at_call``-th call of ``decode`` begins."""
    begun, calls, decode = threading.Event(), iter(range(1, 1 << 30)), target.decode

    def watched(batch: Batch) -> Float32:
        if next(calls) == at_call:
            begun.set()
        return decode(batch)

    def cancel() -> None:
        begun.wait()
        decoder.cancel()

    target.decode = watched  # type: ignore[method-assign]
    thread = threading.Thread(target=cancel)
    thread.start()
    return thread


def test_cancelling_in_the_middle_of_prefill(open_target: Open) -> None:
    config = {"n_ctx": 8192, "n_batch": 8192, **EXACT}
    decoder = drafting(target := open_target(**config))
    thread = cancel_when_running(decoder, target, at_call=1)
    with pytest.raises(CancelledError):
        text_of(decoder, prompt_of(8000))
    thread.join()
    assert len(decoder.tokens) == 0  # the one call of prefill was cut short
    plain = text_of(Decoder(open_target(**EXACT)), prompt_of(30), max_tokens=50)
    assert text_of(decoder, prompt_of(30), max_tokens=50) == plain


@pytest.mark.parametrize("at_call", [2, 20])
def test_cancelling_while_decoding(open_target: Open, at_call: int) -> None:
    decoder = drafting(target := open_target(n_ctx=4096, **EXACT))
    thread = cancel_when_running(decoder, target, at_call)
    with pytest.raises(CancelledError):
        text_of(decoder, prompt_of(30))
    thread.join()
    plain = text_of(Decoder(open_target(**EXACT)), prompt_of(30), max_tokens=50)
    assert text_of(decoder, prompt_of(30), max_tokens=50) == plain


# Opening and closing


def test_a_closed_context_is_an_error_and_no_crash(open_target: Open) -> None:
    decoder = drafting(target := open_target())
    steps = decoder.generate(prompt_of(30))
    next(steps)
    target.close()
    target.close()
    with pytest.raises(DecodeError, match="closed"):
        next(steps)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"n_ctx": -1}, "n_ctx -1"),
        ({"n_ctx": 1 << 25}, "must be 0 to 16777216"),
        ({"n_batch": 0}, "n_batch 0"),
        ({"n_lanes": 257}, "must be 1 to 256"),
        ({"type_k": "q3"}, "type_k 'q3' is not one of f32"),
        ({"flash_attn": False, "type_v": "q8_0"}, "needs flash attention"),
    ],
)
def test_a_context_that_llama_cpp_would_refuse(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ContextConfig(**config)


def test_as_many_lanes_as_llama_cpp_allows(open_target: Open) -> None:
    matrix = AdjacencyMatrix.random(512, 16)
    drafter = FixedTreeDrafter(matrix, TreeTemplate.from_breadths([16, 16]))
    decoder = Decoder(open_target(n_lanes=256, **EXACT), drafter)
    plain = text_of(Decoder(open_target(**EXACT)), prompt_of(30), max_tokens=30)
    assert text_of(decoder, prompt_of(30), max_tokens=30) == plain


def test_zero_cells_mean_the_context_the_model_was_trained_with(open_target: Open) -> None:
    assert open_target(n_ctx=0).n_ctx == 8192


def test_logits_need_no_compilation_of_their_own(open_target: Open) -> None:
    logits = TreeBench(target := open_target()).read(prompt_of(3))
    batch = Batch(8, 1)
    batch.set_chain(np.array([1, 2], dtype=np.int32), 3, want_rows=2)
    logits = target.decode(batch)
    assert numba.typeof(logits) == numba.typeof(np.zeros((2, 512), dtype=np.float32))


NEVER_CLOSED = """
import sys
from edge_tr.decode.decoder import Decoder
from edge_tr.llama.model import Model
from edge_tr.config import ContextConfig
from edge_tr.llama.target import LlamaTarget
target = LlamaTarget(Model(sys.argv[1]), ContextConfig(n_ctx=256, n_threads=1))
print(len(list(Decoder(target).generate([1, 2, 3], max_tokens=5))))
"""

NO_MEMORY = """
import resource, sys
from edge_tr.errors import ModelLoadError
from edge_tr.llama.model import Model
from edge_tr.config import ContextConfig
from edge_tr.llama.target import LlamaTarget
model = Model(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    LlamaTarget(model, ContextConfig(n_ctx=1 << 24, n_threads=1))
except ModelLoadError as error:
    print(error)
"""


def output_of(script: str, path: Path) -> str:
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_that_closes_nothing_ends_well(tiny_model: Callable[[str], Path]) -> None:
    assert output_of(NEVER_CLOSED, tiny_model("llama")) == "5\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's memory")
def test_no_memory_for_the_context_is_an_error(tiny_model: Callable[[str], Path]) -> None:
    text = output_of(NO_MEMORY, tiny_model("llama"))
    assert "could not make a context of 16777216 tokens" in text
    assert "A smaller n_ctx needs less memory" in text
