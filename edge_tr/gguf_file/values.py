"""Values of a header with which llama.cpp ends the process instead of refusing the file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from edge_tr.errors import ModelFileError

_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
_MAX_CONTEXT = 1 << 31

Scalar = int | float | bool | str

_RANGES: tuple[tuple[str, int, int], ...] = (
    ("block_count", 1, _MAX_LAYERS),
    ("expert_count", 0, _MAX_EXPERTS),
    ("context_length", 1, _MAX_CONTEXT - 1),
    ("embedding_length", 1, 1 << 20),
    ("feed_forward_length", 0, 1 << 24),
    ("attention.head_count", 0, 1 << 16),
    ("attention.head_count_kv", 0, 1 << 16),
    ("attention.key_length", 1, 1 << 16),
    ("attention.value_length", 1, 1 << 16),
    ("rope.dimension_count", 0, 1 << 16),
    ("attention.sliding_window", 0, _MAX_CONTEXT - 1),
)
_FACTORS = (
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.group_norm_epsilon",
)


def check_values(path: Path, architecture: str, scalars: Mapping[str, Scalar]) -> None:
    """Refuse a header whose values llama.cpp asserts on.

    Raises
    ------
    ModelFileError : a value is out of its range; the text names it.

    Source
    ------
    ``llama_model_base::load_hparams`` and what the graph asserts.
    """

    def number(name: str) -> Scalar | None:
        return scalars.get(f"{architecture}.{name}")

    def refuse(name: str, told: str) -> ModelFileError:
        return ModelFileError(
            f"{path} is damaged: {architecture}.{name} is {number(name)!r:.40}, {told}"
        )

    for name, low, high in _RANGES:
        value = number(name)
        if value is not None and not (isinstance(value, int) and low <= value <= high):
            raise refuse(name, f"not {low} to {high}")
    for name in _FACTORS:
        value = number(name)
        if value is not None and not (
            isinstance(value, (int, float)) and math.isfinite(value) and 0 <= value <= 1
        ):
            raise refuse(name, "not 0 to 1")
    n_experts, n_used = number("expert_count") or 0, number("expert_used_count")
    assert isinstance(n_experts, int)
    if n_used is not None and not (isinstance(n_used, int) and 0 <= n_used <= n_experts):
        raise refuse("expert_used_count", f"not 0 to the {n_experts} experts")
    if n_experts and n_used == 0:
        raise refuse("expert_used_count", "and there are experts")
    n_groups = number("expert_group_count") or 0
    if n_groups and not (
        isinstance(n_groups, int) and 0 < n_groups < n_experts and n_experts % n_groups == 0
    ):
        raise refuse("expert_group_count", f"which does not divide the {n_experts} experts")
    n_ahead, n_layers = number("nextn_predict_layers") or 0, number("block_count") or 0
    if not (isinstance(n_ahead, int) and isinstance(n_layers, int) and 0 <= n_ahead <= n_layers):
        raise refuse("nextn_predict_layers", f"not 0 to the {n_layers} layers")
