"""llama.cpp's sampler chain on a row of our own."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from edge_tr.errors import DecodeError
from edge_tr.llama.library import lib
from edge_tr.target import Float32

_ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)], align=True)


def apply_chain(chain: Any, row: Float32) -> int:
    """The token that a chain chooses from a row of logits, float32[n_vocab]; it takes note of it,
    as ``llama_sampler_sample`` does with a row of the context. Tokens at -inf are left out.

    Raises
    ------
    DecodeError : no token is left.
    """
    ids = np.flatnonzero(row > -np.inf)
    if len(ids) == 0:
        raise DecodeError("no token is left to choose from")
    entries = np.zeros(len(ids), dtype=_ENTRY)
    entries["id"], entries["logit"] = ids, row[ids]
    data = entries.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
    candidates = lib.llama_token_data_array(data, len(ids), -1, False)
    lib.llama_sampler_apply(chain, ctypes.byref(candidates))
    if not 0 <= candidates.selected < candidates.size:
        raise DecodeError("llama.cpp's samplers chose no token")
    token = int(candidates.data[candidates.selected].id)
    lib.llama_sampler_accept(chain, token)
    return token
