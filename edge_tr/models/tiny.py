"""Tiny models of several architectures with random weights and a real vocabulary, for tests."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edge_tr.errors import ConfigError
from edge_tr.models import hybrids
from edge_tr.models.tiny_vocab import CHAT_TEMPLATE, SPECIAL_TOKENS, TinyVocab, tiny_vocab

if TYPE_CHECKING:
    import gguf
    import numpy as np
    from numpy.typing import NDArray

Quantisation = Literal["f32", "f16", "q8_0", "q4_0"]

TINY_ARCHITECTURES = (
    *("llama", "qwen2", "gemma3", "mixtral", "mamba", "jamba", "bert", "dream"),
    *hybrids.HYBRIDS,
)
"""Dense, with a sliding window, a mixture of experts (llama with experts), recurrent, hybrid,
encoder-only, diffusion, and the hybrids that can rewind."""

N_EMBD, N_HEAD, N_HEAD_KV, N_FF, N_LAYERS = 128, 2, 1, 256, 2
"""Heads are 64 wide, the narrowest that GPU flash attention knows; rows fill 32-wide blocks."""
N_CTX_TRAIN, _N_CTX_BERT = 8192, 512
N_EXPERTS, N_EXPERTS_USED = 4, 2
_D_INNER, _D_STATE, _D_CONV, _DT_RANK = 2 * N_EMBD, 16, 4, 8
_ATTENTION_GAIN, _RESIDUAL_GAIN, _RECURRENT_GAIN, _OUTPUT_GAIN = 1.6, 0.5, 1.5, 2.0
"""Chosen so that greedy text depends on more than the last token, yet repeats itself at times."""
_UNQUANTISED = ("norm", "bias", "ssm_conv1d", "ssm_a", "ssm_d", "ffn_gate_inp", "position_embd")


def write_tiny(
    path: Path,
    arch: str,
    seed: int = 0,
    *,
    n_vocab: int = 512,
    quantisation: Quantisation = "q8_0",
    sliding_window: int = 32,
) -> Path:
    """Write a model of a few hundred KB that llama.cpp loads and that answers with varied text.

    Parameters
    ----------
    path : Path
        Is overwritten.
    arch : str
        One of `TINY_ARCHITECTURES`.
    seed : int
        Equal seeds give equal files.
    n_vocab : int
        From 260; 256 bytes, merged pieces of English, JSON and Python, three special tokens.
    quantisation : str
        Of the matrices; f32, f16, q8_0 or q4_0.
    sliding_window : int
        Of gemma3's first layer; its second layer sees everything.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ConfigError
        An unknown architecture or quantisation, or a vocabulary that is too small.
    """
    import gguf
    import numpy as np

    if arch not in TINY_ARCHITECTURES:
        raise ConfigError(f"arch is {arch!r}; allowed are {', '.join(TINY_ARCHITECTURES)}")
    if quantisation not in ("f32", "f16", "q8_0", "q4_0"):
        raise ConfigError(f"quantisation is {quantisation!r}; allowed are f32, f16, q8_0, q4_0")
    vocab = tiny_vocab(n_vocab)
    writer = gguf.GGUFWriter(path, "llama" if arch == "mixtral" else arch)
    writer.add_name(f"tiny {arch}, random weights, seed {seed}")
    _add_hyperparameters(writer, arch, sliding_window)
    _add_vocab(writer, vocab)
    prefix = "ALL" if quantisation == "f32" else "MOSTLY"
    writer.add_file_type(gguf.LlamaFileType[f"{prefix}_{quantisation.upper()}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    rng = np.random.default_rng(seed)
    for name, shape in _tensors(arch, n_vocab).items():
        _add_tensor(writer, name, _weights(rng, arch, name, shape, vocab), quantisation)
    with closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return path


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, weights: NDArray[np.float32], quantisation: str
) -> None:
    import gguf

    kind = gguf.GGMLQuantizationType[quantisation.upper()]
    is_vector, row = weights.ndim == 1, weights.shape[-1]
    if is_vector or row % 32 or any(part in name for part in _UNQUANTISED):
        kind = gguf.GGMLQuantizationType.F32
    writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)


def _add_hyperparameters(writer: gguf.GGUFWriter, arch: str, sliding_window: int) -> None:
    import gguf

    writer.add_context_length(_N_CTX_BERT if arch == "bert" else N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_layer_norm_rms_eps(1e-5)
    if arch in hybrids.HYBRIDS:
        hybrids.add_hyperparameters(writer, hybrids.tiny(arch))
        return
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(N_FF)
    if arch == "mamba":
        writer.add_head_count(0)
    else:
        writer.add_head_count(N_HEAD)
        writer.add_head_count_kv([0, N_HEAD_KV] if arch == "jamba" else N_HEAD_KV)
    if arch in ("mamba", "jamba"):
        writer.add_ssm_conv_kernel(_D_CONV)
        writer.add_ssm_inner_size(_D_INNER)
        writer.add_ssm_state_size(_D_STATE)
        writer.add_ssm_time_step_rank(_DT_RANK)
    if arch == "gemma3":
        writer.add_key_length(N_EMBD // N_HEAD)
        writer.add_value_length(N_EMBD // N_HEAD)
        writer.add_sliding_window(sliding_window)
        writer.add_sliding_window_pattern(N_LAYERS)
    if arch == "mixtral":
        writer.add_expert_count(N_EXPERTS)
        writer.add_expert_used_count(N_EXPERTS_USED)
    if arch == "bert":
        writer.add_layer_norm_eps(1e-5)
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        writer.add_token_type_count(2)
    if arch == "dream":
        writer.add_mask_token_id(0)


def _add_vocab(writer: gguf.GGUFWriter, vocab: TinyVocab) -> None:
    import gguf

    n_plain = len(vocab.tokens) - len(SPECIAL_TOKENS)
    types = [gguf.TokenType.NORMAL] * n_plain + [gguf.TokenType.CONTROL] * len(SPECIAL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocab.tokens)
    writer.add_token_types(types)
    writer.add_token_merges(vocab.merges)
    writer.add_bos_token_id(vocab.id_of("<|endoftext|>"))
    writer.add_eos_token_id(vocab.id_of("<|im_end|>"))
    writer.add_pad_token_id(vocab.id_of("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _tensors(arch: str, n_vocab: int) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor by name, rows last, as NumPy orders them."""
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (n_vocab, N_EMBD)}
    if arch in hybrids.HYBRIDS:
        return tensors | {"output.weight": (n_vocab, N_EMBD)} | hybrids.tensors(hybrids.tiny(arch))
    if arch == "bert":
        tensors["position_embd.weight"] = (_N_CTX_BERT, N_EMBD)
        tensors |= _norm("token_embd_norm", bias=True)
    else:
        tensors["output.weight"] = (n_vocab, N_EMBD)
        tensors |= _norm("output_norm")
    for layer in range(N_LAYERS):
        if arch == "mamba" or (arch == "jamba" and layer == 0):
            block = _mamba(normalised=arch == "jamba")
        else:
            block = _attention(arch)
        if arch != "mamba":
            block |= _feed_forward(arch)
        tensors |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return tensors


