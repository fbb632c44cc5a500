"""Trees, lanes and widths on a GPU, with tiny models of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from on_gpu import (
    DRAFTABLE,
    TREE,
    Open,
    compared,
    drafting,
    model_of,
    open_target,
    prompt_of,
    text_of,
)
from tree_bench import TreeBench

from edge_tr.config import DraftConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.drafting import Drafting
from edge_tr.errors import DecodeError
from edge_tr.measuring.widths import probe_widths
from edge_tr.target import Batch, Float32

pytestmark = pytest.mark.gpu
__all__ = ["model_of", "open_target"]

CACHES: list[dict[str, Any]] = [
    {},
    {"flash_attn": True},
    {"flash_attn": True, "type_k": "q8_0", "type_v": "q8_0"},
    {"offload_kqv": False},
]
ROUNDING = 0.1
"""A wrong lane or position changes logits by about 1."""


@pytest.mark.parametrize("config", CACHES, ids=str)
@pytest.mark.parametrize("arch", DRAFTABLE)
def test_each_row_of_a_wide_tree_is_that_of_its_path(
    open_target: Open, arch: str, config: dict[str, Any]
) -> None:
    bench = TreeBench(open_target(arch, **config))
    bench.read(prompt_of(60))
    bench.plant_random(np.random.default_rng(1), 80, 500)
    rows = bench.decode([7, 8, 9])
    for node in range(0, bench.draft.n, 8):
        bench.rewind(60)
        for token in [7, 8, 9, *bench.path_to(node)]:
            alone = bench.read([token])
        np.testing.assert_allclose(rows[node], alone, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("token_s", [0.0, np.inf], ids=["redo", "keep"])
@pytest.mark.parametrize("arch", DRAFTABLE)
def test_paths_that_are_kept_or_redone_leave_the_right_cells(
    open_target: Open, arch: str, token_s: float
) -> None:
    bench, rng, front = TreeBench(open_target(arch)), np.random.default_rng(2), list[int]()
    bench.read(prompt_of(5))
    while len(bench.tokens) < 60:
        bench.plant_random(rng, 12, 500)
        bench.decode(front)
        parents = bench.draft.parent[1 : bench.draft.n].tolist()
        path: list[int] = []
        below = [i for i, p in enumerate(parents, 1) if p == 0]
        while below and rng.random() < 0.8:
            path.append(int(rng.choice(below)))
            below = [i for i, p in enumerate(parents, 1) if p == path[-1]]
        kept = bench.commit(path, token_s, front)
        front = bench.draft.token[path[kept:]].tolist()
    tokens, row = bench.tokens.copy(), bench.read([9])
    alone = TreeBench(open_target(arch))
    for token in [*tokens, 9]:
        wanted = alone.read([token])
    np.testing.assert_allclose(row, wanted, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("arch", DRAFTABLE)
def test_an_error_in_a_step_leaves_the_committed_text(
    open_target: Open, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = open_target(arch)
    decoder, decode, calls = drafting(target), target.decode, iter(range(1000))

    def decode_and_fail(batch: Batch) -> Float32:
        rows = decode(batch)
        if next(calls) == 6:
            raise DecodeError("the device is lost")
        return rows

    steps = decoder.generate(prompt_of(30), max_tokens=100)
    monkeypatch.setattr(target, "decode", decode_and_fail)
    with pytest.raises(DecodeError, match="lost"):
        list(steps)
    monkeypatch.undo()
    tokens = [*decoder.tokens.tolist(), 9]
    assert len(tokens) > 31
    row, wanted = last_row(decoder, tokens), last_row(Decoder(target), tokens)
    np.testing.assert_allclose(row, wanted, rtol=0, atol=ROUNDING)


def last_row(decoder: Decoder, tokens: list[int]) -> Float32:
    """Logits after a text of which the decoder may have cells."""
    kept: list[Float32] = []
    decoder.read(tokens, rows=lambda first, rows: kept.append(rows[-1].copy()))
    return kept[-1]


@pytest.mark.parametrize("arch", DRAFTABLE)
def test_exact_drafts_at_the_widths_that_the_probe_found(open_target: Open, arch: str) -> None:
    target = open_target(arch)
    probe = probe_widths(target, max_width=16)
    draft = DraftConfig(exact=True, speculative=TREE, start="empty")
    drafts = Drafting(target, draft, "0" * 32)
    assert drafts.probe == probe
    plain = text_of(Decoder(target), prompt_of(30), 60)
    assert text_of(drafts.decoder, prompt_of(30), 60) == plain
    if probe.tree_width < 2:
        assert "no batch width is bit-equal" in drafts.notices[0]
    else:
        assert drafts.decoder.stats.n_drafted > 0


PLACES = [
    ("llama", -1, {}),
    ("llama", -1, {"flash_attn": True, "type_k": "q8_0", "type_v": "q8_0"}),
    ("llama", -1, {"offload_kqv": False}),
    ("llama", 1, {}),
    ("llama", 2, {"flash_attn": True}),
    ("gemma3", -1, {}),
    ("gemma3", 1, {}),
    ("mixtral", -1, {}),
    ("mixtral", 1, {}),
]
"""Kind, layers on the GPU (two and the output are all), configuration."""


@pytest.mark.parametrize(("arch", "n_gpu_layers", "config"), PLACES, ids=str)
def test_drafted_texts_differ_from_plain_ones_by_rounding_alone(
    open_target: Open, arch: str, n_gpu_layers: int, config: dict[str, Any]
) -> None:
    target = open_target(arch, n_gpu_layers, **config)
    report = compared(target, [prompt_of(30, seed) for seed in range(2)], 60)
    assert report.violations == (), report.to_dict()


@pytest.mark.parametrize("n_gpu_layers", [-1, 1])
@pytest.mark.parametrize("arch", ["mamba", "jamba", *DRAFTABLE])
def test_the_logits_are_those_of_the_cpu(open_target: Open, arch: str, n_gpu_layers: int) -> None:
    """At every number of tokens at which a back end changes its kernels."""
    gpu, cpu = (TreeBench(open_target(arch, n)) for n in (n_gpu_layers, 0))
    for seed, width in enumerate((1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64)):
        tokens = prompt_of(width, seed)
        np.testing.assert_allclose(gpu.read(tokens), cpu.read(tokens), rtol=0, atol=2 * ROUNDING)


@pytest.mark.parametrize("n_gpu_layers", [-1, 1])
@pytest.mark.parametrize("arch", ["mamba", "jamba"])
def test_a_recurrent_model_gives_one_text_on_two_calls(
    open_target: Open, arch: str, n_gpu_layers: int
) -> None:
    decoder = Decoder(open_target(arch, n_gpu_layers))
    first = text_of(decoder, prompt_of(30), 60)
    assert text_of(decoder, prompt_of(30), 60) == first
