"""What the decode loop asks of a target model, so that a fake one can stand in."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Int32 = np.ndarray[Any, np.dtype[np.int32]]
Int64 = np.ndarray[Any, np.dtype[np.int64]]
Float32 = np.ndarray[Any, np.dtype[np.float32]]


class Batch:
    """One llama.cpp batch as arrays that are written in place.

    Attributes
    ----------
    n : number of tokens now in the batch.
    token, pos, n_lanes : int32[capacity].
    lanes : int64[capacity]; address of each token's first lane id inside ``lane_ids``.
    logits : int8[capacity]; 1 where the target must return a row.
    lane_ids : int32[n_lanes], the numbers 0, 1, 2, ...; kept alive as long as the batch.
    """

    def __init__(self, capacity: int, n_lanes: int) -> None:
        self.n = 0
        self.token: Int32 = np.zeros(capacity, dtype=np.int32)
        self.pos: Int32 = np.zeros(capacity, dtype=np.int32)
        self.n_lanes: Int32 = np.ones(capacity, dtype=np.int32)
        self.logits = np.zeros(capacity, dtype=np.int8)
        self.lane_ids: Int32 = np.arange(n_lanes, dtype=np.int32)
        self.lane_ids_address = int(self.lane_ids.ctypes.data)
        self.lanes: Int64 = np.full(capacity, self.lane_ids_address, dtype=np.int64)

    def lanes_of(self, i: int) -> range:
        """The lanes of token ``i``."""
        first = (int(self.lanes[i]) - self.lane_ids_address) // 4
        return range(first, first + int(self.n_lanes[i]))

    def set_one(self, token: int, n_past: int) -> None:
        """Fill with one token on lane 0 that asks for logits."""
        self.n = 1
        self.token[0] = token
        self.pos[0] = n_past
        self.n_lanes[0] = 1
        self.lanes[0] = self.lane_ids_address
        self.logits[0] = 1

    def set_chain(self, tokens: Int32, n_past: int, *, want_rows: int) -> None:
        """Fill with a chain on lane 0; the last ``want_rows`` tokens ask for logits."""
        n = len(tokens)
        self.n = n
        self.token[:n] = tokens
        self.pos[:n] = np.arange(n_past, n_past + n, dtype=np.int32)
        self.n_lanes[:n] = 1
        self.lanes[:n] = self.lane_ids_address
        self.logits[:n] = 0
        self.logits[n - want_rows : n] = 1


class TargetModel(Protocol):
    """A model with a KV cache of cells, each with one position and any number of lanes.

    Token i of a batch attends to the cells that carry its first lane at positions up to its
    own. Lanes that share a token in a batch must end at the same position before it.
    """

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_ctx(self) -> int:
        """Number of cells."""

    @property
    def n_batch(self) -> int:
        """Most tokens of one batch."""

    @property
    def n_lanes(self) -> int:
        """Number of lanes; 1 means that only chains can be verified."""

    @property
    def can_rewind(self) -> bool:
        """Whether any last cells of any lane can be dropped. A recurrent state is only dropped
        whole, by ``seq_rm(-1, 0, -1)``, but for ``n_rewind``."""

    @property
    def n_rewind(self) -> int:
        """How many of the last tokens lane 0 can give up, by ``seq_rm(0, n, -1)``: tokens of the
        batch decoded last but for its first one, and once until the next batch. 0 = nothing can
        be drafted; where ``can_rewind`` it says nothing."""

    def decode(self, batch: Batch) -> Float32:
        """Run the batch; float32[n_rows, n_vocab], valid until the next call, not written.

        Rows stand in batch order, one for each token that asked for logits.

        Raises
        ------
        ContextFullError : no free cell; nothing has changed.
        CancelledError, DecodeError : cells of the batch may remain; the caller removes them.
        """

    def seq_rm(self, lane: int, first: int, last: int) -> None:
        """Take cells at positions ``first <= pos < last`` off a lane; lane -1 = off all lanes,
        last -1 = to the end. A cell without lanes is free."""

    def seq_cp(self, source: int, target: int, first: int, last: int) -> None:
        """Put the cells of one lane at positions ``first <= pos < last`` on another lane too."""

    def interrupt(self, on: bool) -> None:
        """Make ``decode`` raise CancelledError while on, a running call as soon as it can."""


def widest_step(target: TargetModel) -> int:
    """Most tokens of a decode step whose rejected ones the target can take back."""
    return target.n_batch if target.can_rewind else min(target.n_batch, target.n_rewind + 1)
