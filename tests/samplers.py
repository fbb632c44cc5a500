"""A sampler for targets that are not llama.cpp."""

from __future__ import annotations

import numpy as np

from edge_tr.errors import ConfigError, DecodeError
from edge_tr.target import Float32


class TemperatureSampler:
    """Softmax sampling in NumPy; for tests and for targets that are not llama.cpp.

    Parameters
    ----------
    temperature : above 0.
    seed : seed of the generator; one uniform number is drawn per token.
    """

    def __init__(self, temperature: float, seed: int) -> None:
        if not temperature > 0:
            raise ConfigError(f"temperature {temperature} is not allowed; it must be above 0")
        self.temperature = temperature
        self._rng = np.random.default_rng(seed)

    def sample(self, batch_index: int, logits: Float32) -> int:
        scaled = logits.astype(np.float64) / self.temperature
        highest = scaled.max()
        if not np.isfinite(highest):
            raise DecodeError(f"the model returned a row whose highest logit is {highest}")
        cumulated = np.cumsum(np.exp(scaled - highest))
        return int(np.searchsorted(cumulated, self._rng.random() * cumulated[-1], side="right"))
