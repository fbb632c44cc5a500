"""``llama_cpp.Llama`` as its users open it, to compare with."""

from __future__ import annotations

from typing import Any

from edge_tr.llama.model import Model
from edge_tr.llama.target import CACHE_TYPES, ContextConfig


def open_stock(model: Model, config: ContextConfig, *, n_lookup: int = 0) -> Any:
    """The stock class in the configuration of a context.

    Parameters
    ----------
    n_lookup : tokens that its own prompt lookup drafts at most; 0 drafts nothing.

    Raises
    ------
    ValueError : llama.cpp could not open the model so.
    """
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    return Llama(
        str(model.path),
        n_gpu_layers=model.n_gpu_layers,
        n_ctx=config.n_ctx,
        n_batch=config.n_batch,
        n_ubatch=config.n_ubatch,
        n_threads=config.n_threads,
        n_threads_batch=config.n_threads_batch,
        flash_attn=config.flash_attn,
        type_k=CACHE_TYPES[config.type_k],
        type_v=CACHE_TYPES[config.type_v],
        offload_kqv=config.offload_kqv,
        swa_full=config.swa_full,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=n_lookup) if n_lookup else None,
        no_perf=True,
        verbose=False,
    )
