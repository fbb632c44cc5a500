"""Copies of a recurrent state, to which a text can be brought back."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from edge_tr.errors import DecodeError
from edge_tr.llama.library import lib
from edge_tr.llama.model import Model
from edge_tr.llama.target import PARTIAL_ONLY, ContextTarget

Copy = np.ndarray[Any, np.dtype[np.uint8]]


def has_state(model: Model) -> bool:
    """Whether a model keeps a recurrent state."""
    pointer = model.pointer
    return bool(lib.llama_model_is_recurrent(pointer) or lib.llama_model_is_hybrid(pointer))


class RecurrentState:
    """The recurrent state of lane 0 of a context; see ``decode.lanes.StateCopies``."""

    def __init__(self, target: ContextTarget) -> None:
        self._target = target

    def copy(self) -> Copy | None:
        pointer = self._target.pointer
        data = np.empty(int(lib.llama_state_seq_get_size_ext(pointer, 0, PARTIAL_ONLY)), np.uint8)
        n_bytes = lib.llama_state_seq_get_data_ext(
            pointer, _bytes(data), len(data), 0, PARTIAL_ONLY
        )
        return data if n_bytes == len(data) > 0 else None

    def put_back(self, copy: Copy, n_past: int) -> bool:
        pointer = self._target.pointer
        if not pointer:
            return False
        n_bytes = lib.llama_state_seq_set_data_ext(
            pointer, _bytes(copy), len(copy), 0, PARTIAL_ONLY
        )
        if n_bytes != len(copy):
            return False
        try:
            self._target.seq_rm(0, n_past, -1)
        except DecodeError:
            return False
        return True


def _bytes(data: Copy) -> ctypes.Array[ctypes.c_uint8]:
    return (ctypes.c_uint8 * len(data)).from_buffer(data)
