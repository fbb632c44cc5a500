"""llama.cpp's sampler chain, as plain decoding uses it."""

from __future__ import annotations

import secrets
import weakref
from typing import Any

from edge_tr.config import SamplingConfig
from edge_tr.llama.library import lib
from edge_tr.llama.target import LlamaTarget
from edge_tr.target import Float32


class LlamaSampler:
    """Draws from a context's own logits, in the order of ``llama_cpp.Llama``.

    Parameters
    ----------
    target : the context whose last batch is drawn from.
    config : see ``SamplingConfig``.

    Attributes
    ----------
    seed : the seed in use.
    """

    def __init__(self, target: LlamaTarget, config: SamplingConfig) -> None:
        self._target = target
        self.seed = secrets.randbelow(1 << 32) if config.seed is None else config.seed
        self._chain: Any = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for sampler in self._samplers(config):
            lib.llama_sampler_chain_add(self._chain, sampler)
        weakref.finalize(self, lib.llama_sampler_free, self._chain)

    def _samplers(self, config: SamplingConfig) -> list[Any]:
        penalties = lib.llama_sampler_init_penalties(
            self._target.n_vocab,
            64,
            config.repeat_penalty,
            config.frequency_penalty,
            config.presence_penalty,
        )
        if config.temperature == 0:
            return [penalties, lib.llama_sampler_init_greedy()]
        return [
            penalties,
            lib.llama_sampler_init_top_k(config.top_k),
            lib.llama_sampler_init_typical(config.typical_p, 1),
            lib.llama_sampler_init_top_p(config.top_p, 1),
            lib.llama_sampler_init_min_p(config.min_p, 1),
            lib.llama_sampler_init_temp(config.temperature),
            lib.llama_sampler_init_dist(self.seed),
        ]

    def sample(self, batch_index: int, logits: Float32) -> int:
        return int(lib.llama_sampler_sample(self._chain, self._target.pointer, batch_index))
