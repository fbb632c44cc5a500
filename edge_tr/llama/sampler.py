"""llama.cpp's sampler chain, as plain decoding uses it."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from edge_tr.config import SamplingConfig
from edge_tr.constrain.constraint import Constraint, Rules
from edge_tr.constrain.gbnf import grammar_rules
from edge_tr.errors import ConfigError
from edge_tr.llama.chain import apply_chain
from edge_tr.llama.library import lib
from edge_tr.llama.target import LlamaTarget
from edge_tr.llama.vocabulary import find_token
from edge_tr.target import Float32

_N_PENALIZED = 64
"""Last tokens that the penalties look at, as in ``llama_cpp.Llama``."""

_MIROSTAT_M = 100
"""Tokens that the first version of Mirostat estimates from, as in ``llama_cpp.Llama``."""


class LlamaSampler:
    """Draws from a context's own logits, in the order of ``llama_cpp.Llama``.

    Parameters
    ----------
    target : the context whose last batch is drawn from.
    config : see ``SamplingConfig``.

    Attributes
    ----------
    seed : the seed in use.
    temperature : see ``SamplingConfig``.

    Raises
    ------
    ConfigError : the grammar cannot be followed, or a biased token is not in the vocabulary.
    """

    def __init__(self, target: LlamaTarget, config: SamplingConfig) -> None:
        self._target = target
        self.temperature = config.temperature
        self.seed = secrets.randbelow((1 << 32) - 1) if config.seed is None else _mixed(config.seed)
        self._constraint: Constraint | None = None
        if config.grammar is not None:
            self._constraint = _constraint(target, config.grammar)
        self._chain: Any = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        weakref.finalize(self, lib.llama_sampler_free, self._chain)
        for sampler in (*self._adjusting(config), *self._choosing(config)):
            lib.llama_sampler_chain_add(self._chain, sampler)

    def _adjusting(self, config: SamplingConfig) -> list[Any]:
        """What changes logits before one is chosen."""
        samplers = []
        if config.logit_bias:
            samplers.append(_bias(config.logit_bias, self._target.n_vocab))
        samplers.append(
            lib.llama_sampler_init_penalties(
                self._target.n_vocab,
                _N_PENALIZED,
                config.repeat_penalty,
                config.frequency_penalty,
                config.presence_penalty,
            )
        )
        return samplers

    def _choosing(self, config: SamplingConfig) -> list[Any]:
        """What cuts off, and draws."""
        if config.temperature == 0:
            return [lib.llama_sampler_init_greedy()]
        tau, eta = config.mirostat_tau, config.mirostat_eta
        if config.mirostat_mode == 1:
            n_vocab = self._target.n_vocab
            return [lib.llama_sampler_init_mirostat(n_vocab, self.seed, tau, eta, _MIROSTAT_M)]
        if config.mirostat_mode == 2:
            return [lib.llama_sampler_init_mirostat_v2(self.seed, tau, eta)]
        return [
            lib.llama_sampler_init_top_k(config.top_k),
            lib.llama_sampler_init_typical(config.typical_p, 1),
            lib.llama_sampler_init_top_p(config.top_p, 1),
            lib.llama_sampler_init_min_p(config.min_p, 1),
            lib.llama_sampler_init_temp(config.temperature),
            lib.llama_sampler_init_dist(self.seed),
        ]

    def sample(self, batch_index: int, logits: Float32) -> int:
        if self._constraint is None:
            return int(lib.llama_sampler_sample(self._chain, self._target.pointer, batch_index))
        row: Float32 = np.where(self._constraint.allowed(), logits, np.float32(-np.inf))
        token = apply_chain(self._chain, row)
        self._constraint.accept(token)
        return token


def _bias(logit_bias: Mapping[int, float], n_vocab: int) -> Any:
    wrong = [token for token in logit_bias if not 0 <= token < n_vocab]
    if wrong:
        raise ConfigError(f"logit_bias names token {wrong[0]}, which the model lacks")
    biases = (lib.llama_logit_bias * len(logit_bias))()
    for entry, (token, bias) in zip(biases, logit_bias.items(), strict=True):
        entry.token, entry.bias = token, bias
    return lib.llama_sampler_init_logit_bias(n_vocab, len(biases), biases)


def _constraint(target: LlamaTarget, grammar: str | Rules) -> Constraint:
    vocab = target.model.vocab
    if isinstance(grammar, str):
        grammar = grammar_rules(grammar, lambda text: find_token(vocab, text))
    return Constraint(target.model.constraint_vocabulary, grammar)


def _mixed(seed: int) -> int:
    """A seed of 64 bits as one of 32; a small one stays, and none is llama.cpp's word for a random
    one."""
    mixed = (seed ^ seed >> 32) & 0xFFFFFFFF
    return mixed if mixed != 0xFFFFFFFF else 0
