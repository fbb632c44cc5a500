"""How many numbers a model keeps for a text, from its header: keys and values, recurrent states."""

from __future__ import annotations

from math import prod

from edge_tr.gguf_file.header import Header, integer

REWINDABLE = frozenset((
    "qwen35", "qwen35moe", "qwen4exp", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe",
    "kimi-k3", "deepseek4", "glm5-next", "bailingmoe3",
))  # fmt: skip
"""Architectures whose recurrent state llama.cpp 0.3.36 can keep snapshots of
(``llm_arch_supports_rs_rollback``)."""

_RECURRENT = ("ssm_", "shortconv.", "time_mix_")


def cache_values(headers: list[Header], architecture: str) -> int:
    """Keys and values of all layers for one token, at most; 0 where that is not known.

    Parameters
    ----------
    headers : of all parts of the model, the first of which holds its hyperparameters.
    """

    def number(name: str) -> int:
        return integer(headers[0], f"{architecture}.{name}")

    n_layers, n_heads = number("block_count"), number("attention.head_count")
    n_state_layers = len(_recurrent_layers(headers))
    if number("attention.kv_lora_rank"):
        latent = number("attention.kv_lora_rank") + number("rope.dimension_count")
        return (n_layers - n_state_layers) * latent
    if n_state_layers:
        return sum(_rows(headers, f"{name}.weight") for name in ("attn_k", "attn_v"))
    each = sum(head_sizes(headers[0], architecture))
    return n_layers * (number("attention.head_count_kv") or n_heads) * each


def head_sizes(header: Header, architecture: str) -> tuple[int, int]:
    """Dimensions of a key and of a value of one head; 0 where heads compress them."""
    names = ("attention.kv_lora_rank", "attention.head_count", "embedding_length")
    compressed, n_heads, n_embd = (integer(header, f"{architecture}.{name}") for name in names)
    if compressed or not n_heads:
        return 0, 0
    lengths = ("attention.key_length", "attention.value_length")
    key, value = (integer(header, f"{architecture}.{name}") for name in lengths)
    return key or n_embd // n_heads, value or n_embd // n_heads


def state_values(headers: list[Header], architecture: str) -> int:
    """Numbers in the recurrent state of a text, over all layers; 0 where there is none, or its size
    is not known.

    Source
    ------
    llama.cpp's ``llama_hparams::n_embd_r`` and ``n_embd_s``.
    """

    def number(name: str) -> int:
        return integer(headers[0], f"{architecture}.{name}")

    n_embd, n_head = number("embedding_length"), number("attention.head_count")
    d_inner, d_state = number("ssm.inner_size"), number("ssm.state_size")
    n_before = max(0, number("ssm.conv_kernel") - 1)  # inputs that the convolution looks back at
    if head := number("wkv.head_size"):
        each = (number("token_shift_count") or 2) * n_embd + n_embd * head
    elif n_taps := number("shortconv.l_cache"):
        each = n_embd * (n_taps - 1)
    elif head := number("kda.head_dim"):
        each = (3 * (n_before or 3) + head) * n_head * head
    else:
        each = n_before * (d_inner + 2 * number("ssm.group_count") * d_state) + d_inner * d_state
    return len(_recurrent_layers(headers)) * each


def _recurrent_layers(headers: list[Header]) -> set[str]:
    names = (name.split(".", 2) for header in headers for name in header.shapes)
    return {parts[1] for parts in names if parts[0] == "blk" and parts[-1].startswith(_RECURRENT)}


def _rows(headers: list[Header], ending: str) -> int:
    """Rows of all matrices of the layers with such a name, together."""
    shapes = (item for header in headers for item in header.shapes.items())
    return sum(prod(shape[1:]) for name, shape in shapes if name.split(".", 2)[-1] == ending)
