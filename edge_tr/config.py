"""What a user can set, checked when it is set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge_tr.drafts.template import MAX_K, TreeTemplate
from edge_tr.errors import ConfigError


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
    exact: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MAX_K:
            raise ConfigError(f"k {self.k} is not allowed; it must be 1 to {MAX_K}")
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
    seed : seed of the draw; None takes a fresh one.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
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
            ("seed", 0, (1 << 32) - 2),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} {value} is not allowed; it must be {low} to {high}")

    @property
    def greedy(self) -> bool:
        """Whether the token is simply the most probable one."""
        return self.temperature == 0 and (
            self.repeat_penalty == 1 and self.frequency_penalty == self.presence_penalty == 0
        )


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} {value!r} is not allowed; it must be one of {allowed}")
