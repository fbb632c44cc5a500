"""Shape models: the exact shapes of well-known models with random weights, to measure speed.

They hold no vocabulary and write no text. Weights are drawn as quantised blocks, so an 8B model
is written as fast as the disk takes it and needs a few dozen MB of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from edge_tr.errors import ConfigError
from edge_tr.models import hybrids
from edge_tr.models.disk import require_room
from edge_tr.models.hybrids import Hybrid

if TYPE_CHECKING:
    import gguf
    import numpy as np
    from numpy.typing import NDArray

_CHUNK_BYTES = 16 << 20
_UNQUANTISED = ("norm", "conv1d", "shortconv.conv", "ssm_a", "ssm_d")


@dataclass(frozen=True)
class Shape:
    """Hyperparameters of a model whose shape is copied; those of a hybrid's layers apart."""

    model: str
    architecture: str
    n_layers: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    rope_base: float
    tied: bool
    hybrid: Hybrid | None = None


SHAPES = {
    "0.5b": Shape("Qwen2.5-0.5B", "qwen2", 24, 896, 14, 2, 4864, 151936, 32768, 1e6, tied=True),
    "1b": Shape("Llama-3.2-1B", "llama", 16, 2048, 32, 8, 8192, 128256, 131072, 5e5, tied=True),
    "3b": Shape("Llama-3.2-3B", "llama", 28, 3072, 24, 8, 8192, 128256, 131072, 5e5, tied=True),
    "8b": Shape("Llama-3.1-8B", "llama", 32, 4096, 32, 8, 14336, 128256, 131072, 5e5, tied=False),
}
_LFM2 = Hybrid("lfm2", "rrarrararararar" + "r", 2048, 32, 8, 64, 8192)
_QWEN35 = Hybrid(
    *("qwen35", "rrra" * 8, 2560, 16, 4, 256, 9216), d_state=128, n_group=16, n_ssm_head=32
)
SHAPES |= {
    name: Shape(
        *(model, of.architecture, len(of.kinds), of.n_embd, of.n_head, of.n_head_kv, of.n_ff),
        *(n_vocab, n_ctx_train, rope_base),
        tied=True,
        hybrid=of,
    )
    for name, model, of, n_vocab, n_ctx_train, rope_base in (
        ("lfm2_1.2b", "LFM2-1.2B", _LFM2, 65536, 128000, 1e6),
        ("qwen3.5_4b", "Qwen3.5-4B", _QWEN35, 248320, 262144, 1e7),
    )
}
QUANTISATIONS = {"q4_0": "MOSTLY_Q4_0", "q4_k": "MOSTLY_Q4_K_S", "q8_0": "MOSTLY_Q8_0"}
QUANTISATIONS["f16"] = "MOSTLY_F16"


@dataclass(frozen=True)
class _Block:
    """Layout of one quantised block.

    `scale_at` is the byte of its float16 scale. With a scale of 1 and all other bytes random the
    weights have the standard deviation `spread`. `minimum` is the scale of Q4_K's minimums, in
    scales, that brings the mean to zero; the float16 behind the scale holds it.
    """

    n_weights: int
    n_bytes: int
    scale_at: int = 0
    spread: float = 1.0
    minimum: float = 0.0


