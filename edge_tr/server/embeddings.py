"""Embeddings as OpenAI's API tells them."""

from __future__ import annotations

import base64
import math

import numpy as np


def encode(vector: list[float], encoding_format: str) -> list[float] | str:
    """A vector as numbers or as base64 of float32."""
    if encoding_format == "base64":
        return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
    return [number if math.isfinite(number) else 0.0 for number in vector]
