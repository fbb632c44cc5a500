"""Loops that go on whatever text ends, and the clock that times all of them alike."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator
from typing import Any, Protocol

import numpy as np

from edge_tr.bench.outcome import Outcome, collect
from edge_tr.config import ContextConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.errors import DecodeError, ModelLoadError
from edge_tr.llama.context_params import context_params
from edge_tr.llama.library import lib
from edge_tr.llama.model import Model
from edge_tr.llama.stock import open_stock
from edge_tr.target import Float32, Int32


class Loop(Protocol):
    """One way of generating the same text, for a method or an arm to time."""

    def stream(self, prompt: Int32, n_tokens: int) -> Iterator[list[int]]:
        """Yield exactly ``n_tokens`` greedy tokens in lists, end of text ignored.

        The prefix that the prompt shares with the sequence before it is reused.
        """

    def close(self) -> None:
        """Free what the loop holds."""


def timed(
    loop: Loop, prompt: Int32, n_tokens: int, stop_tokens: Collection[int] = frozenset()
) -> Outcome:
    """Run one generation against the clock."""
    outcome = collect(loop.stream(prompt, n_tokens), stop_tokens)
    return note_stats(outcome, loop.decoder) if isinstance(loop, DecoderLoop) else outcome


def note_stats(outcome: Outcome, decoder: Decoder) -> Outcome:
    """The outcome with the counts of the decoder that made it."""
    outcome.stats = decoder.stats.to_dict()
    outcome.n_drafted, outcome.n_accepted = decoder.stats.n_drafted, decoder.stats.n_accepted
    return outcome


class DecoderLoop:
    """A decoder of the product, drafting or not."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def stream(self, prompt: Int32, n_tokens: int) -> Iterator[list[int]]:
        return self.decoder.generate(prompt, max_tokens=n_tokens)

    def close(self) -> None:
        """Nothing: the decoder's target belongs to whoever made it."""


class BareLoop:
    """The shortest loop over ``llama_decode`` that takes the most probable token.

    Raises
    ------
    ModelLoadError : llama.cpp could not make the context.
    """

    def __init__(self, model: Model, config: ContextConfig) -> None:
        params = context_params(model, config)
        self._pointer: Any = lib.llama_init_from_model(model.pointer, params)
        if not self._pointer:
            raise ModelLoadError(f"llama.cpp could not make a context for {model.path.name}")
        self._memory = lib.llama_get_memory(self._pointer)
        self._n_batch = int(config.n_batch)
        self._n_vocab = model.n_vocab
        self._token: Int32 = np.zeros(1, dtype=np.int32)
        self._row: Float32 = np.zeros(0, dtype=np.float32)
        self._row_address = 0
        self._committed: list[int] = []

    def _decode(self, tokens: Int32) -> int:
        """The most probable token after a batch."""
        pointer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        result = lib.llama_decode(self._pointer, lib.llama_batch_get_one(pointer, len(tokens)))
        if result != 0:
            raise DecodeError(f"llama_decode returned {result}")
        logits = lib.llama_get_logits(self._pointer)
        address = ctypes.addressof(logits.contents)
        if address != self._row_address:
            self._row = np.ctypeslib.as_array(logits, shape=(self._n_vocab,))
            self._row_address = address
        return int(self._row.argmax())

    def stream(self, prompt: Int32, n_tokens: int) -> Iterator[list[int]]:
        n_past = _n_shared(self._committed, prompt)
        lib.llama_memory_seq_rm(self._memory, 0, n_past, -1)
        self._committed = prompt.tolist()
        while n_past < len(prompt):
            chunk = prompt[n_past : n_past + self._n_batch]
            token = self._decode(chunk)
            n_past += len(chunk)
        yield [token]
        for _ in range(n_tokens - 1):
            self._committed.append(token)
            self._token[0] = token
            token = self._decode(self._token)
            yield [token]

    def forget(self) -> None:
        """Reuse nothing for the next prompt."""
        self._committed = []

    def close(self) -> None:
        if self._pointer:
            lib.llama_free(self._pointer)
            self._pointer = None


class StockLoop:
    """``llama_cpp.Llama`` at temperature 0, in the same configuration."""

    def __init__(self, model: Model, config: ContextConfig) -> None:
        self._llama = open_stock(model, config)

    def stream(self, prompt: Int32, n_tokens: int) -> Iterator[list[int]]:
        tokens = self._llama.generate(prompt.tolist(), temp=0.0)
        for _ in range(n_tokens):
            yield [next(tokens)]

    def close(self) -> None:
        self._llama.close()


def _n_shared(committed: list[int], prompt: Int32) -> int:
    """Cells that the next prompt can reuse; its last token is always read again."""
    n_same = min(len(committed), len(prompt) - 1)
    differs = np.flatnonzero(np.asarray(committed[:n_same]) != prompt[:n_same])
    return int(differs[0]) if len(differs) else n_same
