"""A target model without a network: real cells, and logits that hash the path they see."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence

import numpy as np

from edge_tr.decode.sampling import Sampler
from edge_tr.errors import CancelledError, ContextFullError
from edge_tr.target import Batch, Float32


class HashModel:
    """Logits after a path, as a hash of its tokens.

    Parameters
    ----------
    n_vocab : tokens.
    seed : another seed is another model.
    memory : how many of the last tokens count, so that texts repeat; None = all of them.
    levels : number of different logits, so that ties are common; None = all different.
    """

    def __init__(
        self, n_vocab: int = 16, *, seed: int = 0, memory: int | None = 2, levels: int | None = None
    ) -> None:
        self.n_vocab = n_vocab
        self._seed = seed
        self.memory = memory
        self._levels = levels
        self._ids = np.arange(1, n_vocab + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def logits(self, path: Sequence[int], *, broken: bytes = b"") -> Float32:
        """float32[n_vocab] after the tokens of ``path``."""
        seen = list(path) if self.memory is None else list(path)[-self.memory :]
        key = zlib.crc32(np.array([self._seed, *seen], dtype=np.int32).tobytes() + broken)
        mixed = (self._ids ^ np.uint64(key)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
        unit = (mixed >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
        if self._levels is not None:
            unit = np.floor(unit * np.float32(self._levels))
        return unit * np.float32(4)

    def generate(
        self,
        prompt: Sequence[int],
        n_ctx: int,
        *,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop_tokens: Collection[int] = frozenset(),
    ) -> list[int]:
        """The text that any exact way of decoding must give."""
        text = list(prompt)
        room = n_ctx - len(text)
        for _ in range(room if max_tokens is None else min(room, max_tokens)):
            logits = self.logits(text)
            text.append(sampler.sample(0, logits) if sampler else int(logits.argmax()))
            if text[-1] in stop_tokens:
                break
        return text[len(prompt) :]


class FakeTarget:
    """Cells with a position, a token and lanes, checked as llama.cpp checks them.

    What llama.cpp refuses or aborts on is an AssertionError here.

    Attributes
    ----------
    pos, token : int32[n_ctx]; -1 in a free cell.
    carries : bool[n_ctx, n_lanes]; the lanes of each cell.
    n_calls : number of calls of ``decode``.
    on_decode : called in the middle of each ``decode``, when half of the cells are taken.
    """

    def __init__(
        self,
        model: HashModel | None = None,
        *,
        n_ctx: int = 64,
        n_batch: int = 32,
        n_lanes: int = 8,
        can_rewind: bool = True,
        n_rewind: int = 0,
    ) -> None:
        self.model = model or HashModel()
        self.n_vocab = self.model.n_vocab
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.n_lanes = n_lanes
        self.can_rewind = can_rewind
        self.n_rewind = n_rewind
        self._n_back = 0
        self.pos = np.full(n_ctx, -1, dtype=np.int32)
        self.token = np.full(n_ctx, -1, dtype=np.int32)
        self.carries = np.zeros((n_ctx, n_lanes), dtype=np.bool_)
        self.n_calls = 0
        self.on_decode: Callable[[], None] = lambda: None
        self._interrupted = False

    def decode(self, batch: Batch) -> Float32:
        self.n_calls += 1
        assert 0 < batch.n <= self.n_batch, "GGML_ASSERT(n_tokens_all <= cparams.n_batch)"
        lanes = [list(batch.lanes_of(i)) for i in range(batch.n)]
        self._check(batch, lanes)
        self._n_back = min(self.n_rewind, batch.n - 1)
        free = np.flatnonzero(self.pos < 0)[: batch.n]
        if len(free) < batch.n:
            raise ContextFullError(f"no room for {batch.n} tokens in {self.n_ctx} cells")
        rows = []
        for i, cell in enumerate(free):
            if i == batch.n // 2:
                self.on_decode()
                if self._interrupted:
                    raise CancelledError("the generation was cancelled")
            self.pos[cell], self.token[cell] = batch.pos[i], batch.token[i]
            self.carries[cell, lanes[i]] = True
        for i in np.flatnonzero(batch.logits[: batch.n]).tolist():
            rows.append(self._row(lanes[i][0], int(batch.pos[i])))
        return np.array(rows, dtype=np.float32).reshape(len(rows), self.n_vocab)

    def _row(self, lane: int, pos: int) -> Float32:
        cells = np.flatnonzero(self.carries[:, lane] & (self.pos <= pos))
        cells = cells[np.argsort(self.pos[cells], kind="stable")]
        whole = np.array_equal(self.pos[cells], np.arange(pos + 1))
        broken = b"" if whole else self.pos[cells].tobytes()
        return self.model.logits(self.token[cells].tolist(), broken=broken)

    def _check(self, batch: Batch, lanes: list[list[int]]) -> None:
        """As llama_batch_allocr::init does."""
        positions: dict[int, list[int]] = {}
        common: dict[int, set[int]] = {}
        named = {lane for of_token in lanes for lane in of_token}
        assert max(named) < self.n_lanes, f"invalid lane {max(named)}"
        spans = {lane: self._span(lane) for lane in named}
        for i, of_token in enumerate(lanes):
            assert 0 <= batch.token[i] < self.n_vocab, f"invalid token {batch.token[i]}"
            assert of_token, "a token without lanes"
            for lane in of_token:
                positions.setdefault(lane, []).append(int(batch.pos[i]))
                common[lane] = common.get(lane, set(of_token)) & set(of_token)
                assert common[lane], f"lane {lane} belongs to incompatible sets of lanes"
                assert spans[lane] == spans[of_token[0]], "coupled lanes have diverged"
        for lane, at in positions.items():
            assert at[0] == spans[lane][1] + 1, f"lane {lane} does not go on where it ended"
            assert at == sorted(at), f"positions of lane {lane} are decreasing"
            assert sorted(set(at)) == list(range(at[0], at[-1] + 1)), "positions have holes"

    def _span(self, lane: int) -> tuple[int, int]:
        at = self.pos[self.carries[:, lane]]
        return (int(at.min()), int(at.max())) if len(at) else (-1, -1)

    def seq_rm(self, lane: int, first: int, last: int) -> None:
        assert -1 <= lane < self.n_lanes
        if not self.can_rewind and (lane, first, last) != (-1, 0, -1):
            assert (lane, last) == (0, -1), "only the last tokens of lane 0 can be given up"
            n_tokens = int((self.pos >= first).sum())
            assert 0 < n_tokens <= self._n_back, f"cannot give up {n_tokens} tokens"
            self._n_back = 0
        chosen = (self.pos >= first) & ((self.pos < last) | (last < 0))
        self.carries[chosen, slice(None) if lane < 0 else lane] = False
        self.pos[~self.carries.any(axis=1)] = -1

    def seq_cp(self, source: int, target: int, first: int, last: int) -> None:
        assert 0 <= source < self.n_lanes
        assert 0 <= target < self.n_lanes
        chosen = self.carries[:, source] & (self.pos >= first) & (self.pos < last)
        self.carries[chosen, target] = True

    def interrupt(self, on: bool) -> None:
        self._interrupted = on

    def assert_only_committed(self, tokens: Sequence[int]) -> int:
        """Cells hold a prefix of ``tokens`` in order of position, and each lane a prefix of
        lane 0; the number of cells."""
        n = int((self.pos >= 0).sum())
        assert self.pos[:n].tolist() == list(range(n))
        assert self.token[:n].tolist() == list(tokens)[:n]
        assert self.carries[:n, 0].all()
        for lane in range(self.n_lanes):
            assert self.carries[: self.carries[:, lane].sum(), lane].all()
        return n
