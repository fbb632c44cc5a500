"""Layers of hybrids whose recurrent state llama.cpp can rewind by some tokens, for tiny models and
shapes: short convolutions (lfm2), gated delta nets (qwen35), Mamba 2 (nemotron_h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gguf

HYBRIDS = ("lfm2", "qwen35", "nemotron_h")

_L_CACHE, _D_CONV = 3, 4

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Hybrid:
    """Hyperparameters of the layers.

    Attributes
    ----------
    kinds : of each layer: r recurrent, a with attention, f a feed-forward network alone, which
        in lfm2 and qwen35 every layer holds itself.
    head_dim : of attention.
    rope_sections : of qwen35, half as many in all as a head has rotated dimensions.
    d_state, n_group, n_ssm_head : of the recurrent layers but those of lfm2: size of a state,
        groups (of keys), heads (of values).
    """

    architecture: str
    kinds: str
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    rope_sections: tuple[int, int, int, int] = (11, 11, 10, 0)
    d_state: int = 0
    n_group: int = 0
    n_ssm_head: int = 0

    @property
    def d_inner(self) -> int:
        """Size of what the recurrent layers give."""
        return self.d_state * self.n_ssm_head

    @property
    def n_channels(self) -> int:
        """Of their convolution."""
        return self.d_inner + 2 * self.n_group * self.d_state


def tiny(arch: str) -> Hybrid:
    """Of a tiny model: one layer of each kind."""
    kinds = "raf" if arch == "nemotron_h" else "ra"
    d_state, n_group, n_head = (0, 0, 0) if arch == "lfm2" else (32, 2, 4)
    sizes = 128, 2, 1, 64, 256
    return Hybrid(arch, kinds, *sizes, d_state=d_state, n_group=n_group, n_ssm_head=n_head)


def add_hyperparameters(writer: gguf.GGUFWriter, hybrid: Hybrid) -> None:
    """Those that tell the layers apart, and their sizes."""
    arch, kinds = hybrid.architecture, hybrid.kinds
    n_kv, n_ff = hybrid.n_head_kv, hybrid.n_ff
    writer.add_block_count(len(kinds))
    writer.add_head_count(hybrid.n_head)
    writer.add_head_count_kv(n_kv if arch == "qwen35" else [n_kv * (k == "a") for k in kinds])
    by_layer = [n_ff * (k == "f") for k in kinds]
    writer.add_feed_forward_length(by_layer if arch == "nemotron_h" else n_ff)
    writer.add_key_length(hybrid.head_dim)
    writer.add_value_length(hybrid.head_dim)
    if arch == "nemotron_h":
        writer.add_layer_norm_eps(1e-5)
    if arch == "lfm2":
        writer.add_shortconv_l_cache(_L_CACHE)
        return
    writer.add_ssm_conv_kernel(_D_CONV)
    writer.add_ssm_inner_size(hybrid.d_inner)
    writer.add_ssm_state_size(hybrid.d_state)
    writer.add_ssm_time_step_rank(hybrid.n_ssm_head)
    writer.add_ssm_group_count(hybrid.n_group)
    if arch == "qwen35":
        writer.add_full_attention_interval(kinds.index("a") + 1)
        writer.add_rope_dimension_sections(list(hybrid.rope_sections))
        writer.add_rope_dimension_count(2 * sum(hybrid.rope_sections))


def tensors(hybrid: Hybrid) -> Shapes:
    """Shape of each tensor of the layers by name, rows last, and of the last norm."""
    arch, n_embd, n_ff = hybrid.architecture, hybrid.n_embd, hybrid.n_ff
    final = "token_embd_norm" if arch == "lfm2" else "output_norm"
    shapes: Shapes = {f"{final}.weight": (n_embd,)}
    for layer, kind in enumerate(hybrid.kinds):
        block: Shapes = {"attn_norm.weight": (n_embd,)}
        if kind == "r":
            block |= _RECURRENT[arch](hybrid)
        elif kind == "a":
            block |= _attention(hybrid)
        if arch != "nemotron_h":
            norm = "post_attention_norm" if arch == "qwen35" else "ffn_norm"
            block |= {f"{norm}.weight": (n_embd,), "ffn_gate.weight": (n_ff, n_embd)}
        if arch != "nemotron_h" or kind == "f":
            block |= {"ffn_up.weight": (n_ff, n_embd), "ffn_down.weight": (n_embd, n_ff)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def _attention(hybrid: Hybrid) -> Shapes:
    n_embd, head = hybrid.n_embd, hybrid.head_dim
    gated = 2 if hybrid.architecture == "qwen35" else 1  # queries and their gates
    block: Shapes = {
        "attn_q.weight": (gated * hybrid.n_head * head, n_embd),
        "attn_k.weight": (hybrid.n_head_kv * head, n_embd),
        "attn_v.weight": (hybrid.n_head_kv * head, n_embd),
        "attn_output.weight": (n_embd, hybrid.n_head * head),
    }
    if hybrid.architecture != "nemotron_h":
        block |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
    return block


def _short_convolution(hybrid: Hybrid) -> Shapes:
    n_embd = hybrid.n_embd
    return {
        "shortconv.conv.weight": (n_embd, _L_CACHE),
        "shortconv.in_proj.weight": (3 * n_embd, n_embd),
        "shortconv.out_proj.weight": (n_embd, n_embd),
    }


def _delta_net(hybrid: Hybrid) -> Shapes:
    n_embd, n_head = hybrid.n_embd, hybrid.n_ssm_head
    return {
        "attn_qkv.weight": (hybrid.n_channels, n_embd),
        "attn_gate.weight": (hybrid.d_inner, n_embd),
        "ssm_conv1d.weight": (hybrid.n_channels, _D_CONV),
        "ssm_dt.bias": (n_head,),
        "ssm_a": (n_head,),
        "ssm_beta.weight": (n_head, n_embd),
        "ssm_alpha.weight": (n_head, n_embd),
        "ssm_norm.weight": (hybrid.d_state,),
        "ssm_out.weight": (n_embd, hybrid.d_inner),
    }


def _mamba_2(hybrid: Hybrid) -> Shapes:
    n_head, n_group, d_inner = hybrid.n_ssm_head, hybrid.n_group, hybrid.d_inner
    return {
        "ssm_in.weight": (d_inner + hybrid.n_channels + n_head, hybrid.n_embd),
        "ssm_conv1d.weight": (hybrid.n_channels, _D_CONV),
        "ssm_conv1d.bias": (hybrid.n_channels,),
        "ssm_dt.bias": (n_head,),
        "ssm_a": (n_head, 1),
        "ssm_d": (n_head, 1),
        "ssm_norm.weight": (n_group, d_inner // n_group),
        "ssm_out.weight": (hybrid.n_embd, d_inner),
    }


_RECURRENT = {"lfm2": _short_convolution, "qwen35": _delta_net, "nemotron_h": _mamba_2}
