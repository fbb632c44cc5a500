"""The configuration of a context in llama.cpp's own names and structures."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from edge_tr.config import ContextConfig
from edge_tr.llama import devices, kernels
from edge_tr.llama.library import lib
from edge_tr.llama.model import Model

GGML_TYPES = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16; the binding has no name for it
    "q8_0": lib.GGML_TYPE_Q8_0,
    "q4_0": lib.GGML_TYPE_Q4_0,
    "q4_1": lib.GGML_TYPE_Q4_1,
    "q5_0": lib.GGML_TYPE_Q5_0,
    "q5_1": lib.GGML_TYPE_Q5_1,
}
"""llama.cpp's numbers for the ``CACHE_TYPES``."""


def settled(model: Model, config: ContextConfig) -> ContextConfig:
    """The configuration with flash attention on or off."""
    if config.flash_attn is not None:
        return config
    on_gpu = model.n_gpu_layers != 0 and (bool(model.rpc) or devices.has_gpu())
    is_needed = config.type_v not in ("f32", "f16", "bf16")
    on = is_needed or (not on_gpu and kernels.attend(model.info, config))
    return replace(config, flash_attn=on)


def llama_values(config: ContextConfig) -> dict[str, Any]:
    """The configuration by the names and in the values of llama.cpp, as ``llama_cpp.Llama`` takes
    them; ``n_ctx`` 0 stands for what the model was trained with."""
    n_cores = os.cpu_count() or 1
    return {
        "n_ctx": config.n_ctx,
        "n_batch": config.n_batch,
        "n_ubatch": config.n_ubatch,
        "n_threads": config.n_threads or n_cores,
        "n_threads_batch": config.n_threads_batch or n_cores,
        "flash_attn": config.flash_attn,
        "type_k": GGML_TYPES[config.type_k],
        "type_v": GGML_TYPES[config.type_v],
        "offload_kqv": config.offload_kqv,
        "swa_full": config.swa_full,
    }


def context_params(model: Model, config: ContextConfig) -> Any:
    """The configuration as llama.cpp's own structure, for a context of the model."""
    values = llama_values(settled(model, config))
    params = lib.llama_context_default_params()
    params.flash_attn_type = (
        lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if values.pop("flash_attn")
        else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    for name, value in values.items():
        setattr(params, name, value)
    params.n_ctx = params.n_ctx or model.n_ctx_train
    params.n_batch = min(params.n_batch, params.n_ctx)
    params.n_ubatch = min(params.n_ubatch, params.n_batch)
    params.no_perf = True
    return params


def allow_lanes(params: Any, n_lanes: int) -> None:
    """Have a context made with lanes that share its cells; ``params`` is written."""
    params.n_seq_max = n_lanes
    # llama.cpp keeps a row for each lane and aborts where this is less.
    params.n_outputs_max = max(params.n_batch, n_lanes)
    params.n_outputs_max_per_seq = 0  # as many; only samplers on the back end ask
    params.kv_unified = True


def allow_snapshots(params: Any, n_snapshots: int) -> None:
    """Have a context made with snapshots of its recurrent state, where the model has one that
    llama.cpp can rewind; else it has none. ``params`` is written."""
    # A step and the state before it must lie in one graph.
    params.n_rs_seq = max(0, min(n_snapshots, params.n_ubatch - 1))
