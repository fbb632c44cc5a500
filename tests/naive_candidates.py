"""What the candidate kernels should do, in plain Python: slow, obvious, and written apart."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

Match = tuple[int, int]
"""``(place after the match, number of tokens that agree)``; in the history ``EARLIER + place``."""

EARLIER = 1 << 30
LEAST_EARLIER = 4

Row = list[tuple[int, int]]
"""Candidates and their codes, best first."""

N_CODES = 10
MOST_CANDIDATES = 32


def probability_code(p: float) -> int:
    """Code of a stored probability; 0 and 1 mean something else."""
    return 2 + bisect_right([0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95], p)


def match_class(length: int, says_other: bool, level: int, earlier: bool) -> int:
    if says_other:
        return 22 if length >= 4 else 21
    return 25 * earlier + 5 * level + 1 + bisect_right([3, 5, 9, 17], length)


def match_level(rate: float) -> int:
    return bisect_right([0.35, 0.8, 0.95], rate)


Proposed = list[tuple[int, int, bool]]
"""Of each match the next token, how many agree, and whether it lies in the history."""

Rates = tuple[float, float]
"""How often the longest matches were right of late, in the text and in the history."""


def next_rates(rates: Rates, proposed: Proposed, token: int) -> Rates:
    """The shares of right longest matches after one more token."""

    def next_rate(rate: float, earlier: bool) -> float:
        first = next((t for t, _, e in proposed if e == earlier), None)
        return rate if first is None else rate + 0.2 * ((first == token) - rate)

    return next_rate(rates[0], False), next_rate(rates[1], True)


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
    history : earlier texts, -1 behind each.
    rates : of the matches before.
    """

    single: dict[int, Row] = field(default_factory=dict)
    pair: dict[tuple[int, int], Row] = field(default_factory=dict)
    history: list[int] = field(default_factory=list)
    rates: Rates = (0.5, 0.5)

    def proposed(self, text: Sequence[int], matches: Sequence[Match]) -> Proposed:
        """What each match says."""
        return [
            (self.history[i - EARLIER], length, True) if i >= EARLIER else (text[i], length, False)
            for i, length in matches
        ]

    def follow(self, text: Sequence[int], matches: Sequence[Match], token: int) -> list[Match]:
        """The matches that go on with ``token``, one token further."""
        said = zip(matches, self.proposed(text, matches), strict=True)
        further = [(i + 1, min(32, length + 1)) for (i, length), (t, _, _) in said if t == token]
        return [m for m in further if m[0] < EARLIER or self.history[m[0] - EARLIER] >= 0]

    def gather(self, a: int, b: int, proposed: Proposed, rates: Rates) -> dict[int, int]:
        """Cell of each candidate after ``(a, b)``.

        ``proposed`` holds what each match says, the longest first; ``rates`` are those before.
        """
        two = dict(self.pair.get((a, b), []))
        one = dict(self.single.get(b, []))
        lacking = (int((a, b) in self.pair), int(b in self.single))
        classes: dict[int, int] = {}
        earlier = bool(proposed) and proposed[0][2]
        level = match_level(rates[earlier])
        for token, length, _ in proposed:
            says_other = token != proposed[0][0]
            classes.setdefault(token, match_class(length, says_other, level, earlier))
        no_match = 22 + 23 * earlier + max(1, level) if proposed else 0
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


def find_earlier(
    text: Sequence[int], history: Sequence[int], n_places: int = 64, n_kept: int = 4
) -> list[Match]:
    """The longest of the newest places in the history whose last four tokens are those of the
    text, and behind which more follows."""
    key = list(text[-LEAST_EARLIER:])
    places = [
        i
        for i in range(LEAST_EARLIER - 1, len(history))
        if len(key) == LEAST_EARLIER and history[i - LEAST_EARLIER + 1 : i + 1] == key
    ]
    found = [
        (EARLIER + i + 1, agreement(text, i, history))
        for i in places[::-1][:n_places]
        if history[i + 1] >= 0
    ]
    return sorted(found, key=lambda match: -match[1])[:n_kept]


def find_all(text: Sequence[int], history: Sequence[int]) -> list[Match]:
    """The longest of both, the text's own first among equals."""
    if len(text) < 3:
        return []
    found = [*find_matches(text), *find_earlier(text, history)]
    return sorted(found, key=lambda match: -match[1])[:8]


def agreement(text: Sequence[int], i: int, other: Sequence[int] | None = None) -> int:
    """How many tokens up to place ``i`` are those at the end of the text, at most 32."""
    pairs = zip((text if other is None else other)[i::-1], text[::-1], strict=False)
    most = min(32, i + 1, len(text))
    return min(most, next((n for n, (x, y) in enumerate(pairs) if x != y), most))


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
    matches, rates = list(root_matches), sources.rates
    for token in path:
        rates = next_rates(rates, sources.proposed(line, matches), token)
        matches = sources.follow(line, matches, token)
        line.append(token)
    before = line[-2] if len(line) > 1 else -1
    cells = sources.gather(before, line[-1], sources.proposed(line, matches), rates)
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
) -> Rates:
    """Count the candidates of each place on the emitted path, by cell and by source and rank;
    old counts fade. The shares of right longest matches after it."""

    def count(hits: list[float], trials: list[float], place: int, hit: bool) -> None:
        trials[place] += 1
        hits[place] += hit
        if trials[place] > limit:
            trials[place] /= 2
            hits[place] /= 2

    rates = sources.rates
    line = list(text)
    whole = [*text, *emitted]
    matches = list(root_matches)
    hits, trials = calibration
    for token in emitted:
        proposed = sources.proposed(whole, matches)
        before = line[-2] if len(line) > 1 else -1
        for candidate, cell in sources.gather(before, line[-1], proposed, rates).items():
            count(hits, trials, cell, candidate == token)
        pair = sources.pair.get((before, line[-1]), [])
        single = sources.single.get(line[-1], [])
        for source, row in enumerate((pair, single, [(t, 0) for t, _, _ in proposed])):
            for rank, (candidate, _) in enumerate(row):
                count(rank_counts[0][source], rank_counts[1][source], rank, candidate == token)
        rates = next_rates(rates, proposed, token)
        matches = sources.follow(whole, matches, token)
        line.append(token)
    return rates
