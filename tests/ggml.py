"""Products through ggml's graphs, and tiny models with weights of any type."""

from __future__ import annotations

import ctypes
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edge_tr.llama.devices import cpus
from edge_tr.llama.library import ggml_function
from edge_tr.models import tiny

Kind = gguf.GGMLQuantizationType
Float32 = NDArray[np.float32]
PLAIN, OURS = "CPU", "CPU_EDGE_TR"

_pointer, _size = ctypes.c_void_p, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ggml_free": (None, [_pointer]),
    "ggml_new_tensor": (_pointer, [_pointer, ctypes.c_int, ctypes.c_int, _pointer]),
    "ggml_mul_mat": (_pointer, [_pointer] * 3),
    "ggml_mul_mat_id": (_pointer, [_pointer] * 4),
    "ggml_new_graph": (_pointer, [_pointer]),
    "ggml_build_forward_expand": (None, [_pointer, _pointer]),
    "ggml_quantize_chunk": (
        _size,
        [ctypes.c_int, _pointer, _pointer, *[ctypes.c_int64] * 3, _pointer],
    ),
    "ggml_backend_dev_backend_reg": (_pointer, [_pointer]),
    "ggml_backend_reg_get_proc_address": (_pointer, [_pointer, ctypes.c_char_p]),
    "ggml_backend_dev_init": (_pointer, [_pointer, ctypes.c_char_p]),
    "ggml_backend_dev_buffer_type": (_pointer, [_pointer]),
    "ggml_backend_buft_name": (ctypes.c_char_p, [_pointer]),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_pointer, [_pointer, _pointer]),
    "ggml_backend_buffer_free": (None, [_pointer]),
    "ggml_backend_tensor_set": (None, [_pointer, _pointer, _size, _size]),
    "ggml_backend_tensor_get": (None, [_pointer, _pointer, _size, _size]),
    "ggml_backend_graph_compute": (ctypes.c_int, [_pointer, _pointer]),
}


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", _size), ("mem_buffer", _pointer), ("no_alloc", ctypes.c_bool))


@cache
def _function(name: str) -> Any:
    return ggml_function(name, *_SIGNATURES[name])


def _call(name: str, *arguments: Any) -> Any:
    return _function(name)(*arguments)


def _procedure(name: str, restype: Any, argtypes: list[Any]) -> Any:
    registry = _call("ggml_backend_dev_backend_reg", cpus()[0])
    address = _call("ggml_backend_reg_get_proc_address", registry, name.encode())
    return ctypes.CFUNCTYPE(restype, *argtypes)(address)


@cache
def _backend() -> Any:
    return _call("ggml_backend_dev_init", cpus()[0], None)


@cache
def _buffer_types() -> dict[str, int]:
    extra = _procedure("ggml_backend_dev_get_extra_bufts", ctypes.POINTER(_pointer), [_pointer])
    found = {PLAIN: _call("ggml_backend_dev_buffer_type", cpus()[0])}
    for address in extra(cpus()[0]):
        if not address:
            break
        found[_call("ggml_backend_buft_name", address).decode()] = address
    return found


