"""llama.cpp's own top-k, computed where the logits are, beside ours on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.gpu_meter import StepMeter, medians
from edge_tr.errors import DecodeError
from edge_tr.files.closing import Closing
from edge_tr.llama.library import lib, recent_errors
from edge_tr.llama.target import LlamaTarget
from edge_tr.target import Batch, Float32, Int32


class BackendTopK(Closing):
    """A top-k sampler of llama.cpp for every lane of a context: a row is handled by that of its
    node's first lane, and raw logits stay where they are.

    Parameters
    ----------
    target : its context; nothing else may set samplers.
    batch : what its steps are decoded from.
    k : candidates of each row.

    Raises
    ------
    DecodeError : the back end cannot do it.
    """

    def __init__(self, target: LlamaTarget, batch: Batch, k: int = 8) -> None:
        self.target, self.batch, self.k = target, batch, k
        self._chains: list[Any] = []
        for lane in range(target.n_lanes):
            chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
            self._chains.append(chain)
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(k))
            if not lib.llama_set_sampler(target.pointer, lane, chain):
                self.close()
                raise DecodeError(f"the back end cannot do top-k: {recent_errors()}")

    def __call__(self, logits: Float32) -> tuple[Int32, Float32]:
        """Best tokens of each row of the step just decoded, and their logits, best first; the
        raw ``logits`` were not brought back and are not looked at.

        Returns
        -------
        ids, values : int32 and float32[n_rows, k].

        Raises
        ------
        DecodeError : llama.cpp did not sample the rows there.
        """
        rows = np.flatnonzero(self.batch.logits[: self.batch.n])
        first = int(rows[0])
        found = lib.llama_get_sampled_candidates_ith(self.target.pointer, first)
        logits = lib.llama_get_sampled_logits_ith(self.target.pointer, first)
        if not found or not logits:
            raise DecodeError("the back end sampled nothing")
        shape = (len(rows), self.target.n_vocab)  # rows of k lie as far apart as whole ones
        ids = np.ctypeslib.as_array(found, shape)[:, : self.k]
        values = np.ctypeslib.as_array(logits, shape)[:, : self.k]
        order = np.argsort(-values, axis=1, kind="stable")
        return np.take_along_axis(ids, order, 1), np.take_along_axis(values, order, 1)

    def close(self) -> None:
        """Take the samplers away and free them."""
        for lane, chain in enumerate(self._chains):
            if self.target.pointer:
                lib.llama_set_sampler(self.target.pointer, lane, None)
            lib.llama_sampler_free(chain)
        self._chains = []


def compare_topk(meter: StepMeter, widths: Sequence[int]) -> dict[str, Any]:
    """Decode and top-k of steps of each width, in milliseconds: with ours on the host, and with
    llama.cpp's on the back end; and the share of rows in which both find the same tokens."""
    host_ms, host_ids = _measure(meter, widths)
    ours = meter.topk
    with BackendTopK(meter.target, meter.batch) as meter.topk:
        backend_ms, backend_ids = _measure(meter, widths)
    meter.topk = ours
    same = [(a == b).all(axis=1) for a, b in zip(host_ids, backend_ids, strict=True)]
    return {
        "widths": list(widths),
        "host_ms": host_ms,
        "backend_ms": backend_ms,
        "same_rows": float(np.concatenate(same).mean()),
    }


def _measure(meter: StepMeter, widths: Sequence[int]) -> tuple[list[float], list[Int32]]:
    """Milliseconds of decode and top-k by width, and the tokens that were found."""
    parts = [medians(meter.step, width) for width in widths]
    found = [meter.topk(meter.rows(width))[0].copy() for width in widths]
    return [round(part["decode"] + part["topk"], 4) for part in parts], found
