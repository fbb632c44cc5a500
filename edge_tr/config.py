"""What a user can set, checked when it is set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edge_tr.constrain.constraint import Rules
from edge_tr.drafts.template import MAX_K, MAX_LANES, TreeTemplate
from edge_tr.errors import ConfigError

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
"""Types of the KV cache."""

MAX_SNAPSHOTS = 32
"""Most snapshots of a recurrent state."""

N_SNAPSHOTS = 7
"""A step of as many tokens and one more is what narrow kernels still take in one go."""

_FEW_BYTES = 64 << 20
_MODEL_SHARE = 0.25
"""Snapshots may take this many bytes, or this share of the model's."""

MAX_HISTORY = 1 << 28
"""Most tokens of a history."""


@dataclass(frozen=True)
class ContextConfig:
    """How a context is made; the defaults are those of ``llama_cpp.Llama``, but for n_ctx,
    swa_full and flash_attn.

    Attributes
    ----------
    n_ctx : cells of the KV cache; llama.cpp rounds up to a multiple of 256. 0 = what the model
        was trained with.
    n_batch, n_ubatch : most tokens of one call, and of one graph.
    n_threads, n_threads_batch : CPU threads for one token and for more. 0 = all cores.
    flash_attn : flash attention; a quantised V cache needs it. None = where it is known to be
        faster and equal at every width: all of it in edge_tr's own kernels, on the CPU.
    type_k, type_v : type of the KV cache, one of ``CACHE_TYPES``.
    offload_kqv : keep the KV cache on the GPU.
    swa_full : full-size cache for sliding-window layers; drafting needs it.
    n_lanes : lanes for draft trees, one for each leaf; 1 = chains only.
    n_snapshots : snapshots of a recurrent state, where llama.cpp can make them: it then gives up
        as many rejected tokens, and hybrids draft chains of at most that many. None = as many as
        pay here, measured where the drafter drafts what pays, else none.

    Raises
    ------
    ConfigError : a value outside its range, or a combination that llama.cpp refuses.
    """

    n_ctx: int = 4096
    n_batch: int = 512
    n_ubatch: int = 512
    n_threads: int = 0
    n_threads_batch: int = 0
    flash_attn: bool | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    offload_kqv: bool = True
    swa_full: bool = True
    n_lanes: int = 64
    n_snapshots: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("n_ctx", 0, 1 << 24),
            ("n_batch", 1, 1 << 20),
            ("n_ubatch", 1, 1 << 20),
            ("n_threads", 0, 1024),
            ("n_threads_batch", 0, 1024),
            ("n_lanes", 1, MAX_LANES),
            ("n_snapshots", 0, MAX_SNAPSHOTS),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(
                    f"{name} {value} is not allowed; it must be {low} to {high}", field=name
                )
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in CACHE_TYPES:
                allowed = ", ".join(CACHE_TYPES)
                raise ConfigError(
                    f"{name} {getattr(self, name)!r} is not one of {allowed}", field=name
                )
        if self.flash_attn is False and self.type_v not in ("f32", "f16", "bf16"):
            raise ConfigError(
                f"type_v {self.type_v!r} needs flash attention; without it the V cache must be "
                "f16, bf16 or f32",
                field="type_v",
            )


def lanes_for(speculative: Literal["auto", "off"] | TreeTemplate) -> int:
    """Lanes of a context in which to draft so: one for each leaf of a forced tree."""
    n_leaves = speculative.n_leaves if isinstance(speculative, TreeTemplate) else 0
    return max(n_leaves, ContextConfig.n_lanes)


