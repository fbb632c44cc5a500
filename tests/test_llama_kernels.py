"""Our kernels inside ggml: products, and whole models, whose rows no batch width changes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from ggml import OURS, Kind, Product, quantize, write_lora, write_model

from edge_tr import models
from edge_tr.config import ContextConfig
from edge_tr.llama import kernels
from edge_tr.llama.library import lib
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.widths import probe_widths
from edge_tr.models import tiny
from edge_tr.target import Batch, Float32

pytestmark = pytest.mark.skipif(
    not (kernels.info() or {}).get("isa"),
    reason="this build of llama.cpp has no kernels of ours",
)

QUANTISED = [
    Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.IQ4_NL,
    Kind.Q4_K, Kind.Q5_K, Kind.Q6_K,
]  # fmt: skip
K_FORMATS = {Kind.Q4_K, Kind.Q5_K, Kind.Q6_K}
FLOATS = [Kind.F16, Kind.BF16, Kind.F32]
CACHES: dict[str, dict[str, Any]] = {
    "no flash attention": {"flash_attn": False},
    "flash attention": {"flash_attn": True},
    "q8_0": {"flash_attn": True, "type_k": "q8_0", "type_v": "q8_0"},
}
WIDTHS = range(1, 17)


def name_of(kind: Kind) -> str:
    return str(kind.name)


@pytest.fixture(autouse=True)
def all_parts() -> Iterator[None]:
    """Whatever the environment says, all parts run."""
    with kernels.only(kernels.ALL):
        yield


def rounded(x: Float32, kind: Kind) -> Any:
    """float64 of the shape of x: activations as a product with quantised weights rounds them."""
    block = 256 if kind in K_FORMATS else 32
    parts = x.reshape(-1, block)
    largest = np.abs(parts).max(axis=1, keepdims=True)
    quants = np.rint(parts * (np.float32(127) / largest))
    return (quants.astype(np.float64) * (largest.astype(np.float64) / 127)).reshape(x.shape)


def random_weights(kind: Kind, *shape: int) -> tuple[Any, Any]:
    """The bytes, and float64[shape], what gguf reads in them."""
    weights = np.random.default_rng(7).standard_normal(shape, np.float32)
    raw = quantize(weights, kind)
    return raw, gguf.quants.dequantize(raw, kind).astype(np.float64)


@pytest.mark.parametrize("kind", QUANTISED, ids=name_of)
def test_a_product_is_that_of_the_dequantised_weights(kind: Kind) -> None:
    raw, weights = random_weights(kind, 37, 768)
    x = np.random.default_rng(1).standard_normal((40, 768), np.float32)
    product = Product(kind, raw, OURS)
    all_rows = product.times(x)
    for n in [*WIDTHS, 40]:
        rows = product.times(x[:n], threads=1 + n % 4)
        np.testing.assert_array_equal(rows, all_rows[:n], err_msg=f"{n} tokens")
    wide = product.times(np.tile(x[:20], (2, 1)), threads=3)  # quantised by all threads together
    np.testing.assert_array_equal(wide, np.tile(all_rows[:20], (2, 1)))
    product.close()
    exact = rounded(x, kind) @ weights.T
    size = np.abs(rounded(x, kind)) @ np.abs(weights.T)
    assert (np.abs(all_rows - exact) < 1e-5 * size).all()


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kind", QUANTISED, ids=name_of)
def test_each_expert_has_its_product(kind: Kind, slots: int) -> None:
    raw, weights = random_weights(kind, 5, 37, 256)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((16, slots, 256), np.float32)
    ids = np.array([rng.permutation(5)[:3] for _ in range(16)], np.int32)
    product = Product(kind, raw, OURS)
    all_rows = product.times(x, ids=ids)
    for n in WIDTHS:
        rows = product.times(x[:n], threads=1 + n % 4, ids=ids[:n])
        np.testing.assert_array_equal(rows, all_rows[:n], err_msg=f"{n} tokens")
    product.close()
    exact = np.einsum(
        "tsrc,tsc->tsr", weights[ids], np.broadcast_to(rounded(x, kind), (16, 3, 256))
    )
    assert np.abs(all_rows - exact).max() < 1e-4 * np.abs(exact).max()


def widths(target: LlamaTarget) -> tuple[int, int]:
    """Of chains and of trees. Behind 300 and 620 cells the cache is padded to other lengths."""
    probe = probe_widths(target, contexts=(40, 300, 620))
    return probe.chain_width, probe.tree_width


def config_of(**options: Any) -> ContextConfig:
    return ContextConfig(**{"n_ctx": 1024, "n_threads": 1, "n_threads_batch": 1} | options)


@pytest.mark.parametrize("kind", [*QUANTISED, *FLOATS], ids=name_of)
def test_every_width_is_equal_by_default(kind: Kind, tmp_path: Path) -> None:
    with (
        Model(write_model(tmp_path / "model.gguf", kind)) as model,
        LlamaTarget(model, config_of(n_threads=2, n_threads_batch=2)) as target,
    ):
        assert widths(target) == (16, 16)


@pytest.mark.parametrize("kind", QUANTISED, ids=name_of)
def test_every_width_of_a_mixture_is_equal(kind: Kind, tmp_path: Path) -> None:
    with (
        Model(write_model(tmp_path / "model.gguf", kind, n_experts=4)) as model,
        LlamaTarget(model, config_of()) as target,
    ):
        assert widths(target) == (16, 16)


@pytest.mark.parametrize("quantisation", ["q4_0", "q8_0", "f16"])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "gemma3", "mixtral"])
def test_every_width_is_equal_in_each_architecture(
    arch: str, quantisation: tiny.Quantisation, tmp_path: Path
) -> None:
    path = models.write_tiny(tmp_path / "tiny.gguf", arch, quantisation=quantisation)
    with Model(path) as model:
        for name, cache in CACHES.items():
            with LlamaTarget(model, config_of(**cache)) as target:
                assert widths(target) == (16, 16), name


def read(target: LlamaTarget, n: int, n_past: int = 0) -> Float32:
    """Decode a chain of n tokens; their rows."""
    batch = Batch(64, 1)
    tokens = np.random.default_rng(n_past).integers(0, 250, n).astype(np.int32)
    batch.set_chain(tokens, n_past, want_rows=n)
    return target.decode(batch).copy()


@pytest.fixture
def q4_0(tmp_path: Path) -> Path:
    return models.write_tiny(tmp_path / "q4_0.gguf", "llama", quantisation="q4_0")


def first_rows(path: Path) -> Float32:
    with Model(path) as model, LlamaTarget(model, config_of()) as target:
        return read(target, 12)


def test_a_mapped_file_and_a_read_one_give_the_same(
    q4_0: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = first_rows(q4_0)
    params = lib.llama_model_default_params()
    assert params.load_mode != lib.LLAMA_LOAD_MODE_NONE
    params.load_mode = lib.LLAMA_LOAD_MODE_NONE
    monkeypatch.setattr(lib, "llama_model_default_params", lambda: params)
    np.testing.assert_array_equal(first_rows(q4_0), mapped)


def test_switched_off_they_leave_all_to_llama_cpp(q4_0: Path) -> None:
    ours = first_rows(q4_0)
    with kernels.only(0):
        theirs = first_rows(q4_0)
    assert not np.array_equal(ours, theirs)
    assert np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()


def test_an_open_model_outlives_the_switch(q4_0: Path) -> None:
    """Its weights lie in panels, which only our products read."""
    with Model(q4_0) as model, LlamaTarget(model, config_of()) as target:
        before = read(target, 12)
        with kernels.only(0), LlamaTarget(model, config_of(flash_attn=True)) as other:
            target.seq_rm(-1, 0, -1)
            for rows in (read(target, 12), read(other, 12)):
                assert np.abs(rows - before).max() < 0.05 * np.abs(before).max()


def test_a_restored_state_goes_on_to_the_same_rows(q4_0: Path) -> None:
    with Model(q4_0) as model, LlamaTarget(model, config_of()) as target:
        read(target, 50)
        size = lib.llama_state_get_size(target.pointer)
        state = (ctypes.c_uint8 * size)()
        written = lib.llama_state_get_data(target.pointer, state, size)
        together = read(target, 5, n_past=50)
        with LlamaTarget(model, config_of()) as other:
            assert lib.llama_state_set_data(other.pointer, state, written) == written
            np.testing.assert_array_equal(read(other, 5, n_past=50), together)


def test_an_adapter_works_on_packed_weights(q4_0: Path, tmp_path: Path) -> None:
    adapter_path = write_lora(tmp_path / "adapter.gguf")

    def adapted(model: Model, target: LlamaTarget) -> Float32:
        adapter = lib.llama_adapter_lora_init(model.pointer, str(adapter_path).encode())
        adapters, scales = (lib.llama_adapter_lora_p_ctypes * 1)(adapter), (ctypes.c_float * 1)(1)
        assert lib.llama_set_adapters_lora(target.pointer, adapters, 1, scales) == 0
        return read(target, 12)

    base = first_rows(q4_0)
    with Model(q4_0) as model, LlamaTarget(model, config_of()) as target:
        ours = adapted(model, target)
        assert widths(target) == (16, 16)
    with kernels.only(0), Model(q4_0) as model, LlamaTarget(model, config_of()) as target:
        theirs = adapted(model, target)
    assert np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()
    assert np.abs(ours - base).max() > 0.2 * np.abs(base).max()