def _norm(name: str, size: int = N_EMBD, *, bias: bool = False) -> dict[str, tuple[int, ...]]:
    norm: dict[str, tuple[int, ...]] = {f"{name}.weight": (size,)}
    return norm | {f"{name}.bias": (size,)} if bias else norm


def _attention(arch: str) -> dict[str, tuple[int, ...]]:
    head = N_EMBD // N_HEAD
    block: dict[str, tuple[int, ...]] = {
        "attn_q.weight": (N_EMBD, N_EMBD),
        "attn_k.weight": (N_HEAD_KV * head, N_EMBD),
        "attn_v.weight": (N_HEAD_KV * head, N_EMBD),
        "attn_output.weight": (N_EMBD, N_EMBD),
    }
    if arch == "bert":
        return block | _norm("attn_output_norm", bias=True)
    if arch == "qwen2":
        block |= {f"attn_{x}.bias": block[f"attn_{x}.weight"][:1] for x in "qkv"}
    if arch == "gemma3":
        block |= _norm("attn_q_norm", head) | _norm("attn_k_norm", head)
        block |= _norm("post_attention_norm")
    return block | _norm("attn_norm")


def _mamba(*, normalised: bool) -> dict[str, tuple[int, ...]]:
    block: dict[str, tuple[int, ...]] = {
        "ssm_in.weight": (2 * _D_INNER, N_EMBD),
        "ssm_conv1d.weight": (_D_INNER, _D_CONV),
        "ssm_conv1d.bias": (_D_INNER,),
        "ssm_x.weight": (_DT_RANK + 2 * _D_STATE, _D_INNER),
        "ssm_dt.weight": (_D_INNER, _DT_RANK),
        "ssm_dt.bias": (_D_INNER,),
        "ssm_a": (_D_INNER, _D_STATE),
        "ssm_d": (_D_INNER,),
        "ssm_out.weight": (N_EMBD, _D_INNER),
    }
    if normalised:
        block |= _norm("ssm_dt_norm", _DT_RANK)
        block |= _norm("ssm_b_norm", _D_STATE) | _norm("ssm_c_norm", _D_STATE)
    return block | _norm("attn_norm")


