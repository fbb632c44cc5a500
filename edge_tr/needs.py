"""What opening a model will take, known before it is opened."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from edge_tr.config import ContextConfig, DraftConfig, affordable_snapshots, fixed_snapshots
from edge_tr.errors import ModelLoadError
from edge_tr.gguf_file.info import GGUFInfo
from edge_tr.machine import facts

_VALUE_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32,
                "q4_1": 20 / 32, "q5_0": 22 / 32, "q5_1": 24 / 32}  # fmt: skip
_PAIRS_BYTES = 36 << 17  # see Candidates
_HISTORY_BYTES = 9  # a token, see History


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes of memory, each about what llama.cpp and edge_tr allocate.

    Attributes
    ----------
    weights_bytes : of the file; the system may read them anew instead of keeping them.
    cache_bytes : KV cache of the context; 0 where there is none, or its size is not known.
    state_bytes : recurrent state, a copy of it, and its snapshots, as many as may be made; 0 as
        above.
    compute_bytes : llama.cpp's buffer for a batch.
    rows_bytes : a row of logits for each lane.
    matrix_bytes, pairs_bytes, history_bytes : what is learned: the adjacency matrix with its
        probabilities, rows of two tokens, and earlier texts when there are that many.
    """

    weights_bytes: int
    cache_bytes: int
    state_bytes: int
    compute_bytes: int
    rows_bytes: int
    matrix_bytes: int
    pairs_bytes: int
    history_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(asdict(self).values())


def memory_needs(info: GGUFInfo, context: ContextConfig, draft: DraftConfig) -> MemoryNeeds:
    """What a session of a model takes.

    Parameters
    ----------
    info : from the file's header.
    context, draft : as for the session.
    """
    n_ctx = -(-(context.n_ctx or info.n_ctx_train) // 256) * 256
    n_ubatch = min(context.n_ubatch, context.n_batch, n_ctx)
    drafts = draft.speculative != "off" and info.kind == "draftable"
    n_cells = n_ctx
    if info.sliding_window and not context.swa_full:
        n_cells = min(n_ctx, info.sliding_window + n_ubatch)  # of most layers, at least
    value_bytes = (_VALUE_BYTES[context.type_k] + _VALUE_BYTES[context.type_v]) / 2
    from edge_tr.llama import kernels  # the doctor must live where llama.cpp cannot be loaded

    scores = 0 if context.flash_attn or kernels.attend(info, context) else info.n_heads * n_ctx
    wide = max(info.n_vocab, scores) + info.n_ff + 4 * info.n_embd
    return MemoryNeeds(
        weights_bytes=info.size_bytes,
        cache_bytes=int(n_cells * info.n_cache_values * value_bytes),
        state_bytes=4 * info.n_state_values * (2 + _n_snapshots(info, context, draft)),
        compute_bytes=4 * n_ubatch * wide,
        rows_bytes=4 * info.n_vocab * (context.n_lanes if info.kind == "draftable" else 1),
        matrix_bytes=5 * draft.k * info.n_vocab if drafts else 0,
        pairs_bytes=_PAIRS_BYTES if drafts else 0,
        history_bytes=_HISTORY_BYTES * draft.n_history if drafts else 0,
    )


def _n_snapshots(info: GGUFInfo, context: ContextConfig, draft: DraftConfig) -> int:
    """Snapshots of the recurrent state that a context is made with at most."""
    if not info.can_keep_snapshots:
        return 0
    if context.n_snapshots is not None:
        n = context.n_snapshots
    elif draft.speculative == "auto":
        n = affordable_snapshots(4 * info.n_state_values, info.size_bytes)
    else:
        n = fixed_snapshots(draft)
    return min(n, context.n_ubatch - 1)


def require_fit(info: GGUFInfo, context: ContextConfig, draft: DraftConfig) -> None:
    """See that a model can be opened in the memory of this machine.

    Weights may exceed what is free, since the system reads a part of them anew; what is computed
    with may not.

    Raises
    ------
    ModelLoadError : it cannot; the text holds the numbers.
    """
    needs, memory = memory_needs(info, context, draft), facts.memory()
    total, free = memory["memory_bytes"], memory["memory_available_bytes"]
    swap = memory["swap_free_bytes"]
    at_once = needs.total_bytes - needs.weights_bytes - needs.history_bytes
    if (total and needs.total_bytes > total + swap) or (free and at_once > free + swap):
        raise ModelLoadError(
            f"{info.path.name} does not fit in memory: {told(needs)}; {gib(free)} are free of "
            f"{gib(total)}. A smaller context, a smaller quantisation or layers on a GPU need less"
        )


def told(needs: MemoryNeeds) -> str:
    """The needs in words."""
    parts = [
        ("weights", needs.weights_bytes),
        ("KV cache", needs.cache_bytes),
        ("recurrent state", needs.state_bytes),
        ("computing", needs.compute_bytes + needs.rows_bytes),
        ("matrix, pairs and history", needs.matrix_bytes + needs.pairs_bytes + needs.history_bytes),
    ]
    listed = ", ".join(f"{name} {gib(n_bytes)}" for name, n_bytes in parts if n_bytes)
    return f"it takes {gib(needs.total_bytes)} ({listed})"


def gib(n_bytes: int) -> str:
    """A size for people."""
    return f"{n_bytes / 2**30:.2f} GiB"
