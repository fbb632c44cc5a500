"""What drafting would bring on another machine: recorded steps at any T(n).

An expectation, never a measurement: the acceptance was recorded with one model, the work
outside the model counts only where the costs contain it, and no token is decoded again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr.costs.table import LESSON, CostTable
from edge_tr.errors import ConfigError

Float64 = np.ndarray[Any, np.dtype[np.float64]]

_HERE = Path(__file__).parent
PUBLIC_TABLES = _HERE / "cost_tables.json"
"""Public figures of T(n)/T(1), each with its source."""

DEFAULT_RECORDING = _HERE / "acceptance.json"

_FORMAT = 1
_ROUNDS = 8
"""Rounds until the rate that decides what a second is worth has settled."""


@dataclass(frozen=True)
class RelativeCosts:
    """T(n)/T(1) of one machine, model and setting.

    Attributes
    ----------
    widths : numbers of tokens in a step, rising, the first is 1.
    ratio : time of each in plain steps, the first is 1.
    source, note : where it comes from, and what to know about it.

    Raises
    ------
    ConfigError : widths that do not rise from 1, a first ratio that is not 1, one not above 0.
    """

    name: str
    widths: tuple[int, ...]
    ratio: tuple[float, ...]
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not self.widths or self.widths[0] != 1 or any(a >= b for a, b in pairwise(self.widths)):
            raise ConfigError(f"widths {list(self.widths)} of {self.name} must rise from 1")
        if len(self.ratio) != len(self.widths) or self.ratio[0] != 1:
            raise ConfigError(f"{self.name} must have a ratio for each width, the first one 1")
        if not all(0 < r < float("inf") for r in self.ratio):
            raise ConfigError(f"every ratio of {self.name} must be above 0")

    def of_nodes(self, max_nodes: int) -> Float64:
        """float64[n + 1]; cost of a step with 0 to n nodes in plain steps.

        n is ``max_nodes``, or fewer where no wider step is known. Straight lines in between.
        """
        n = min(max_nodes, self.widths[-1] - 1)
        costs: Float64 = np.interp(np.arange(1, n + 2), self.widths, self.ratio)
        return costs


@dataclass(frozen=True)
class RecordedRun:
    """The steps of some answers, drafted with trees of one size.

    Attributes
    ----------
    max_nodes : nodes of the trees.
    hits : of each step the accepted nodes, as places (from 1 on) in the order in which the
        tree was grown; the first n places are the tree of n nodes.
    expected : float64[n_steps, max_nodes + 1]; tokens that the drafter expected to be accepted
        of the first n nodes.
    """

    max_nodes: int
    hits: tuple[tuple[int, ...], ...]
    expected: Float64

    @property
    def mat(self) -> float:
        """Mean accepted tokens of the run."""
        return 1 + sum(len(places) for places in self.hits) / len(self.hits)

    @property
    def trust(self) -> float:
        """Accepted over expected tokens, as the recycler tracks it; at most 1.2."""
        accepted = sum(len(places) for places in self.hits)
        return min(1.2, (accepted + 10) / (float(self.expected[:, -1].sum()) + 10))


@dataclass(frozen=True)
class Recording:
    """Acceptance recorded with trees of several sizes, each learning from its own nodes.

    Attributes
    ----------
    about : model and drafter it was made with.
    runs : by rising size.
    """

    about: str
    runs: tuple[RecordedRun, ...]

    def __post_init__(self) -> None:
        sizes = [run.max_nodes for run in self.runs]
        if not sizes or any(a >= b for a, b in pairwise([0, *sizes])):
            raise ConfigError(f"the sizes {sizes} of recorded trees must rise from 1")
        if not all(run.hits for run in self.runs):
            raise ConfigError("a recorded run holds no step")

    def to_dict(self) -> dict[str, Any]:
        """For JSON; the expected tokens are kept in hundredths at a few sizes."""
        runs = []
        for run in self.runs:
            sizes = _kept_sizes(run.max_nodes)
            expected = np.rint(100 * run.expected[:, sizes]).astype(int).tolist()
            runs.append({"sizes": sizes, "hits": run.hits, "expected": expected})
        return {"format": _FORMAT, "about": self.about, "runs": runs}

    @classmethod
    def from_dict(cls, data: Any) -> Recording:
        """Read what ``to_dict`` wrote.

        Raises
        ------
        ConfigError : something else than a recording, or of another format.
        """
        try:
            if data["format"] != _FORMAT:
                raise ConfigError(f"its format {data['format']} is unknown")
            return cls(str(data["about"]), tuple(_read_run(run) for run in data["runs"]))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ConfigError(f"this is not a recording of acceptance: {error}") from error


def _kept_sizes(max_nodes: int) -> list[int]:
    return sorted({1, max(1, max_nodes // 8), max(1, max_nodes // 3), max_nodes})


def _read_run(data: Any) -> RecordedRun:
    sizes = [int(n) for n in data["sizes"]]
    hits = tuple(tuple(int(place) for place in places) for places in data["hits"])
    if any(a >= b for a, b in pairwise([0, *sizes])):
        raise ConfigError(f"its sizes {sizes} do not rise from 1")
    max_nodes = sizes[-1]
    if not all(0 < place <= max_nodes for places in hits for place in places):
        raise ConfigError(f"an accepted node is not one of {max_nodes}")
    known = np.array(data["expected"], dtype=np.float64).reshape(len(hits), len(sizes)) / 100
    curves = [np.interp(np.arange(max_nodes + 1), [0, *sizes], [0.0, *row]) for row in known]
    return RecordedRun(max_nodes, hits, np.array(curves).reshape(len(hits), max_nodes + 1))


@dataclass(frozen=True)
class Expectation:
    """What to expect of drafting at these costs; speeds are multiples of plain decoding.

    Attributes
    ----------
    mat_of, speedup_of : mean accepted tokens and speed with n nodes at every step, by n from 0.
    best_nodes : the n of the highest speed.
    mat, speedup, mean_nodes : the same for a size chosen at each step, as automatic mode does.
    """

    costs: RelativeCosts
    mat_of: tuple[float, ...]
    speedup_of: tuple[float, ...]
    best_nodes: int
    mat: float
    speedup: float
    mean_nodes: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.costs.name,
            "source": self.costs.source,
            "note": self.costs.note,
            "expected_speedup": round(self.speedup, 3),
            "expected_mat": round(self.mat, 3),
            "mean_nodes": round(self.mean_nodes, 2),
            "best_fixed_nodes": self.best_nodes,
            "best_fixed_speedup": round(self.speedup_of[self.best_nodes], 3),
            "speedup_by_nodes": [round(s, 3) for s in self.speedup_of],
        }


def expect(recording: Recording, costs: RelativeCosts) -> Expectation:
    """Take the recorded steps at these costs: with trees of every size, and as many nodes as
    pay at each step.

    Between the recorded sizes mean accepted tokens are taken to lie on a straight line. The
    choice at each step is made in the run whose trees are nearest in size to those that are
    chosen, since a drafter learns from what it drafts. Real drafting that was told to believe
    seven of the public tables came within 10 % of this.
    """
    runs = recording.runs
    of_nodes = costs.of_nodes(runs[-1].max_nodes)
    sizes = [run.max_nodes for run in runs]
    mat_of = np.interp(np.arange(len(of_nodes)), [0, *sizes], [1.0, *(run.mat for run in runs)])
    speedup_of = mat_of / of_nodes
    best = int(np.argmax(speedup_of))
    wanted = max(_choose(runs[-1], of_nodes)[2], 1e-9)
    wide = [run for run in runs if run.max_nodes >= min(best, 3)]  # a step may pay as a whole only
    nearest = min(wide, key=lambda run: abs(np.log(run.max_nodes / wanted)))
    mat, speedup, mean_nodes = _choose(nearest, of_nodes)
    return Expectation(
        costs,
        tuple(mat_of.tolist()),
        tuple(speedup_of.tolist()),
        best,
        mat,
        speedup,
        mean_nodes,
    )


def _choose(run: RecordedRun, of_nodes: Float64) -> tuple[float, float, float]:
    """Mean accepted tokens, speed and mean nodes with as many nodes as pay at each step."""
    n_most = min(run.max_nodes, len(of_nodes) - 1)
    lessons = LESSON * np.arange(n_most + 1)
    speedup = 1.0
    for _ in range(_ROUNDS):
        price = max(speedup, 1.0) / run.trust
        worth = run.expected[:, : n_most + 1] + lessons
        chosen = np.argmax(worth - price * of_nodes[: n_most + 1], axis=1)
        n_tokens = sum(
            1 + sum(place <= n for place in places)
            for places, n in zip(run.hits, chosen, strict=True)
        )
        speedup = n_tokens / float(of_nodes[chosen].sum())
    return n_tokens / len(run.hits), speedup, float(chosen.mean())


def relative_costs(
    name: str, table: CostTable, source: str = "measured here"
) -> list[RelativeCosts]:
    """A measured table in plain steps, one for each of its contexts."""
    found = []
    for n_past, seconds in zip(table.contexts, table.seconds, strict=True):
        ratio = tuple(s / seconds[0] for s in seconds)
        note = f"{seconds[0] * 1e3:.1f} ms a plain step"
        found.append(
            RelativeCosts(f"{name}, {n_past} past tokens", table.widths, ratio, source, note)
        )
    return found


def read_costs(path: Path) -> list[RelativeCosts]:
    """The cost tables of a JSON file: one, a list, or an object that holds them as ``costs`` or
    ``tables``; each with ``ratio`` (T(n)/T(1)) or as ``CostTable.to_dict`` gives it.

    Raises
    ------
    ConfigError : the file cannot be read, or holds something else.
    """
    tables = _tables(_read_json(path), path.stem)
    if not tables:
        raise ConfigError(f"{path} holds no cost table")
    return tables


def read_recording(path: Path = DEFAULT_RECORDING) -> Recording:
    """A recording of acceptance from its JSON file.

    Raises
    ------
    ConfigError : the file cannot be read, or holds something else.
    """
    return Recording.from_dict(_read_json(path))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None


def _tables(data: Any, name: str) -> list[RelativeCosts]:
    if isinstance(data, list):
        return [table for i, item in enumerate(data) for table in _tables(item, f"{name} {i + 1}")]
    if not isinstance(data, dict):
        raise ConfigError(f"{name} is not a cost table but {data!r}")
    name = str(data.get("name", name))
    for key in ("tables", "costs"):
        if key in data:
            return _tables(data[key], name)
    if "seconds" in data:
        return relative_costs(name, CostTable.from_dict(data), str(data.get("source", "")))
    try:
        widths = tuple(int(n) for n in data["widths"])
        ratio = tuple(float(r) for r in data["ratio"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} is not a cost table: {error!r}") from error
    source, note = (str(data.get(key, "")) for key in ("source", "note"))
    return [RelativeCosts(name, widths, ratio, source, note)]