def _feed_forward(arch: str) -> dict[str, tuple[int, ...]]:
    if arch == "bert":
        norm = _norm("layer_output_norm", bias=True)
        return norm | {"ffn_up.weight": (N_FF, N_EMBD), "ffn_down.weight": (N_EMBD, N_FF)}
    experts, suffix = ((N_EXPERTS,), "_exps") if arch == "mixtral" else ((), "")
    block: dict[str, tuple[int, ...]] = {
        f"ffn_gate{suffix}.weight": (*experts, N_FF, N_EMBD),
        f"ffn_up{suffix}.weight": (*experts, N_FF, N_EMBD),
        f"ffn_down{suffix}.weight": (*experts, N_EMBD, N_FF),
    }
    if experts:
        block["ffn_gate_inp.weight"] = (N_EXPERTS, N_EMBD)
    if arch == "gemma3":
        block |= _norm("post_ffw_norm")
    return block | _norm("ffn_norm")


def _weights(
    rng: np.random.Generator, arch: str, name: str, shape: tuple[int, ...], vocab: TinyVocab
) -> NDArray[np.float32]:
    """Random weights that keep activations near one; float32, `shape`."""
    import numpy as np

    gain = 1.0
    if any(part in name for part in ("attn_q", "attn_k")):
        gain = _ATTENTION_GAIN
    elif any(part in name for part in ("attn_output", "ffn_down", "post_")):
        gain = _RESIDUAL_GAIN
    elif "ssm_out" in name or "out_proj" in name:
        gain = _RECURRENT_GAIN
    if name.endswith("norm.weight"):
        return np.full(shape, gain, np.float32)
    if name.endswith(".ssm_d"):
        return np.ones(shape, np.float32)
    if name.endswith(".ssm_a"):
        return _decays(arch, shape)
    weights = rng.standard_normal(shape, np.float32)
    if name == "output.weight":
        return _output_weights(weights, vocab)
    if name == "token_embd.weight":  # gemma3 multiplies its embeddings by sqrt(N_EMBD)
        gain = 1 / np.sqrt(N_EMBD) if arch == "gemma3" else 1.0
        return weights * np.float32(gain)
    if len(shape) == 1:
        return weights * np.float32(0.1)
    return weights * np.float32(gain / np.sqrt(shape[-1]))


def _decays(arch: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """States from slow to fast, as S4D: one for each head of the hybrids, else those of a row."""
    import numpy as np

    if arch in hybrids.HYBRIDS:
        return -np.linspace(0.05, 1.0, shape[0], dtype=np.float32).reshape(shape)
    return np.tile(-np.arange(1, shape[1] + 1, dtype=np.float32), (shape[0], 1))


def _output_weights(weights: NDArray[np.float32], vocab: TinyVocab) -> NDArray[np.float32]:
    """Make words likely, lone bytes that are no text unlikely, and special tokens very rare."""
    import numpy as np

    n_special = len(SPECIAL_TOKENS)
    scale = np.full(len(vocab.tokens), _OUTPUT_GAIN, np.float32)
    scale[128:256] *= 0.5
    scale[:32] *= 0.5
    scale[-n_special:] *= 0.1
    weights *= (scale / np.sqrt(np.float32(weights.shape[1])))[:, None]
    return weights
