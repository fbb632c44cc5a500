"""A target model that answers from rows it gave before, so that a choice is tried in seconds.

``RecordingTarget`` keeps the best tokens of every row that a real model gives, keyed by the whole
text in front of it. ``RecordedTarget`` stands in for the model later: texts are the same to the
token whatever is drafted, since their rows are all known. A node off the text whose row was never
asked for has the row of some other place that ends with the same three, two or one tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr.decode.topk import TopK
from edge_tr.target import Batch, Float32, Int32, Int64, TargetModel

K = 8
_END = -1


class _Paths:
    """The key of every token of a batch: a hash of the text up to it."""

    def __init__(self, n_ctx: int) -> None:
        self._keys = [0] * (n_ctx + 1)
        self._tokens = [_END] * (n_ctx + 1)

    def of(self, batch: Batch) -> list[tuple[int, tuple[int, int, int]]]:
        """Key and last three tokens, the last one first, of each token of a batch."""
        n, base = batch.n, int(batch.pos[0])
        found: list[tuple[int, tuple[int, int, int]]] = []
        newest: dict[tuple[int, int], int] = {}
        in_order = True
        tokens, positions = batch.token[:n].tolist(), batch.pos[:n].tolist()
        for i, (token, pos) in enumerate(zip(tokens, positions, strict=True)):
            lanes = batch.lanes_of(i)
            if pos == base:
                before, last, last2 = self._keys[pos], self._last(pos - 1), self._last(pos - 2)
            else:
                parent = newest[pos - 1, lanes[0]]
                before, (last, last2, _) = found[parent]
            found.append((hash((before, token)), (token, last, last2)))
            newest.update(((pos, lane), i) for lane in lanes)
            in_order &= pos == base + i
            if in_order:  # only these can stay in the cache
                self._keys[pos + 1], self._tokens[pos] = found[-1][0], token
        return found

    def _last(self, pos: int) -> int:
        return self._tokens[pos] if pos >= 0 else _END


class RecordingTarget:
    """Hands everything to a model and keeps the best tokens of each row."""

    def __init__(self, target: TargetModel, n_threads: int = 1) -> None:
        self._target = target
        self._topk = TopK(K, n_threads)
        self._paths = _Paths(target.n_ctx)
        self.rows: dict[int, tuple[tuple[int, int, int], Int32, Float32]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def decode(self, batch: Batch) -> Float32:
        found = self._paths.of(batch)
        logits = self._target.decode(batch)
        ids, values = self._topk(logits)
        for row, i in enumerate(np.flatnonzero(batch.logits[: batch.n]).tolist()):
            key, last = found[i]
            self.rows[key] = last, ids[row].copy(), values[row].copy()
        return logits

    def save(self, path: Path, prompts: Iterable[tuple[str, Int32]]) -> None:
        """Write the rows, and the prompts by their kind."""
        target, kinds_and_tokens = self._target, list(prompts)
        np.savez_compressed(
            path,
            sizes=np.array([target.n_vocab, target.n_ctx, target.n_batch, target.n_lanes]),
            keys=np.array(list(self.rows), dtype=np.int64),
            last=np.array([last for last, _, _ in self.rows.values()], dtype=np.int32),
            ids=np.array([ids for _, ids, _ in self.rows.values()]),
            values=np.array([values for _, _, values in self.rows.values()]),
            kinds=np.array([kind for kind, _ in kinds_and_tokens]),
            ends=np.cumsum([len(tokens) for _, tokens in kinds_and_tokens]),
            tokens=np.concatenate([tokens for _, tokens in kinds_and_tokens]),
        )


class RecordedTarget:
    """Stands in for the model of a recording; all but the best tokens of a row are impossible.

    Attributes
    ----------
    prompts : kind and tokens.
    n_asked, n_unknown : rows asked for, and those that only a like place was known of.
    """

    can_rewind = True
    n_rewind = 0

    def __init__(self, path: Path) -> None:
        with np.load(path) as data:
            self.n_vocab, self.n_ctx, self.n_batch, self.n_lanes = data["sizes"].tolist()
            keys: Int64 = data["keys"]
            last: Int32 = data["last"]
            self._ids: Int32 = data["ids"]
            self._values: Float32 = data["values"]
            texts = np.split(data["tokens"], data["ends"][:-1])
            self.prompts = list(zip(data["kinds"].tolist(), texts, strict=True))
        self._row = {key: row for row, key in enumerate(keys.tolist())}
        self._like: dict[tuple[int, ...], int] = {}
        for row, tokens in enumerate(map(tuple, last.tolist())):
            for n in (1, 2, 3):
                self._like.setdefault(tokens[:n], row)
        self._paths = _Paths(self.n_ctx)
        self._logits = np.full((0, self.n_vocab), -np.inf, dtype=np.float32)
        self._written: Int64 = np.zeros(0, dtype=np.int64)
        self.n_asked = self.n_unknown = 0

    def decode(self, batch: Batch) -> Float32:
        found = self._paths.of(batch)
        rows = [self._find(*found[i]) for i in np.flatnonzero(batch.logits[: batch.n]).tolist()]
        n = len(rows)
        if n > len(self._logits):
            self._logits = np.full((n, self.n_vocab), -np.inf, dtype=np.float32)
        else:
            written = self._written
            self._logits[np.arange(len(written))[:, None], self._ids[written]] = -np.inf
        self._written = np.array(rows, dtype=np.int64)
        self._logits[np.arange(n)[:, None], self._ids[rows]] = self._values[rows]
        return self._logits[:n]

    def _find(self, key: int, last: tuple[int, int, int]) -> int:
        self.n_asked += 1
        row = self._row.get(key)
        if row is not None:
            return row
        self.n_unknown += 1
        for n in (3, 2, 1):
            row = self._like.get(last[:n])
            if row is not None:
                return row
        return 0

    def seq_rm(self, lane: int, first: int, last: int) -> None:
        """Nothing: what a batch sees is known from its positions."""

    def seq_cp(self, source: int, target: int, first: int, last: int) -> None:
        """Nothing, as ``seq_rm``."""

    def interrupt(self, on: bool) -> None:
        """Nothing: it is never interrupted."""
