"""``llama_cpp.Llama`` as its users open it, to compare with."""

from __future__ import annotations

from typing import Any

from edge_tr.config import ContextConfig
from edge_tr.llama.context_params import llama_values, settled
from edge_tr.llama.model import Model


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
        **llama_values(settled(model, config)),
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=n_lookup) if n_lookup else None,
        no_perf=True,
        verbose=False,
    )
