"""Matrix products through ggml's graphs, with weights in llama.cpp's layout or in ours."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from math import prod
from time import perf_counter
from typing import Any

import gguf
import numpy as np

from edge_tr.llama import kernels
from edge_tr.llama.devices import cpus
from edge_tr.llama.library import ggml_function

Shape = tuple[int, int]
"""Rows and columns of a matrix of weights."""

OURS = "CPU_EDGE_TR"
PLAIN = "CPU"
"""Names of buffer types."""

_pointer = ctypes.c_void_p
_size = ctypes.c_size_t
_BUFFER_AT = 8  # of ggml_tensor.buffer, behind the type
_PATTERN_ROWS = 32


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", _size), ("mem_buffer", _pointer), ("no_alloc", ctypes.c_bool))


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ggml_init": (_pointer, [_InitParams]),
    "ggml_free": (None, [_pointer]),
    "ggml_tensor_overhead": (_size, []),
    "ggml_graph_overhead": (_size, []),
    "ggml_new_tensor_2d": (_pointer, [_pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]),
    "ggml_mul_mat": (_pointer, [_pointer, _pointer, _pointer]),
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
    "ggml_backend_dev_supports_op": (ctypes.c_bool, [_pointer, _pointer]),
    "ggml_backend_buft_name": (ctypes.c_char_p, [_pointer]),
    "ggml_backend_buft_alloc_buffer": (_pointer, [_pointer, _size]),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_pointer, [_pointer, _pointer]),
    "ggml_backend_buffer_free": (None, [_pointer]),
    "ggml_backend_tensor_set": (None, [_pointer, _pointer, _size, _size]),
    "ggml_backend_tensor_get": (None, [_pointer, _pointer, _size, _size]),
    "ggml_backend_graph_compute": (ctypes.c_int, [_pointer, _pointer]),
}


@cache
def _function(name: str) -> Any:
    return ggml_function(name, *_SIGNATURES[name])


def _call(name: str, *arguments: Any) -> Any:
    return _function(name)(*arguments)


@cache
def _backend() -> tuple[Any, Any]:
    """The CPU back end, and its function that sets the number of threads."""
    device = cpus()[0]
    return _call("ggml_backend_dev_init", device, None), _procedure(
        "ggml_backend_set_n_threads", None, [_pointer, ctypes.c_int]
    )


def _procedure(name: str, restype: Any, argtypes: list[Any]) -> Any:
    registry = _call("ggml_backend_dev_backend_reg", cpus()[0])
    address = _call("ggml_backend_reg_get_proc_address", registry, name.encode())
    return ctypes.CFUNCTYPE(restype, *argtypes)(address)


@cache
def buffer_types() -> dict[str, int]:
    """The CPU's buffer types by name, in the order in which llama.cpp tries them."""
    extra = _procedure("ggml_backend_dev_get_extra_bufts", ctypes.POINTER(_pointer), [_pointer])
    found = {}
    for address in extra(cpus()[0]):
        if not address:
            break
        found[_call("ggml_backend_buft_name", address).decode()] = address
    return found | {PLAIN: _call("ggml_backend_dev_buffer_type", cpus()[0])}


class _Tensors:
    """A ggml context whose tensors lie together in one buffer."""

    def __init__(self, n_tensors: int) -> None:
        size = n_tensors * _call("ggml_tensor_overhead") + _call("ggml_graph_overhead") + 1024
        self.context = _call("ggml_init", _InitParams(size, None, True))
        self._buffer: int | None = None

    def matrix(self, kind: int, shape: Shape) -> int:
        return int(_call("ggml_new_tensor_2d", self.context, kind, shape[1], shape[0]))

    def product(self, weights: int, x: int) -> int:
        return int(_call("ggml_mul_mat", self.context, weights, x))

    def allocate(self, buffer_type: str) -> None:
        self._buffer = _call(
            "ggml_backend_alloc_ctx_tensors_from_buft", self.context, buffer_types()[buffer_type]
        )
        if not self._buffer:
            raise MemoryError(f"no memory for a buffer of type {buffer_type}")

    def close(self) -> None:
        _call("ggml_backend_buffer_free", self._buffer)
        _call("ggml_free", self.context)


def takes(buffer_type: str, kind: gguf.GGMLQuantizationType, shape: Shape) -> bool:
    """Whether llama.cpp may put such weights into buffers of this type; asked as it does."""
    tensors = _Tensors(3)
    weights = tensors.matrix(kind, shape)
    product = tensors.product(weights, tensors.matrix(gguf.GGMLQuantizationType.F32, (8, shape[1])))
    buffer = _call("ggml_backend_buft_alloc_buffer", buffer_types()[buffer_type], 0)
    _pointer.from_address(weights + _BUFFER_AT).value = buffer
    found = bool(_call("ggml_backend_dev_supports_op", cpus()[0], product))
    _call("ggml_backend_buffer_free", buffer)
    _call("ggml_free", tensors.context)
    return found


