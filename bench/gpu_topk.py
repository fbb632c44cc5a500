"""llama.cpp's own top-k, computed where the logits are, beside ours on the host."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from bench.gpu_meter import ROUNDS, WARM, StepMeter
from edge_tr.closing import Closing
from edge_tr.errors import DecodeError
from edge_tr.llama.library import lib, recent_errors
from edge_tr.llama.target import LlamaTarget
from edge_tr.target import Batch, Float32, Int32


class BackendTopK(Closing):
    """A top-k sampler of llama.cpp for every lane of a context: a row is handled by that of its
    node's first lane, and raw logits stay where they are.

    Parameters
    ----------
    target : its context; nothing else may set samplers.
    k : candidates of each row.

    Raises
    ------
    DecodeError : the back end cannot do it.
    """

    def __init__(self, target: LlamaTarget, k: int = 8) -> None:
        self.target, self.k = target, k
        self._chains: list[Any] = []
        for lane in range(target.n_lanes):
            chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
            self._chains.append(chain)
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(k))
            if not lib.llama_set_sampler(target.pointer, lane, chain):
                self.close()
                raise DecodeError(f"the back end cannot do top-k: {recent_errors()}")

    def __call__(self, batch: Batch) -> tuple[Int32, Float32]:
        """Best tokens of each row of the step just decoded, and their logits, best first.

        Returns
        -------
        ids, values : int32 and float32[n_rows, k].

        Raises
        ------
        DecodeError : llama.cpp did not sample the rows there.
        """
        rows = np.flatnonzero(batch.logits[: batch.n])
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
    host = {width: _step(meter, width, None) for width in widths}
    with BackendTopK(meter.target, meter.topk.k) as topk:
        back_end = {width: _step(meter, width, topk) for width in widths}
    same = [
        bool((ours == theirs).all())
        for width in widths
        for ours, theirs in zip(host[width][1], back_end[width][1], strict=True)
    ]
    return {
        "widths": list(widths),
        "host_ms": [round(host[width][0], 4) for width in widths],
        "backend_ms": [round(back_end[width][0], 4) for width in widths],
        "same_rows": float(np.mean(same)),
    }


def _step(meter: StepMeter, width: int, topk: BackendTopK | None) -> tuple[float, Int32]:
    """Median milliseconds of decode and top-k, and the tokens that were found."""
    taken = []
    n_past = meter.lanes.n_past
    for _ in range(WARM + ROUNDS):
        meter.grow(width)
        meter.plant()
        started = perf_counter()
        logits = meter.target.decode(meter.batch)
        ids, _ = meter.topk(logits) if topk is None else topk(meter.batch)
        taken.append(perf_counter() - started)
        meter.lanes.rewind(n_past)
    return 1e3 * float(np.median(taken[WARM:])), ids.copy()