_BLOCKS = {
    "F32": _Block(1, 4),
    "F16": _Block(1, 2),
    "Q4_0": _Block(32, 18, spread=4.64),
    "Q5_0": _Block(32, 22, spread=9.25),
    "Q8_0": _Block(32, 34, spread=73.9),
    "Q4_K": _Block(256, 144, spread=260.0, minimum=7.5),
    "Q6_K": _Block(256, 210, scale_at=208, spread=1366.0),
}
_FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""What llama-quantize takes where rows are no multiple of 256."""


def size_bytes(size: str, quantisation: str) -> int:
    """Bytes of weights in a shape model; the file is a few KB larger.

    Raises
    ------
    ConfigError
        An unknown size or quantisation.
    """
    return sum(_n_bytes(shape, kind) for _, shape, kind in _plan(size, quantisation))


def write_shape(path: Path, size: str, quantisation: str, seed: int = 0) -> Path:
    """Write a model of the given size with random weights.

    Parameters
    ----------
    path : Path
        Is overwritten.
    size : str
        A key of `SHAPES`.
    quantisation : str
        q4_0, q4_k, q8_0 or f16; the output matrix of q4_0 and q4_k is Q6_K, as llama-quantize
        makes it.
    seed : int
        Equal seeds give equal files.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ConfigError
        An unknown size or quantisation.
    ModelFileError
        The disk has not enough room.
    """
    import gguf
    import numpy as np

    plan = _plan(size, quantisation)
    require_room(path.parent, size_bytes(size, quantisation), f"{size} in {quantisation}")
    writer = gguf.GGUFWriter(path, SHAPES[size].architecture)
    _add_hyperparameters(writer, SHAPES[size])
    writer.add_file_type(gguf.LlamaFileType[QUANTISATIONS[quantisation]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for name, shape, kind in plan:
        raw = gguf.GGMLQuantizationType[kind]
        # float32 only keeps the shape from being read as one of bytes; `raw` is what counts
        dtype = np.dtype(np.float32)
        writer.add_tensor_info(name, shape, dtype, _n_bytes(shape, kind), raw)
    rng = np.random.default_rng(seed)
    with closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        (out,) = writer.fout
        for name, shape, kind in plan:
            writer.write_padding(out, out.tell())
            for chunk in _tensor(rng, name, shape, kind):
                chunk.tofile(out)
        writer.write_padding(out, out.tell())
    return path


def _plan(size: str, quantisation: str) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape (rows last) and type of each tensor."""
    if size not in SHAPES:
        raise ConfigError(f"size is {size!r}; allowed are {', '.join(SHAPES)}")
    if quantisation not in QUANTISATIONS:
        raise ConfigError(
            f"quantisation is {quantisation!r}; allowed are {', '.join(QUANTISATIONS)}"
        )
    shape = SHAPES[size]
    bulk = quantisation.upper()
    output = "Q6_K" if bulk.startswith("Q4") else bulk
    n_kv = shape.n_embd // shape.n_head * shape.n_head_kv
    layer = {
        "attn_q": (shape.n_embd, shape.n_embd),
        "attn_k": (n_kv, shape.n_embd),
        "attn_v": (n_kv, shape.n_embd),
        "attn_output": (shape.n_embd, shape.n_embd),
        "ffn_gate": (shape.n_ff, shape.n_embd),
        "ffn_up": (shape.n_ff, shape.n_embd),
        "ffn_down": (shape.n_embd, shape.n_ff),
    }
    plan: list[tuple[str, tuple[int, ...], str]] = []

    def add(name: str, extents: tuple[int, ...], kind: str) -> None:
        fits = extents[-1] % _BLOCKS[kind].n_weights == 0
        plan.append((name, extents, kind if fits else _FALLBACKS[kind]))

    add("token_embd.weight", (shape.n_vocab, shape.n_embd), output if shape.tied else bulk)
    if not shape.tied:
        add("output.weight", (shape.n_vocab, shape.n_embd), output)
    if shape.hybrid is not None:
        for name, extents in hybrids.tensors(shape.hybrid).items():
            is_small = len(extents) == 1 or any(part in name for part in _UNQUANTISED)
            add(name, extents, "F32" if is_small else bulk)
        return plan
    add("output_norm.weight", (shape.n_embd,), "F32")
    for i in range(shape.n_layers):
        for name, extents in layer.items():
            add(f"blk.{i}.{name}.weight", extents, bulk)
            if shape.architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                add(f"blk.{i}.{name}.bias", extents[:1], "F32")
        add(f"blk.{i}.attn_norm.weight", (shape.n_embd,), "F32")
        add(f"blk.{i}.ffn_norm.weight", (shape.n_embd,), "F32")
    return plan


def _n_bytes(shape: tuple[int, ...], kind: str) -> int:
    block = _BLOCKS[kind]
    return prod(shape) // block.n_weights * block.n_bytes


def _add_hyperparameters(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name(f"the shape of {shape.model}, random weights")
    writer.add_context_length(shape.n_ctx_train)
    writer.add_embedding_length(shape.n_embd)
    if shape.hybrid is not None:
        hybrids.add_hyperparameters(writer, shape.hybrid)
    else:
        writer.add_block_count(shape.n_layers)
        writer.add_feed_forward_length(shape.n_ff)
        writer.add_head_count(shape.n_head)
        writer.add_head_count_kv(shape.n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_tokenizer_model("no_vocab")


def _tensor(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], kind: str
) -> Iterator[NDArray[np.generic]]:
    """Bytes of one tensor in chunks: norms are ones, biases zeros, matrices random.

    A spread of 1 / sqrt(row length) keeps activations near one.
    """
    import numpy as np

    if kind == "F32":
        if name.endswith("ssm_a"):  # a state that fades
            yield np.full(shape, -0.1, np.float32)
        elif "conv" in name and len(shape) == 2:
            yield rng.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)
        else:
            yield np.full(shape, name.endswith(("norm.weight", "ssm_d")), np.float32)
        return
    block, spread = _BLOCKS[kind], shape[-1] ** -0.5
    left = prod(shape) // block.n_weights
    while left:
        n_blocks = min(left, _CHUNK_BYTES // block.n_bytes)
        left -= n_blocks
        words = rng.integers(0, 1 << 64, -(-n_blocks * block.n_bytes // 8), np.uint64)
        raw = words.view(np.uint8)[: n_blocks * block.n_bytes]
        if kind == "F16":
            yield _as_float16(raw.view(np.uint16), spread).view(np.uint8)
            continue
        yield _with_scales(raw.reshape(n_blocks, block.n_bytes), block, spread)


def _with_scales(blocks: NDArray[np.uint8], block: _Block, spread: float) -> NDArray[np.uint8]:
    """Set the scales of random blocks; in place. A random sign keeps the mean at zero."""
    import numpy as np

    scale = np.float16(spread / block.spread)
    at = block.scale_at
    signs = blocks[:, at + 1] & 0x80
    blocks[:, at : at + 2] = np.array([scale]).view(np.uint8)
    if block.minimum:
        blocks[:, at + 2 : at + 4] = np.array([scale * np.float16(block.minimum)]).view(np.uint8)
    else:
        blocks[:, at + 1] |= signs
    return blocks


def _as_float16(bits: NDArray[np.uint16], spread: float) -> NDArray[np.uint16]:
    """Random bits as float16 of one exponent, either sign; in place.

    The magnitudes are even between 2**e and 2**(e + 1), a root mean square of 1.53 * 2**e.
    """
    import numpy as np

    exponent = round(np.log2(spread / 1.53))
    bits &= np.uint16(0x83FF)
    bits |= np.uint16((exponent + 15) << 10)
    return bits
