"""Opens a context of a hybrid, with the snapshots of its recurrent state that pay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edge_tr.config import ContextConfig, DraftConfig, fixed_snapshots
from edge_tr.decode.topk import default_threads
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.snapshots import choose_snapshots


def open_target(
    model: Model,
    config: ContextConfig,
    draft: DraftConfig,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[LlamaTarget, str]:
    """A context, and a line for the user where it was chosen whether it has snapshots: what they
    take, or why there are none.

    Raises
    ------
    ModelLoadError : no memory for the context, or llama.cpp refused the combination.
    """
    if not model.plain_reason or config.n_snapshots is not None:
        return LlamaTarget(model, config), ""
    if draft.speculative != "auto":
        n_snapshots = fixed_snapshots(draft)
        return LlamaTarget(model, replace(config, n_snapshots=n_snapshots)), ""
    opened: list[LlamaTarget] = []

    def reopen(n_snapshots: int) -> LlamaTarget:
        while opened:
            opened.pop().close()
        opened.append(LlamaTarget(model, replace(config, n_snapshots=n_snapshots)))
        return opened[0]

    try:
        return choose_snapshots(
            reopen,
            model.info.size_bytes,
            state_bytes=4 * model.info.n_state_values,
            k=draft.k,
            n_threads=default_threads(),
            progress=progress,
        )
    except BaseException:
        while opened:
            opened.pop().close()
        raise
