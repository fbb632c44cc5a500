"""How probable a candidate is by what the sources say of it, before anything was counted.

The log-odds of a candidate are a sum of one number for its match class and one for its code in
each row. The numbers were fitted with ``python -m bench.fit_prior`` on SmolLM2-135M Q4_0 and
questions that no benchmark measures, those of level 3 and of contradicted candidates later, with
``--classes``; counting corrects them for every other model and text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_tr.kernels.candidates import N_CELLS

_WEIGHT = 8.0
"""Trials that the prior counts for."""

_BASE = 0.4
_MATCH_CLASS = (
    *(-2.3,),
    *(-1.4, 0.0, 0.5, 0.6, 0.6),
    *(-0.4, 0.5, 0.9, 1.1, 1.1),
    *(0.4, 1.7, 1.7, 2.2, 1.8),
    *(0.4, 1.7, 2.2, 2.9, 3.3),
    *(-2.8, -2.8),
    *(-2.9, -3.8, -5.0),
    *(-1.8, -0.4, 0.1, 0.3, 0.5),
    *(-0.8, 0.1, 0.5, 0.8, 1.0),
    *(0.0, 1.3, 1.4, 1.9, 1.8),
    *(0.0, 1.4, 1.9, 2.6, 3.0),
    *(-2.9, -3.5, -4.5),
)
_TWO_TOKEN_CODE = (0.0, -1.2, -1.1, -0.5, -0.3, 0.2, 0.3, 1.2, 1.2, 1.9)
_ONE_TOKEN_CODE = (0.0, -0.5, -1.3, -0.8, -0.4, 0.4, 0.9, 1.2, 1.4, 2.0)

LOG_ODDS = (_BASE, _MATCH_CLASS, _TWO_TOKEN_CODE, _ONE_TOKEN_CODE)
"""Base, match class, two-token code and one-token code."""


def prior() -> np.ndarray[Any, np.dtype[np.float64]]:
    """float64[2, N_CELLS]; hits and trials to start from."""
    log_odds = (
        _BASE
        + np.array(_MATCH_CLASS)[:, None, None]
        + np.array(_TWO_TOKEN_CODE)[None, :, None]
        + np.array(_ONE_TOKEN_CODE)[None, None, :]
    ).ravel()
    return np.stack((_WEIGHT / (1 + np.exp(-log_odds)), np.full(N_CELLS, _WEIGHT)))
