"""Our own kernels inside ggml's CPU back end: whether a build has them, and which parts run."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from edge_tr.config import ContextConfig
from edge_tr.gguf_file.info import GGUFInfo

from .library import ggml_function, init_backend

WEIGHTS = 1
"""Quantised weights; asked for when a model is opened."""

DENSE = 2
"""F16, BF16 and F32: weights, and the cache without flash attention."""

ATTENTION = 4
"""Flash attention."""

_ATTENDED = ("f16", "bf16", "f32", "q8_0")

ALL = WEIGHTS | DENSE | ATTENTION


@cache
def info() -> dict[str, Any] | None:
    """What the kernels say of themselves.

    Returns
    -------
    ``version``; ``isa``, the instruction sets they were compiled for, empty where they have none
    that they can use; ``types``, the weight types they take. None: the build is llama.cpp's own.
    """
    try:
        text = ggml_function("edge_tr_kernels_info", ctypes.c_char_p, [])()
    except (StopIteration, FileNotFoundError):
        return None
    found: dict[str, Any] = json.loads(text)
    return found


def active() -> int:
    """The parts that run, as bits; 0 on a build without them.

    The environment variable ``EDGE_TR_KERNELS`` (0 to 7) sets what runs at first.
    """
    return _switch(-1)


def attend(info: GGUFInfo, config: ContextConfig) -> bool:
    """Whether flash attention on the CPU runs in our kernels alone, for a model and its cache."""
    sizes = ((info.key_size, config.type_k), (info.value_size, config.type_v))
    return bool(active() & ATTENTION) and all(
        size > 0 and size % (32 if kind == "q8_0" else 16) == 0 and kind in _ATTENDED
        for size, kind in sizes
    )


def set_active(parts: int) -> int:
    """Choose the parts that run from now on, in all models and threads of this process.

    A model keeps the weights it was opened with, and with them ``WEIGHTS``. What the build's
    instruction sets do not cover stays off.

    Parameters
    ----------
    parts : sum of ``WEIGHTS``, ``DENSE`` and ``ATTENTION``; 0 leaves all to llama.cpp.

    Returns
    -------
    The parts that ran before.

    Raises
    ------
    ValueError : other bits.
    """
    if not 0 <= parts <= ALL:
        raise ValueError(f"parts is {parts}; it must be 0 to {ALL}")
    return _switch(parts)


@contextmanager
def only(parts: int) -> Iterator[None]:
    """Let some parts run inside a ``with`` block; see ``set_active``."""
    before = set_active(parts)
    try:
        yield
    finally:
        set_active(before)


def _switch(parts: int) -> int:
    if info() is None:
        return 0
    init_backend()
    return int(ggml_function("edge_tr_kernels", ctypes.c_int, [ctypes.c_int])(parts))