def placed(kind: gguf.GGMLQuantizationType, shape: Shape, *, ours: bool) -> str:
    """The buffer type that such weights get, with our kernels or with llama.cpp's own."""
    return next(n for n in buffer_types() if (ours or n != OURS) and takes(n, kind, shape))


def weight_bytes(kind: gguf.GGMLQuantizationType, shapes: Sequence[Shape]) -> int:
    """Bytes of matrices as they lie in a file."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return sum(prod(shape) // block * size for shape in shapes)


class Weights:
    """Matrices of one type, in the layout of llama.cpp or in ours.

    Parameters
    ----------
    shapes : of the matrices.
    ours : where llama.cpp with our kernels puts them, or without.
    """

    def __init__(
        self, kind: gguf.GGMLQuantizationType, shapes: Sequence[Shape], *, ours: bool
    ) -> None:
        self.ours = ours
        self.shapes = list(shapes)
        self.buffer_type = placed(kind, shapes[0], ours=ours)
        self._tensors = _Tensors(len(shapes))
        self.matrices = [self._tensors.matrix(kind, shape) for shape in shapes]
        self._tensors.allocate(self.buffer_type)
        for matrix, shape in zip(self.matrices, shapes, strict=True):
            data = _random_weights(kind, shape)
            _call("ggml_backend_tensor_set", matrix, data.ctypes.data, 0, data.nbytes)

    def close(self) -> None:
        """Give the memory back."""
        self._tensors.close()


@cache
def _pattern(kind: gguf.GGMLQuantizationType, columns: int) -> Any:
    """A few quantised rows of normally distributed weights, as bytes."""
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((_PATTERN_ROWS, columns), dtype=np.float32)
    floats[:] /= np.float32(columns**0.5)
    found = np.empty(weight_bytes(kind, [floats.shape]), dtype=np.uint8)
    place = [0, _PATTERN_ROWS, columns, None]
    _call("ggml_quantize_chunk", kind, floats.ctypes.data, found.ctypes.data, *place)
    return found


def _random_weights(kind: gguf.GGMLQuantizationType, shape: Shape) -> Any:
    """Rows of a matrix; they repeat, which no time depends on."""
    return np.tile(_pattern(kind, shape[1]), -(-shape[0] // _PATTERN_ROWS))[
        : weight_bytes(kind, [shape])
    ]


class Products:
    """One graph: all matrices times ``n`` columns of activations each.

    Parameters
    ----------
    n : tokens.
    """

    def __init__(self, weights: Weights, n: int) -> None:
        self._ours = weights.ours
        columns = sorted({shape[1] for shape in weights.shapes})
        self._tensors = _Tensors(len(weights.shapes) + len(columns))
        kind = gguf.GGMLQuantizationType.F32
        inputs = {size: self._tensors.matrix(kind, (n, size)) for size in columns}
        products = [
            self._tensors.product(matrix, inputs[shape[1]])
            for matrix, shape in zip(weights.matrices, weights.shapes, strict=True)
        ]
        self._tensors.allocate(PLAIN)
        rng = np.random.default_rng(1)
        for size, matrix in inputs.items():
            x = rng.standard_normal((n, size), dtype=np.float32)
            _call("ggml_backend_tensor_set", matrix, x.ctypes.data, 0, x.nbytes)
        self._graph = _call("ggml_new_graph", self._tensors.context)
        for product in products:
            _call("ggml_build_forward_expand", self._graph, product)
        self._first = (products[0], (n, weights.shapes[0][0]))

    def seconds(self, n_threads: int) -> float:
        """Compute them all once."""
        backend, set_n_threads = _backend()
        set_n_threads(backend, n_threads)
        with kernels.only(kernels.ALL if self._ours else 0):
            started = perf_counter()
            status = _call("ggml_backend_graph_compute", backend, self._graph)
            taken = perf_counter() - started
        if status != 0:
            raise RuntimeError(f"ggml could not compute the products: status {status}")
        return taken

    def first(self) -> Any:
        """float32[n, rows]; what came out for the first matrix."""
        product, shape = self._first
        found = np.empty(shape, dtype=np.float32)
        _call("ggml_backend_tensor_get", product, found.ctypes.data, 0, found.nbytes)
        return found

    def close(self) -> None:
        """Give the memory back."""
        self._tensors.close()
