"""A llama.cpp context as the target model of the decode loop."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numba import carray, cfunc, types

from edge_tr.config import ContextConfig
from edge_tr.errors import (
    CancelledError,
    ContextFullError,
    DecodeError,
    ModelLoadError,
)
from edge_tr.files.closing import Closing
from edge_tr.kernels import CACHE
from edge_tr.llama import kernels
from edge_tr.llama.context_params import allow_lanes, allow_snapshots, context_params, settled
from edge_tr.llama.library import forget_errors, function, lib, recent_errors, system_info, version
from edge_tr.llama.model import Model
from edge_tr.target import Batch, Float32

NO_REWIND = "drafting is off: with swa_full=False the sliding-window cache cannot be rewound"

PARTIAL_ONLY = 1
"""LLAMA_STATE_SEQ_FLAGSPARTIAL_ONLY: of a hybrid, its recurrent state."""

_batch_t = lib.llama_batch
_decode = function("llama_decode", ctypes.c_int32, [ctypes.c_void_p, _batch_t])
_get_logits = function("llama_get_logits", ctypes.c_void_p, [ctypes.c_void_p])
_seq_rm = function(
    "llama_memory_seq_rm",
    ctypes.c_bool,
    [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32],
)
_clear = function("llama_memory_clear", None, [ctypes.c_void_p, ctypes.c_bool])
_seq_cp = function(
    "llama_memory_seq_cp",
    None,
    [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32],
)


@cfunc(types.boolean(types.voidptr), cache=CACHE)  # type: ignore[untyped-decorator]
def _abort_callback(flag: Any) -> bool:
    return bool(carray(flag, 1, np.uint8)[0] != 0)


class ContextTarget:
    """A llama.cpp context that someone else made, behind the ``TargetModel`` protocol.

    Parameters
    ----------
    pointer : the context; it must outlive the target.
    n_vocab : size of its model's vocabulary.
    plain_reason : why it cannot verify draft trees, or an empty text.

    Attributes
    ----------
    plain_reason : why it cannot verify drafts at all, or an empty text.
    """

    def __init__(self, pointer: Any, *, n_vocab: int, plain_reason: str) -> None:
        self._abort_flag = np.zeros(1, dtype=np.uint8)
        self.n_vocab = n_vocab
        self.attach(pointer)
        self.n_rewind = int(lib.llama_n_rs_seq(pointer))
        self.plain_reason = "" if self.n_rewind else plain_reason
        self.n_ctx = int(lib.llama_n_ctx(pointer))
        self.n_batch = int(lib.llama_n_batch(pointer))
        self.n_lanes = int(lib.llama_n_seq_max(pointer))
        self.can_rewind = not plain_reason
        self._struct: Any = None
        self._struct_of: Batch | None = None

    def attach(self, pointer: Any) -> None:
        """Work on this context from now on, made as the one before."""
        self.pointer: Any = pointer
        self.memory: Any = lib.llama_get_memory(pointer)
        lib.llama_set_abort_callback(
            pointer,
            ctypes.cast(_abort_callback.address, lib.ggml_abort_callback),
            ctypes.c_void_p(self._abort_flag.ctypes.data),
        )
        self._logits: Float32 = np.zeros((0, self.n_vocab), dtype=np.float32)
        self._logits_address = 0

    def decode(self, batch: Batch) -> Float32:
        if not self.pointer:
            raise DecodeError("the context is closed")
        if self._struct_of is not batch:
            self._struct = _batch_struct(batch)
            self._struct_of = batch
        self._struct.n_tokens = batch.n
        result = _decode(self.pointer, self._struct)
        if result != 0:
            raise self._error(result, batch.n)
        n_rows = int(np.count_nonzero(batch.logits[: batch.n]))
        if n_rows == 0:
            return self._logits[:0]
        address = _get_logits(self.pointer)
        if address != self._logits_address or n_rows > len(self._logits):
            buffer = (ctypes.c_float * (n_rows * self.n_vocab)).from_address(address)
            self._logits = np.frombuffer(buffer, dtype=np.float32).reshape(n_rows, self.n_vocab)
            self._logits_address = address
        return self._logits[:n_rows]

    def _error(self, result: int, n_tokens: int) -> DecodeError | CancelledError:
        if result == 2:
            return CancelledError("the generation was cancelled")
        if result == 1:
            return ContextFullError(f"the context of {self.n_ctx} cells has no room for {n_tokens}")
        return DecodeError(f"llama_decode returned {result}: {recent_errors()}")

    def seq_rm(self, lane: int, first: int, last: int) -> None:
        if lane < 0 and first == 0 and last < 0:
            _clear(self.memory, False)
        elif not _seq_rm(self.memory, lane, first, last):
            raise DecodeError(f"llama.cpp cannot drop cells {first} to {last} of lane {lane}")

    def seq_cp(self, source: int, target: int, first: int, last: int) -> None:
        _seq_cp(self.memory, source, target, first, last)

    def interrupt(self, on: bool) -> None:
        self._abort_flag[0] = on

    def snapshot_bytes(self) -> int:
        """Bytes of one snapshot of the recurrent state; clears the cache."""
        batch = Batch(1, self.n_lanes)
        batch.set_one(0, 0)
        self.seq_rm(-1, 0, -1)
        self.decode(batch)
        size = int(lib.llama_state_seq_get_size_ext(self.pointer, 0, PARTIAL_ONLY))
        self.seq_rm(-1, 0, -1)
        return size

    @property
    def n_threads(self) -> int:
        """Threads of a step of one token."""
        return int(lib.llama_n_threads(self.pointer))

    def set_threads(self, n: int) -> None:
        """Take this many threads from the next batch on."""
        lib.llama_set_n_threads(self.pointer, n, n)

    def forget(self) -> None:
        """Do not touch the context again; ``decode`` raises from now on."""
        self.pointer = self.memory = None


class LlamaTarget(ContextTarget, Closing):
    """A context made and freed by its target.

    Parameters
    ----------
    model : an open model.
    config : see ``ContextConfig``.

    Attributes
    ----------
    plain_reason : why this context cannot verify drafts, or an empty text.
    may_change_threads : whether the number of threads is ours to choose: nobody named one, and
        it decides no rounding, as it may with llama.cpp's own flash attention.

    Raises
    ------
    ModelLoadError : no memory for the context, or llama.cpp refused the combination.
    """

    def __init__(self, model: Model, config: ContextConfig) -> None:
        reason = model.plain_reason
        if model.info.sliding_window and not config.swa_full:
            reason = NO_REWIND
        self.model = model
        self.config = config = settled(model, config)
        is_named = config.n_threads or config.n_threads_batch
        rounds_by_threads = config.flash_attn and not kernels.attend(model.info, config)
        self.may_change_threads = not (is_named or rounds_by_threads)
        self._n_lanes = 1 if reason else config.n_lanes
        self._n_snapshots = 0 if reason == NO_REWIND else config.n_snapshots or 0
        super().__init__(self._make(), n_vocab=model.n_vocab, plain_reason=reason)
        self.config = replace(config, n_snapshots=self.n_rewind)

    def _make(self) -> Any:
        params = context_params(self.model, self.config)
        allow_lanes(params, self._n_lanes)
        allow_snapshots(params, self._n_snapshots)
        forget_errors()
        pointer: Any = lib.llama_init_from_model(self.model.pointer, params)
        if not pointer:
            raise ModelLoadError(
                f"llama.cpp could not make a context of {params.n_ctx} tokens for "
                f"{self.model.path.name}: {recent_errors()}. A smaller n_ctx needs less memory"
            )
        forget_errors()
        return pointer

    def open_again(self) -> None:
        """Make the context again, after ``close``; its cells are empty.

        Raises
        ------
        ModelLoadError : see ``LlamaTarget``.
        """
        self.attach(self._make())

    def cost_key(self) -> dict[str, Any]:
        """Everything that decides what a decode step costs: machine, build, model, settings."""
        return {
            **cost_conditions(self.model.path, self.model.rpc),
            "n_gpu_layers": self.model.n_gpu_layers,
            "n_ctx": self.n_ctx,
            "context": asdict(self.config),
        }

    def close(self) -> None:
        """Free the context; the target must not be used afterwards."""
        if self.pointer:
            lib.llama_free(self.pointer)
            self.forget()


def cost_conditions(path: Path, rpc: Sequence[str] = ()) -> dict[str, Any]:
    """What a decode step of this model costs depends on these, and on the context.

    Parameters
    ----------
    rpc : the RPC servers that hold layers of it.
    """
    stat = path.stat()
    others = {"rpc": list(rpc)} if rpc else {}
    return others | {
        "machine": [platform.machine(), platform.processor(), os.cpu_count()],
        "build": [version(), system_info(), kernels.active()],
        "model": [path.name, stat.st_size, stat.st_mtime_ns],
    }


def _batch_struct(batch: Batch) -> Any:
    """A llama_batch over the arrays of ``batch``; both must live as long as it is used."""
    struct = _batch_t()
    struct.token = batch.token.ctypes.data_as(type(struct.token))
    struct.embd = None
    struct.pos = batch.pos.ctypes.data_as(type(struct.pos))
    struct.n_seq_id = batch.n_lanes.ctypes.data_as(type(struct.n_seq_id))
    struct.seq_id = batch.lanes.ctypes.data_as(type(struct.seq_id))
    struct.logits = batch.logits.ctypes.data_as(type(struct.logits))
    return struct
