"""Know what a GGUF model is before llama.cpp loads it: whole or not, and whether it can draft."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge_tr.errors import ModelFileError, ModelUnsupportedError
from edge_tr.gguf_file.header import Header, integer, read_header
from edge_tr.gguf_file.sizes import REWINDABLE, cache_values, head_sizes, state_values
from edge_tr.gguf_file.values import check_values

Kind = Literal["draftable", "plain_only", "unsupported"]

_RULES: tuple[tuple[Kind, str, str], ...] = (
    (  # llm_arch_is_recurrent
        "plain_only",
        "is recurrent, and its state cannot hold a draft tree",
        "mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7",
    ),
    (  # llm_arch_is_hybrid
        "plain_only",
        "is a hybrid, and the state of its recurrent layers cannot hold a draft tree",
        "jamba falcon-h1 plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next "
        "kimi-linear bailingmoe3 kimi-k3 glm5-next qwen35 qwen35moe qwen4exp deepseek4 minimax-01",
    ),
    (  # llama_model::create_memory: a cache with an indexer that picks cells
        "plain_only",
        "has sparse attention, with which a draft tree is not known to be exact",
        "minimax-m3 glm-dsa deepseek32 hy_v4 dots3note",
    ),
    (  # llm_arch_is_diffusion
        "unsupported",
        "is a diffusion model and does not write from left to right",
        "dream llada llada-moe rnd1",
    ),
    (  # llama_model::create_memory: no cache at all, and their like
        "unsupported",
        "is an encoder: it makes embeddings and writes no text",
        "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
        "gemma-embedding llama-embed t5encoder",
    ),
    ("unsupported", "is an encoder-decoder, which edge_tr does not run", "t5"),
    ("unsupported", "is the vision part of a model and writes no text", "clip"),
    ("unsupported", "is an audio model and writes no text", "wavtokenizer-dec pockettts qwen3tts"),
    ("unsupported", "is the draft head of another model", "eagle3 dflash gemma4-assistant"),
)
KINDS: dict[str, tuple[Kind, str]] = {
    name: (kind, what) for kind, what, names in _RULES for name in names.split()
}
"""Architectures of llama.cpp 0.3.36 that are not draftable, and what each is."""


@dataclass(frozen=True)
class GGUFInfo:
    """What the metadata of a model says.

    Attributes
    ----------
    path : Path
        The file to load; the first part of a split model.
    architecture : str
        ``general.architecture``.
    n_vocab, n_ctx_train, n_layers : int
        0 where the metadata does not say.
    sliding_window : int
        Tokens that the windowed layers see, 0 for none.
    file_type : str
        As llama.cpp names it, for instance Q4_0; empty where unknown.
    n_split : int
        Number of files, 1 for an unsplit model.
    size_bytes : int
        Of all files.
    kind : str
        draftable, plain_only (runs, but without drafting) or unsupported (writes no text from
        left to right).
    reason : str
        One line for the user, empty for draftable.
    n_embd, n_ff, n_heads : int
        Width, width inside a layer, attention heads; 0 where the metadata does not say.
    n_cache_values : int
        Numbers that the KV cache holds for one token, at most; 0 where that is not known.
    n_state_values : int
        Numbers in the recurrent state; 0 where there is none, or its size is not known.
    can_keep_snapshots : bool
        Whether llama.cpp can keep snapshots of that state.
    key_size, value_size : int
        Dimensions of a key and of a value of one head; 0 where heads share compressed ones.
    """

    path: Path
    architecture: str
    n_vocab: int
    n_ctx_train: int
    n_layers: int
    sliding_window: int
    file_type: str
    n_split: int
    size_bytes: int
    kind: Kind
    reason: str
    n_embd: int = 0
    n_ff: int = 0
    n_heads: int = 0
    n_cache_values: int = 0
    n_state_values: int = 0
    can_keep_snapshots: bool = False
    key_size: int = 0
    value_size: int = 0

    def require_text(self) -> GGUFInfo:
        """Return itself.

        Raises
        ------
        ModelUnsupportedError
            The model cannot write text from left to right.
        """
        if self.kind == "unsupported":
            raise ModelUnsupportedError(f"{self.path}: {self.reason}")
        return self


def inspect(path: str | os.PathLike[str]) -> GGUFInfo:
    """Read what is needed of a GGUF before loading it, all parts of a split model included.

    Raises
    ------
    ModelFileError
        Missing, a directory, not GGUF, of another version, damaged, cut short, not a model, or
        a part of a split model other than the first, or with a missing part.
    """
    first = Path(path)
    header = read_header(first)
    n_split = max(integer(header, "split.count"), 1)
    headers = [header, *_other_parts(first, header, n_split)]
    architecture = header.scalars.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelFileError(f"{first} does not say its architecture; it is not a whole model")
    _check_model(first, headers)
    check_values(first, architecture, header.scalars)
    causal = bool(header.scalars.get(f"{architecture}.attention.causal", True))
    kind, reason = classify(architecture, causal=causal)
    n_state = state_values(headers, architecture)
    key_size, value_size = head_sizes(header, architecture)
    return GGUFInfo(
        path=first,
        architecture=architecture,
        n_vocab=header.array_lengths.get("tokenizer.ggml.tokens")
        or integer(header, f"{architecture}.vocab_size"),
        n_ctx_train=integer(header, f"{architecture}.context_length"),
        n_layers=integer(header, f"{architecture}.block_count"),
        sliding_window=integer(header, f"{architecture}.attention.sliding_window"),
        file_type=_file_type(header),
        n_split=n_split,
        size_bytes=sum(part.size_bytes for part in headers),
        kind=kind,
        reason=reason,
        n_embd=integer(header, f"{architecture}.embedding_length"),
        n_ff=integer(header, f"{architecture}.feed_forward_length"),
        n_heads=integer(header, f"{architecture}.attention.head_count"),
        n_cache_values=cache_values(headers, architecture) if kind == "draftable" or n_state else 0,
        n_state_values=n_state,
        can_keep_snapshots=architecture in REWINDABLE,
        key_size=key_size,
        value_size=value_size,
    )


def _file_type(header: Header) -> str:
    from gguf.constants import LlamaFileType

    try:
        name: str = LlamaFileType(header.scalars.get("general.file_type")).name
    except ValueError:
        return ""
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def _other_parts(first: Path, header: Header, n_split: int) -> list[Header]:
    """Headers of the parts after the first; llama.cpp finds them by name, so this does too."""
    if n_split == 1:
        return []
    number = integer(header, "split.no")
    if not first.name.endswith(_suffix(number, n_split)):
        raise ModelFileError(
            f"{first} is part {number + 1} of {n_split} of a split model and must be named "
            f"...{_suffix(number, n_split)}, since llama.cpp finds the other parts by name"
        )
    prefix = first.name.removesuffix(_suffix(number, n_split))
    if number != 0:
        raise ModelFileError(
            f"{first} is part {number + 1} of {n_split} of a split model; give the first part, "
            f"{first.with_name(prefix + _suffix(0, n_split))}"
        )
    parts = []
    for i in range(1, n_split):
        path = first.with_name(prefix + _suffix(i, n_split))
        if not path.exists():
            raise ModelFileError(f"{first} is split into {n_split} files and {path} is missing")
        part = read_header(path)
        if integer(part, "split.no") != i or integer(part, "split.count") != n_split:
            raise ModelFileError(f"{path} is not part {i + 1} of {n_split}, as its name says")
        parts.append(part)
    return parts


def _suffix(number: int, n_split: int) -> str:
    return f"-{number + 1:05d}-of-{n_split:05d}.gguf"


def _check_model(first: Path, headers: list[Header]) -> None:
    scalars = headers[0].scalars
    if scalars.get("general.type", "model") == "adapter":
        raise ModelFileError(f"{first} is a LoRA adapter; give the model it belongs to")
    n_tensors = sum(header.n_tensors for header in headers)
    if n_tensors == 0:
        raise ModelFileError(f"{first} holds no weights, only a vocabulary")
    promised = scalars.get("split.tensors.count", n_tensors)
    if len(headers) > 1 and promised != n_tensors:
        raise ModelFileError(
            f"the parts of {first} hold {n_tensors} tensors and the first promises {promised}; "
            "they are not of one model"
        )


def classify(architecture: str, *, causal: bool) -> tuple[Kind, str]:
    """Kind of an architecture and the reason, see ``GGUFInfo``.

    Parameters
    ----------
    causal : bool
        Whether its attention looks back only.
    """
    kind, what = KINDS.get(architecture, ("draftable", ""))
    if kind == "draftable" and not causal:
        kind, what = KINDS["bert"]
    if kind == "draftable":
        return kind, ""
    prefix = "drafting is off: " if kind == "plain_only" else ""
    return kind, f"{prefix}{architecture} {what}"
