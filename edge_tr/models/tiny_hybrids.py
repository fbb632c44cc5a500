"""Layers of tiny hybrids whose recurrent state llama.cpp can rewind by some tokens, and their
hyperparameters: short convolutions (lfm2), gated delta nets (qwen35), Mamba 2 (nemotron_h)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gguf

HYBRIDS = ("lfm2", "qwen35", "nemotron_h")

N_EMBD, N_HEAD, N_HEAD_KV, N_FF = 128, 2, 1, 256
_HEAD = N_EMBD // N_HEAD
_L_CACHE, _D_CONV = 3, 4
_D_STATE, _N_GROUP, _N_SSM_HEAD = 32, 2, 4
_D_INNER = _D_STATE * _N_SSM_HEAD

Shapes = dict[str, tuple[int, ...]]


def n_layers(arch: str) -> int:
    """A recurrent layer, one with attention, and in nemotron_h one with a feed-forward network,
    which the others hold themselves."""
    return 3 if arch == "nemotron_h" else 2


def add_hyperparameters(writer: gguf.GGUFWriter, arch: str) -> None:
    """Those that the other tiny models have not."""
    n_others = n_layers(arch) - 2
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV if arch == "qwen35" else [0, N_HEAD_KV, *[0] * n_others])
    writer.add_feed_forward_length([0, 0, N_FF] if arch == "nemotron_h" else N_FF)
    if arch == "nemotron_h":
        writer.add_layer_norm_eps(1e-5)
    if arch == "lfm2":
        writer.add_shortconv_l_cache(_L_CACHE)
        return
    writer.add_ssm_conv_kernel(_D_CONV)
    writer.add_ssm_inner_size(_D_INNER)
    writer.add_ssm_state_size(_D_STATE)
    writer.add_ssm_time_step_rank(_N_SSM_HEAD)
    writer.add_ssm_group_count(_N_GROUP)
    if arch == "qwen35":
        writer.add_full_attention_interval(2)
        writer.add_rope_dimension_sections([11, 11, 10, 0])


def tensors(arch: str) -> Shapes:
    """Shape of each tensor of the layers by name, rows last."""
    final = "token_embd_norm" if arch == "lfm2" else "output_norm"
    shapes: Shapes = {f"{final}.weight": (N_EMBD,)}
    for layer in range(n_layers(arch)):
        block: Shapes = {"attn_norm.weight": (N_EMBD,)}
        if layer == 0:
            block |= _RECURRENT[arch]
        elif layer == 1:
            block |= _attention(arch)
        if arch != "nemotron_h":
            norm = "post_attention_norm" if arch == "qwen35" else "ffn_norm"
            block |= {f"{norm}.weight": (N_EMBD,), "ffn_gate.weight": (N_FF, N_EMBD)}
        if arch != "nemotron_h" or layer == 2:
            block |= {"ffn_up.weight": (N_FF, N_EMBD), "ffn_down.weight": (N_EMBD, N_FF)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def _attention(arch: str) -> Shapes:
    gated = 2 if arch == "qwen35" else 1  # queries and their gates
    block: Shapes = {
        "attn_q.weight": (gated * N_EMBD, N_EMBD),
        "attn_k.weight": (N_HEAD_KV * _HEAD, N_EMBD),
        "attn_v.weight": (N_HEAD_KV * _HEAD, N_EMBD),
        "attn_output.weight": (N_EMBD, N_EMBD),
    }
    if arch != "nemotron_h":
        block |= {"attn_q_norm.weight": (_HEAD,), "attn_k_norm.weight": (_HEAD,)}
    return block


_CHANNELS = _D_INNER + 2 * _N_GROUP * _D_STATE
_RECURRENT: dict[str, Shapes] = {
    "lfm2": {
        "shortconv.conv.weight": (N_EMBD, _L_CACHE),
        "shortconv.in_proj.weight": (3 * N_EMBD, N_EMBD),
        "shortconv.out_proj.weight": (N_EMBD, N_EMBD),
    },
    "qwen35": {
        "attn_qkv.weight": (_CHANNELS, N_EMBD),
        "attn_gate.weight": (_D_INNER, N_EMBD),
        "ssm_conv1d.weight": (_CHANNELS, _D_CONV),
        "ssm_dt.bias": (_N_SSM_HEAD,),
        "ssm_a": (_N_SSM_HEAD,),
        "ssm_beta.weight": (_N_SSM_HEAD, N_EMBD),
        "ssm_alpha.weight": (_N_SSM_HEAD, N_EMBD),
        "ssm_norm.weight": (_D_STATE,),
        "ssm_out.weight": (N_EMBD, _D_INNER),
    },
    "nemotron_h": {
        "ssm_in.weight": (_D_INNER + _CHANNELS + _N_SSM_HEAD, N_EMBD),
        "ssm_conv1d.weight": (_CHANNELS, _D_CONV),
        "ssm_conv1d.bias": (_CHANNELS,),
        "ssm_dt.bias": (_N_SSM_HEAD,),
        "ssm_a": (_N_SSM_HEAD, 1),
        "ssm_d": (_N_SSM_HEAD, 1),
        "ssm_norm.weight": (_N_GROUP, _D_INNER // _N_GROUP),
        "ssm_out.weight": (N_EMBD, _D_INNER),
    },
}
