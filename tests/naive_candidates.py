"""What the candidate kernels should do, in plain Python: slow, obvious, and written apart."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

Match = tuple[int, int]
"""``(position after the match, number of tokens that agree)``."""

Row = list[tuple[int, int]]
"""Candidates and their codes, best first."""

N_CODES = 10
MOST_CANDIDATES = 32


def probability_code(p: float) -> int:
    """Code of a stored probability; 0 and 1 mean something else."""
    return 2 + bisect_right([0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95], p)


def match_class(length: int, says_other: bool, level: int) -> int:
    if says_other:
        return 22 if length >= 4 else 21
    return 5 * level + 1 + bisect_right([3, 5, 9, 17], length)


def match_level(rate: float) -> int:
    return bisect_right([0.35, 0.8, 0.95], rate)


def next_rate(rate: float, proposed: Sequence[tuple[int, int]], token: int) -> float:
    """The share of right longest matches after one more token."""
    return rate + 0.2 * ((proposed[0][0] == token) - rate) if proposed else rate


def codes_of(values: Sequence[float], *, by_rank: bool = False) -> list[int]:
    """Code of each candidate of one row from its logits."""
    weights = [math.exp(v - values[0]) if v > -math.inf else 0.0 for v in values]
    if by_rank:
        return [max(2, 8 - 2 * rank) for rank in range(len(values))]
    return [probability_code(w / (sum(weights) or 1.0)) for w in weights]


@dataclass
class Sources:
    """Everything that was learned.

    Attributes
    ----------
    single : row of each token that has one.
    pair : row of each pair of tokens that has one.
    rate : how often the longest matches were right of late.
    """

    single: dict[int, Row] = field(default_factory=dict)
    pair: dict[tuple[int, int], Row] = field(default_factory=dict)
    rate: float = 0.5

    def gather(
        self, a: int, b: int, proposed: Sequence[tuple[int, int]], rate: float
    ) -> dict[int, int]:
        """Cell of each candidate after ``(a, b)``.

        ``proposed`` holds the next token and the length of each match, the longest first;
        ``rate`` is the share of right ones before.
        """
        two = dict(self.pair.get((a, b), []))
        one = dict(self.single.get(b, []))
        lacking = (int((a, b) in self.pair), int(b in self.single))
        classes: dict[int, int] = {}
        for token, length in proposed:
            says_other = token != proposed[0][0]
            classes.setdefault(token, match_class(length, says_other, match_level(rate)))
        no_match = 22 + max(1, match_level(rate)) if proposed else 0
        tokens = list(dict.fromkeys([*two, *one, *classes]))[:MOST_CANDIDATES]
        return {
            t: (classes.get(t, no_match) * N_CODES + two.get(t, lacking[0])) * N_CODES
            + one.get(t, lacking[1])
            for t in tokens
        }


def estimate(cells: Sequence[int], calibration: Sequence[Sequence[float]]) -> list[float]:
    """Probability of each candidate of one node."""
    p = [calibration[0][cell] / calibration[1][cell] for cell in cells]
    return [x / max(1.0, sum(p)) for x in p]


def find_matches(text: Sequence[int], n_places: int = 64, n_kept: int = 8) -> list[Match]:
    """The longest of the newest places whose last two tokens are those of the text."""
    places = [i for i in range(1, len(text) - 1) if text[i - 1 : i + 1] == text[-2:]]
    found = [(i + 1, agreement(text, i)) for i in places[::-1][:n_places]]
    return sorted(found, key=lambda match: -match[1])[:n_kept]


def agreement(text: Sequence[int], i: int) -> int:
    """How many tokens up to position ``i`` are those at the end of the text, at most 32."""
    pairs = zip(text[i::-1], text[::-1], strict=False)
    return min(32, next((n for n, (x, y) in enumerate(pairs) if x != y), i + 1))


def follow(text: Sequence[int], matches: Sequence[Match], token: int) -> list[Match]:
    """The matches that go on with ``token``, one token further."""
    return [(i + 1, min(32, length + 1)) for i, length in matches if text[i] == token]


@dataclass
class Candidate:
    """A path below the root."""

    path: tuple[int, ...]
    chance: float


def children(
    sources: Sources,
    calibration: Sequence[Sequence[float]],
    text: Sequence[int],
    root_matches: Sequence[Match],
    path: tuple[int, ...] = (),
    chance: float = 1.0,
) -> list[Candidate]:
    """Every child of the node at ``path`` with the probability of its path."""
    line = list(text)
    matches, rate = list(root_matches), sources.rate
    for token in path:
        rate = next_rate(rate, [(line[i], length) for i, length in matches], token)
        matches = follow([*line, token], matches, token)
        line.append(token)
    proposed = [(line[i], length) for i, length in matches]
    before = line[-2] if len(line) > 1 else -1
    cells = sources.gather(before, line[-1], proposed, rate)
    p = estimate(list(cells.values()), calibration)
    return [Candidate((*path, t), chance * x) for t, x in zip(cells, p, strict=True)]


def grow_tree(
    sources: Sources,
    calibration: Sequence[Sequence[float]],
    text: Sequence[int],
    root_matches: Sequence[Match],
    max_nodes: int,
    max_depth: int,
) -> list[Candidate]:
    """The ``max_nodes`` most probable paths, most probable first."""

    def below(path: tuple[int, ...], chance: float) -> list[Candidate]:
        if len(path) >= max_depth or chance <= 1e-4:
            return []
        return children(sources, calibration, text, root_matches, path, chance)

    chosen: list[Candidate] = []
    waiting = below((), 1.0)
    while waiting and len(chosen) < max_nodes:
        best = max(waiting, key=lambda candidate: candidate.chance)
        waiting.remove(best)
        chosen.append(best)
        waiting += below(best.path, best.chance)
    return chosen


def best_cut(chances: Sequence[float], seconds: Sequence[float], price: float) -> int:
    """How many of the nodes to draft; the fewest among equals."""
    values = [sum(chances[:n]) - price * (seconds[n] - seconds[0]) for n in range(len(chances) + 1)]
    return values.index(max(values))


class PairTable:
    """One set of two-token rows: a new row takes the place of the one not written for longest."""

    def __init__(self, size: int = 4) -> None:
        self.keys: list[tuple[int, int] | None] = [None] * size
        self.stamps = [0] * size
        self.rows: list[Row] = [[] for _ in range(size)]

    def write(self, pair: tuple[int, int], row: Row, stamp: int) -> None:
        oldest = self.stamps.index(min(self.stamps))
        place = self.keys.index(pair) if pair in self.keys else oldest
        self.keys[place], self.stamps[place], self.rows[place] = pair, stamp, row

    def contents(self) -> dict[tuple[int, int], Row]:
        return {key: row for key, row in zip(self.keys, self.rows, strict=True) if key is not None}


def calibrate(
    sources: Sources,
    calibration: list[list[float]],
    limit: float,
    text: Sequence[int],
    root_matches: Sequence[Match],
    emitted: Sequence[int],
    rank_counts: list[list[list[float]]],
) -> float:
    """Count the candidates of each place on the emitted path, by cell and by source and rank;
    old counts fade. The share of right longest matches after it."""

    def count(hits: list[float], trials: list[float], place: int, hit: bool) -> None:
        trials[place] += 1
        hits[place] += hit
        if trials[place] > limit:
            trials[place] /= 2
            hits[place] /= 2

    rate = sources.rate
    line = list(text)
    whole = [*text, *emitted]
    matches = list(root_matches)
    hits, trials = calibration
    for token in emitted:
        proposed = [(whole[i], length) for i, length in matches]
        before = line[-2] if len(line) > 1 else -1
        for candidate, cell in sources.gather(before, line[-1], proposed, rate).items():
            count(hits, trials, cell, candidate == token)
        pair = sources.pair.get((before, line[-1]), [])
        single = sources.single.get(line[-1], [])
        for source, row in enumerate((pair, single, proposed)):
            for rank, (candidate, _) in enumerate(row):
                count(rank_counts[0][source], rank_counts[1][source], rank, candidate == token)
        rate = next_rate(rate, proposed, token)
        line.append(token)
        matches = follow(line, matches, token)
    return rate