class Product:
    """Weights of one type in a buffer, to be multiplied.

    Parameters
    ----------
    weights : uint8[..., rows, bytes of a row]; three dimensions are experts.
    """

    def __init__(self, kind: Kind, weights: NDArray[np.uint8], buffer: str) -> None:
        self.kind, self._n_dims = kind, weights.ndim
        self._shape = gguf.quant_shape_from_byte_shape(weights.shape, kind)
        self._context = self._new_context()
        self._weights = self._tensor(self._context, kind, self._shape)
        self._buffer = _call(
            "ggml_backend_alloc_ctx_tensors_from_buft", self._context, _buffer_types()[buffer]
        )
        self._set(self._weights, weights)

    def _new_context(self) -> Any:
        init = ggml_function("ggml_init", _pointer, [_InitParams])
        return init(_InitParams(1 << 20, None, True))

    def _tensor(self, context: Any, kind: int, shape: tuple[int, ...]) -> Any:
        extents = (ctypes.c_int64 * len(shape))(*reversed(shape))
        return _call("ggml_new_tensor", context, kind, len(shape), extents)

    def _set(self, tensor: Any, data: NDArray[Any]) -> None:
        data = np.ascontiguousarray(data)
        _call("ggml_backend_tensor_set", tensor, data.ctypes.data, 0, data.nbytes)

    def times(self, x: Float32, threads: int = 1, ids: NDArray[np.int32] | None = None) -> Float32:
        """float32[n, rows]: the product with float32[n, columns].

        With ``ids``, int32[n, used], the experts of each token: float32[n, used, rows], and x is
        float32[n, 1 or used, columns].
        """
        context = self._new_context()
        inputs = [(self._tensor(context, Kind.F32, x.shape), x)]
        if ids is None:
            out = _call("ggml_mul_mat", context, self._weights, inputs[0][0])
            found = np.empty((len(x), self._shape[-2]), np.float32)
        else:
            inputs.append((self._tensor(context, Kind.I32, ids.shape), ids))
            tensors = [tensor for tensor, _ in inputs]
            out = _call("ggml_mul_mat_id", context, self._weights, *tensors)
            found = np.empty((*ids.shape, self._shape[-2]), np.float32)
        buffer = _call("ggml_backend_alloc_ctx_tensors_from_buft", context, _buffer_types()[PLAIN])
        for tensor, data in inputs:
            self._set(tensor, data)
        graph = _call("ggml_new_graph", context)
        _call("ggml_build_forward_expand", graph, out)
        _procedure("ggml_backend_set_n_threads", None, [_pointer, ctypes.c_int])(
            _backend(), threads
        )
        assert _call("ggml_backend_graph_compute", _backend(), graph) == 0
        _call("ggml_backend_tensor_get", out, found.ctypes.data, 0, found.nbytes)
        _call("ggml_backend_buffer_free", buffer)
        _call("ggml_free", context)
        return found

    def close(self) -> None:
        _call("ggml_backend_buffer_free", self._buffer)
        _call("ggml_free", self._context)


def quantize(weights: Float32, kind: Kind) -> NDArray[np.uint8]:
    """uint8[..., rows, bytes of a row], by ggml's own functions."""
    *outer, columns = weights.shape
    block, size = gguf.GGML_QUANT_SIZES[kind]
    found = np.empty((*outer, columns // block * size), np.uint8)
    if kind is Kind.F32:
        return weights.view(np.uint8)
    weights = np.ascontiguousarray(weights)
    n_rows = weights.size // columns
    _call(
        "ggml_quantize_chunk",
        kind,
        weights.ctypes.data,
        found.ctypes.data,
        0,
        n_rows,
        columns,
        None,
    )
    return found


N_EMBD, N_FF, N_VOCAB = 256, 512, 300


def write_model(path: Path, kind: Kind, *, n_experts: int = 0, seed: int = 0) -> Path:
    """A llama of two layers without a vocabulary, all of its matrices of one type."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("no_vocab")
    if n_experts:
        writer.add_expert_count(n_experts)
        writer.add_expert_used_count(2)

    def matrix(name: str, *shape: int, kind: Kind = kind) -> None:
        weights = rng.standard_normal(shape, np.float32) * np.float32(1.3 * shape[-1] ** -0.5)
        writer.add_tensor(f"{name}.weight", quantize(weights, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(N_EMBD, np.float32))

    matrix("token_embd", N_VOCAB, N_EMBD)
    matrix("output", N_VOCAB, N_EMBD)
    norm("output_norm")
    experts, suffix = ((n_experts,), "_exps") if n_experts else ((), "")
    for layer in (f"blk.{i}." for i in range(2)):
        for name, rows in (("q", N_EMBD), ("k", 128), ("v", 128), ("output", N_EMBD)):
            matrix(f"{layer}attn_{name}", rows, N_EMBD)
        for name in ("gate", "up"):
            matrix(f"{layer}ffn_{name}{suffix}", *experts, N_FF, N_EMBD)
        matrix(f"{layer}ffn_down{suffix}", *experts, N_EMBD, N_FF)
        if n_experts:
            matrix(f"{layer}ffn_gate_inp", n_experts, N_EMBD, kind=Kind.F32)
        norm(f"{layer}attn_norm")
        norm(f"{layer}ffn_norm")
    with closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return path


def write_lora(path: Path) -> Path:
    """An adapter of rank 2 for the tiny llama, strong enough to change its text."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0)
    for name, n_in, n_out in (("attn_q", tiny.N_EMBD, tiny.N_EMBD), ("ffn_up", 128, tiny.N_FF)):
        for part, shape in (("lora_a", (2, n_in)), ("lora_b", (n_out, 2))):
            weights = rng.standard_normal(shape, np.float32) * np.float32(0.3)
            writer.add_tensor(f"blk.0.{name}.weight.{part}", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
