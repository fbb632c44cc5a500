"""The context of the drop-in ``Llama``: the stock one's configuration, with lanes."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import _internals

from edge_tr.config import DraftConfig, fixed_snapshots
from edge_tr.decode.topk import default_threads
from edge_tr.gguf_file.info import classify
from edge_tr.llama.context_params import allow_lanes, allow_snapshots
from edge_tr.llama.library import leave_log, lib
from edge_tr.llama.model import fingerprint, plain_reason
from edge_tr.llama.target import NO_REWIND, ContextTarget, cost_conditions
from edge_tr.measuring.snapshots import choose_snapshots
from edge_tr.target import Batch, Float32

STOCK_ARGUMENTS: dict[str, Any] = {
    name: parameter.default
    for name, parameter in inspect.signature(llama_cpp.Llama.__init__).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}
"""Arguments of ``llama_cpp.Llama`` beside the path, with their defaults."""


def keeps_stock_context(options: Mapping[str, Any]) -> bool:
    """Whether a model is opened for something that drafting has no part in."""
    return bool(options["embedding"] or options["vocab_only"])


def small_context(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with which the stock class makes a small context, soon to be replaced, and
    allocates no logits for the whole of a large one."""
    n_batch = min(options["n_batch"], 32)
    n_ctx = min(options["n_ctx"] or 256, 256)
    return {"n_ctx": n_ctx, "n_batch": n_batch, "logits_all": False, "draft_model": None}


class OwnTarget(ContextTarget):
    """The context of a ``Llama``; knows what its costs depend on.

    A context for embeddings returns a row for each token, asked for or not.
    """

    def __init__(self, llm: Any, reason: str) -> None:
        super().__init__(llm.ctx, n_vocab=llm.n_vocab(), plain_reason=reason)
        params = llm.context_params
        self._every_row = bool(params.embeddings)
        values = {name: getattr(params, name) for name, _ in params._fields_}
        self._key = {
            **cost_conditions(Path(llm.model_path), llm._servers.names),
            "n_gpu_layers": llm.model_params.n_gpu_layers,
            "lora": llm.lora_path,
            "context": {k: v for k, v in values.items() if isinstance(v, (bool, int, float))},
        }

    def decode(self, batch: Batch) -> Float32:
        if not self._every_row:
            return super().decode(batch)
        wanted = np.flatnonzero(batch.logits[: batch.n])
        batch.logits[: batch.n] = 1
        return super().decode(batch)[wanted]

    def cost_key(self) -> dict[str, Any]:
        """Everything that decides what a decode step costs: machine, build, model, settings."""
        return self._key


def kind_of(llm: Any) -> tuple[str, str]:
    """Whether an open model can draft, as ``gguf_file.info.classify`` says it, and why not."""
    architecture = llm.metadata.get("general.architecture", "")
    causal = llm.metadata.get(f"{architecture}.attention.causal", "true") == "true"
    kind, reason = classify(architecture, causal=causal)
    if kind == "draftable":
        reason = plain_reason(llm.model, architecture)
        window = int(llm.metadata.get(f"{architecture}.attention.sliding_window", 0))
        if not reason and window and not llm.context_params.swa_full:
            reason = NO_REWIND
    return kind, reason


def replace_context(
    llm: Any, options: Mapping[str, Any], n_lanes: int, n_snapshots: int = 0
) -> None:
    """Free the context that is there and make the one that was asked for, with its LoRA adapter.

    Raises
    ------
    ValueError : llama.cpp could not make it.
    RuntimeError : it refused the adapter.
    """
    llm._ctx.close()
    params = llm.context_params
    params.n_ctx = options["n_ctx"] or llm._model.n_ctx_train()
    params.n_batch = llm.n_batch = min(params.n_ctx, options["n_batch"])
    params.n_ubatch = min(params.n_batch, options["n_ubatch"])
    allow_lanes(params, n_lanes)
    allow_snapshots(params, n_snapshots)
    llm._ctx = llm._stack.enter_context(
        contextlib.closing(
            _internals.LlamaContext(model=llm._model, params=params, verbose=llm.verbose)
        )
    )
    llm._n_ctx = llm.n_ctx()
    llm._logits_all = options["logits_all"]
    llm.draft_model = options["draft_model"]
    if llm._lora_adapter is not None:
        adapters = (lib.llama_adapter_lora_p_ctypes * 1)(llm._lora_adapter)
        scales = (ctypes.c_float * 1)(llm.lora_scale)
        if lib.llama_set_adapters_lora(llm.ctx, adapters, 1, scales):
            raise RuntimeError(f"Failed to set LoRA adapter from lora path: {llm.lora_path}")


def open_target(
    llm: Any,
    options: Mapping[str, Any],
    draft: DraftConfig,
    reason: str,
    progress: Callable[[str], None],
) -> tuple[OwnTarget, str]:
    """The target, of a hybrid with the snapshots that pay, and a line about them or an empty one.

    Parameters
    ----------
    reason : why it cannot verify draft trees, or an empty text.
    """
    auto, n_snapshots = draft.speculative == "auto", fixed_snapshots(draft)
    may_rewind = reason and reason != NO_REWIND and not keeps_stock_context(options)
    if not may_rewind or not (auto or n_snapshots):
        return OwnTarget(llm, reason), ""

    def reopen(n_snapshots: int) -> OwnTarget:
        replace_context(llm, options, 1, n_snapshots)
        return OwnTarget(llm, reason)

    if not auto:
        return reopen(n_snapshots), ""
    return choose_snapshots(
        reopen,
        Path(llm.model_path).stat().st_size,
        k=draft.k,
        n_threads=default_threads(),
        progress=progress,
    )


def matrix_identity(llm: Any) -> str:
    """Whose matrix it is: the tokenizer's, and the LoRA adapter's where there is one."""
    leave_log()
    identity = fingerprint(llm._model.vocab)
    if llm.lora_path:
        digest = hashlib.sha256(str(llm.lora_scale).encode())
        with open(llm.lora_path, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        identity += f"-lora-{digest.hexdigest()[:16]}"
    return identity


def read_state(llm: Any, state: bytes) -> None:
    """Put a saved state into the context.

    Raises
    ------
    RuntimeError : llama.cpp refused it.
    """
    buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
    if lib.llama_state_set_data(llm.ctx, buffer, len(state)) != len(state):
        raise RuntimeError("Failed to set llama state data")
