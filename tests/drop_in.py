"""The drop-in ``Llama`` beside the stock class, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp

from edge_tr import Llama
from edge_tr.drafts.template import TreeTemplate

PAPER = TreeTemplate.paper()
NINE = TreeTemplate([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0, 0)])
"""For a real model, with which the paper's tree takes long."""

EXACT = {
    "n_ctx": 512,
    "n_threads": 1,
    "n_threads_batch": 1,
    "flash_attn": True,
    "type_k": llama_cpp.GGML_TYPE_Q8_0,
    "type_v": llama_cpp.GGML_TYPE_Q8_0,
    "verbose": False,
}
"""A configuration in which logits are bit-equal at every batch width."""


def open_stock(path: Path, **options: Any) -> Any:
    return llama_cpp.Llama(str(path), **EXACT | options)


def open_own(path: Path, **options: Any) -> Llama:
    """Drafts the paper's tree at every step and keeps no file, unless told otherwise."""
    own = {"speculative": PAPER, "matrix_path": False}
    return Llama(str(path), **EXACT | own | options)


def content(result: Any) -> Any:
    """A completion, or chunks of one, without what differs in each call."""
    if isinstance(result, dict):
        return {k: content(v) for k, v in result.items() if k not in ("id", "created")}
    if isinstance(result, list):
        return [content(item) for item in result]
    return result