@dataclass(frozen=True)
class DraftConfig:
    """How to draft.

    Attributes
    ----------
    speculative : "auto" drafts with the tree that pays on this machine, "off" decodes plainly,
        a ``TreeTemplate`` forces that tree at every step.
    k : candidates of a row of the adjacency matrix, 1 to 16.
    update : "all" writes back every node of a verify step, "accepted" the accepted path only.
    start : "inherited" loads the saved matrix of this tokenizer where there is one, "empty"
        starts without candidates, "random" with random ones (an experiment of the paper).
    harvest : fill rows from the prompt's own logits while it is read.
    matrix_path : file of the matrix; None = the default file of the tokenizer.
    n_history : tokens of earlier prompts and answers that automatic mode keeps in memory, 9 bytes
        each, to look for what a text repeats; 0 = none.
    history_path : file in which they are kept from run to run; None = they end with the process.
    exact : use only batch widths whose logits are bit-equal to one-token decoding here.

    Raises
    ------
    ConfigError : a value outside what is allowed.
    """

    speculative: Literal["auto", "off"] | TreeTemplate = "auto"
    k: int = 8
    update: Literal["all", "accepted"] = "all"
    start: Literal["inherited", "empty", "random"] = "inherited"
    harvest: bool = True
    matrix_path: Path | None = None
    n_history: int = 1 << 20
    history_path: Path | None = None
    exact: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MAX_K:
            raise ConfigError(f"k {self.k} is not allowed; it must be 1 to {MAX_K}", field="k")
        if not 0 <= self.n_history <= MAX_HISTORY:
            raise ConfigError(
                f"n_history {self.n_history} is not allowed; it must be 0 to {MAX_HISTORY}",
                field="n_history",
            )
        if self.history_path is not None and self.n_history == 0:
            raise ConfigError(
                "n_history 0 is not allowed beside a history_path; nothing would be kept in it",
                field="n_history",
            )
        if not isinstance(self.speculative, TreeTemplate):
            _check_choice("speculative", self.speculative, ("auto", "off"))
        _check_choice("update", self.update, ("all", "accepted"))
        _check_choice("start", self.start, ("inherited", "empty", "random"))


@dataclass(frozen=True)
class SamplingConfig:
    """How the next token is chosen; the order and meaning of llama-cpp-python.

    Attributes
    ----------
    temperature : 0 takes the most probable token.
    top_k, top_p, min_p, typical_p : cut-offs, applied in the order top_k, typical_p, top_p,
        min_p; 0 (top_k, min_p) and 1 (top_p, typical_p) switch one off.
    repeat_penalty, frequency_penalty, presence_penalty : penalties over the last 64 tokens.
    mirostat_mode, mirostat_tau, mirostat_eta : 1 or 2 takes Mirostat, of that version, in place of
        the cut-offs.
    grammar : what the text follows: GBNF with a rule named root, or rules of a JSON schema
        (``edge_tr.constrain.schema``); None allows any text.
    logit_bias : what to add to the logits of tokens, by id.
    seed : seed of the draw, of 64 bits (llama.cpp's are of 32, so the halves are mixed); None
        takes a fresh one.

    Raises
    ------
    ConfigError : a value outside what is allowed.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    mirostat_mode: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    grammar: str | Rules | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_k", 0, 1 << 24),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("typical_p", 0.0, 1.0),
            ("repeat_penalty", 1e-3, 100.0),
            ("frequency_penalty", -100.0, 100.0),
            ("presence_penalty", -100.0, 100.0),
            ("mirostat_mode", 0, 2),
            ("mirostat_tau", 0.0, 100.0),
            ("mirostat_eta", 0.0, 1.0),
            ("seed", 0, (1 << 64) - 1),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(
                    f"{name} {value} is not allowed; it must be {low} to {high}", field=name
                )

    @property
    def greedy(self) -> bool:
        """Whether the token is simply the most probable one."""
        return (
            self.temperature == 0
            and self.repeat_penalty == 1
            and self.frequency_penalty == self.presence_penalty == 0
            and self.grammar is None
            and not self.logit_bias
        )


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"{name} {value!r} is not allowed; it must be one of {allowed}", field=name
        )


def affordable_snapshots(bytes_each: int, model_bytes: int) -> int:
    """How many snapshots of a size automatic mode makes at most, for a model of a size."""
    most_bytes = max(_FEW_BYTES, int(_MODEL_SHARE * model_bytes))
    return min(N_SNAPSHOTS, most_bytes // max(1, bytes_each))


def fixed_snapshots(draft: DraftConfig) -> int:
    """Snapshots that a forced tree needs: none unless it is a chain."""
    tree = draft.speculative
    if isinstance(tree, TreeTemplate) and tree.n_leaves == 1:
        return min(tree.n_nodes, MAX_SNAPSHOTS)
    return 0
