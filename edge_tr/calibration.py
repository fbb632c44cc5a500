"""How probable a candidate is by what the sources say of it, before anything was counted."""

from __future__ import annotations

from typing import Any

import numpy as np

from .kernels.candidates import N_CELLS

_WEIGHT = 8.0
"""Trials that the prior counts for."""


def prior() -> np.ndarray[Any, np.dtype[np.float64]]:
    """float64[2, N_CELLS]; hits and trials to start from."""
    of_code = np.array([0.02, 0.01, 0.01, 0.03, 0.06, 0.12, 0.25, 0.4, 0.6, 0.8])
    of_class = np.array([0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.05, 0.1])
    c = of_class[:, None, None]
    two = of_code[None, :, None]
    one = of_code[None, None, :] * 0.6
    p = np.clip(1 - (1 - c) * (1 - two) * (1 - one), 0.005, 0.98).ravel()
    return np.stack((p * _WEIGHT, np.full(N_CELLS, _WEIGHT)))
