"""Retrieval-based speculation (REST): a tree of what followed the same tokens in a datastore.

Source: He et al., REST: Retrieval-Based Speculative Decoding, NAACL 2024, arXiv 2311.08252; the
settings are its own: suffixes of 16 tokens down to 2, at most 64 nodes of a step.
"""

from __future__ import annotations

import heapq
import json
import sysconfig
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr.drafts.draft import Draft
from edge_tr.errors import ConfigError
from edge_tr.llama.model import Model
from edge_tr.target import Float32, Int32

LONGEST, SHORTEST = 16, 2
"""Tokens of a suffix that is looked up."""

_SORTED = 32
"""Tokens by which the suffixes are sorted: a match and what follows it."""

_MOST_PLACES = 5000
"""Places of a match that are looked at."""

DEFAULT_BYTES = 4_000_000
"""How much text the default datastore takes of Python's standard library."""


class Datastore:
    """A text as tokens, and its suffixes in order.

    Parameters
    ----------
    tokens : int32[n].

    Attributes
    ----------
    suffixes : int32[n]; places of the text, sorted by the 32 tokens that stand there.
    """

    def __init__(self, tokens: Int32) -> None:
        self.tokens = tokens
        self.suffixes = _sort_suffixes(tokens)

    @property
    def n_bytes(self) -> int:
        """Memory of both arrays."""
        return int(self.tokens.nbytes + self.suffixes.nbytes)

    def find(self, pattern: list[int]) -> tuple[int, int]:
        """Range of ``suffixes`` that begin with the pattern; empty where there is none."""
        n = len(pattern)

        def head(place: Any) -> list[int]:
            head_of: list[int] = self.tokens[place : place + n].tolist()
            return head_of

        first = bisect_left(self.suffixes, pattern, key=head)
        return first, bisect_right(self.suffixes, pattern, lo=first, key=head)

    def children(self, first: int, last: int, depth: int) -> list[tuple[int, int, int]]:
        """Tokens that stand ``depth`` behind the places of a range, with their ranges."""
        places = self.suffixes[first:last].astype(np.int64) + depth
        inside = np.flatnonzero(places < len(self.tokens))
        tokens = self.tokens[places[inside]]
        if not len(tokens):
            return []
        starts = np.flatnonzero(np.diff(tokens, prepend=tokens[0] - 1))
        ends = np.append(starts[1:], len(tokens))
        return [
            (int(tokens[s]), first + int(inside[s]), first + int(inside[e - 1]) + 1)
            for s, e in zip(starts.tolist(), ends.tolist(), strict=True)
        ]


def _sort_suffixes(tokens: Int32) -> Int32:
    """Sort by the first token, then by twice as many each round."""
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    n, length = len(tokens), 1
    order = np.argsort(rank, kind="stable")
    while length < _SORTED:
        behind = np.zeros(n, dtype=np.int64)
        behind[: max(0, n - length)] = rank[length:] + 1
        key = rank * (n + 1) + behind
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        rank[order] = np.concatenate(([0], np.cumsum(ordered[1:] != ordered[:-1])))[:n]
        length *= 2
    return order.astype(np.int32)


class RestDrafter:
    """Drafts the most frequent continuations of the longest suffix that the datastore knows."""

    k = 1
    harvest = 0
    n_rests = 0

    def __init__(self, datastore: Datastore, n_vocab: int, *, max_nodes: int = 64) -> None:
        self.datastore = datastore
        self.n_vocab = n_vocab
        self.max_nodes = self.max_lanes = max_nodes
        self._last: list[int] = []

    def learn_prompt(self, tokens: Int32, ids: Int32, values: Float32) -> None:
        """Nothing: it asks for no rows."""

    def begin(self, tokens: Int32, temperature: float = 0.0) -> None:
        self._last = tokens[-LONGEST:].tolist()

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        for n in range(min(LONGEST, len(self._last)), SHORTEST - 1, -1):
            first, last = self.datastore.find(self._last[-n:])
            if first < last:
                last = min(last, first + _MOST_PLACES)
                paths = self._best_paths(first, last, n, min(max_nodes, self.max_nodes), max_depth)
                _fill(draft, paths)
                return

    def _best_paths(
        self, first: int, last: int, n: int, max_nodes: int, max_depth: int
    ) -> list[tuple[int, ...]]:
        """The paths seen most often, each behind the path it extends; ties: the lowest tokens."""
        heap: list[tuple[int, tuple[int, ...], int, int]] = []

        def push(path: tuple[int, ...], first: int, last: int) -> None:
            depth = n + len(path)
            if len(path) < max_depth and depth < _SORTED:
                for token, start, end in self.datastore.children(first, last, depth):
                    heapq.heappush(heap, (start - end, (*path, token), start, end))

        push((), first, last)
        paths: list[tuple[int, ...]] = []
        while heap and len(paths) < max_nodes:
            _, path, start, end = heapq.heappop(heap)
            paths.append(path)
            push(path, start, end)
        return paths

    def learn(
        self, draft: Draft, ids: Int32, values: Float32, accepted: Int32, emitted: list[int]
    ) -> None:
        self._last = [*self._last, *emitted][-LONGEST:]


def _fill(draft: Draft, paths: list[tuple[int, ...]]) -> None:
    """Write the tree of the paths into the draft, in BFS order."""
    node_of: dict[tuple[int, ...], int] = {(): 0}
    for depth in range(1, max(map(len, paths), default=0) + 1):
        level = [path for path in paths if len(path) == depth]
        for path in sorted(level, key=lambda path: node_of[path[:-1]]):
            node, parent = len(node_of), node_of[path[:-1]]
            draft.token[node], draft.depth[node], draft.parent[node] = path[-1], depth, parent
            node_of[path] = node
    draft.n = len(node_of)


def read_texts(file: Path) -> Iterator[str]:
    """The texts of a file: of a ``.jsonl`` file every string in each object, else all of it.

    Raises
    ------
    ConfigError : it cannot be read.
    """
    try:
        content = file.read_text("utf-8", errors="replace")
        if file.suffix == ".jsonl":
            for line in content.splitlines():
                yield "\n".join(_strings(json.loads(line)))
        else:
            yield content
    except (OSError, ValueError) as error:
        raise ConfigError(f"the datastore's text {file} cannot be read: {error}") from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def standard_library(n_bytes: int) -> Iterator[str]:
    """Python's standard library, the text that every machine has that runs this."""
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if n_bytes <= 0:
            return
        text = file.read_text("utf-8", errors="replace")[:n_bytes]
        n_bytes -= len(text)
        yield text


def build_datastore(model: Model, file: Path | None = None) -> Datastore:
    """The datastore of a text file, or of Python's standard library where none is given."""
    texts = standard_library(DEFAULT_BYTES) if file is None else read_texts(file)
    tokens = [model.tokenize(text, add_special=False, parse_special=False) for text in texts]
    if not sum(map(len, tokens)):
        raise ConfigError(f"the datastore's text {file} is empty")
    return Datastore(np.concatenate(tokens))
