"""Tree templates: how many candidates each position of a draft tree gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from edge_tr.errors import ConfigError

MAX_K = 16
"""Most candidates of a row, and so the highest rank + 1 in a template."""

MAX_LANES = 256
"""Most sequences of a llama.cpp context (LLAMA_MAX_SEQ), and so most leaves of a tree."""

Path = tuple[int, ...]


class TreeTemplate:
    """A fixed draft tree, as the set of rank paths of its nodes.

    A path lists the rank taken at each depth: ``(0,)`` is the best candidate after the root,
    ``(0, 2)`` the third best after that one. Nodes stand in BFS order, siblings by rank.

    Parameters
    ----------
    paths : the path of each node below the root; order does not matter, but the path to each
        node's parent must be there too. An empty list is the template that drafts nothing.

    Attributes
    ----------
    paths : tuple of the paths in BFS order.
    parent, rank : int32[n_nodes + 1], read only; entry 0 is the root (parent -1, rank 0).
    n_nodes, n_leaves, max_depth : sizes, the root not counted as a node. ``n_leaves`` is at
        least 1: the root alone is one lane.
    n_ranks : highest rank + 1; a matrix must have at least this many candidates a row.

    Raises
    ------
    ConfigError : a repeated path, a missing parent, a rank outside 0..15, over 256 leaves.

    Source: Luo et al., Token Recycling, arXiv 2408.08696, section 3.
    """

    def __init__(self, paths: Iterable[Sequence[int]]) -> None:
        ordered = sorted((_check_path(path) for path in paths), key=lambda p: (len(p), p))
        index = {(): 0} | {path: i + 1 for i, path in enumerate(ordered)}
        if len(index) != len(ordered) + 1:
            repeated = next(a for a, b in pairwise(ordered) if a == b)
            raise ConfigError(f"path {list(repeated)} stands twice in the tree template")
        for path in ordered:
            if path[:-1] not in index:
                raise ConfigError(
                    f"path {list(path)} has no parent: {list(path[:-1])} is missing from the "
                    f"tree template"
                )
        self.paths: tuple[Path, ...] = tuple(ordered)
        self.parent = _frozen([-1] + [index[path[:-1]] for path in ordered])
        self.rank = _frozen([0] + [path[-1] for path in ordered])
        self.n_nodes = len(ordered)
        self.n_ranks = int(self.rank.max()) + 1
        self.max_depth = len(ordered[-1]) if ordered else 0
        self.n_leaves = len(index) - len({path[:-1] for path in ordered})
        if self.n_leaves > MAX_LANES:
            raise ConfigError(
                f"the tree template has {self.n_leaves} leaves; llama.cpp allows {MAX_LANES}"
            )

    @classmethod
    def from_breadths(cls, breadths: Sequence[int]) -> TreeTemplate:
        """Tree in which every node of depth d has ``breadths[d]`` children.

        ``[2, 1, 1]`` is two chains of three nodes; ``[1] * n`` is a chain of n nodes.
        """
        level: list[Path] = [()]
        paths: list[Path] = []
        for breadth in breadths:
            if not 1 <= breadth <= MAX_K:
                raise ConfigError(f"breadth {breadth} is not allowed; it must be 1 to {MAX_K}")
            if len(level) * breadth > 4096:
                raise ConfigError(f"breadths {list(breadths)} give over 4096 nodes in one layer")
            level = [(*path, rank) for path in level for rank in range(breadth)]
            paths += level
        return cls(paths)

    @classmethod
    def paper(cls) -> TreeTemplate:
        """The paper's 80 nodes (levels 8, 21, 25, 15, 8, 3), public template 2.2.2."""
        return cls(_expand_children(_PAPER_CHILDREN))

    def prefix(self, n_nodes: int) -> TreeTemplate:
        """The first ``n_nodes`` nodes in BFS order."""
        return TreeTemplate(self.paths[:n_nodes])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeTemplate) and self.paths == other.paths

    def __hash__(self) -> int:
        return hash(self.paths)

    def __repr__(self) -> str:
        return f"TreeTemplate({self.n_nodes} nodes, {self.n_leaves} leaves, depth {self.max_depth})"


_PAPER_CHILDREN: dict[Path, int] = {
    (): 8,
    **{(rank,): n for rank, n in enumerate((8, 4, 3, 2, 1, 1, 1, 1))},
    **{(0, rank): n for rank, n in enumerate((8, 3, 2, 1, 1, 1, 1, 1))},
    (1, 0): 2,
    **dict.fromkeys(((1, 1), (2, 0), (3, 0), (4, 0), (5, 0)), 1),
    (0, 0, 0): 5,
    (0, 0, 1): 2,
    **{(0, 0, rank): 1 for rank in (2, 3, 4)},
    **{(0, rank, 0): 1 for rank in (1, 2)},
    **{(rank, 0, 0): 1 for rank in (1, 2, 3)},
    (0, 0, 0, 0): 3,
    (0, 0, 0, 1): 1,
    (0, 0, 0, 2): 1,
    (0, 0, 1, 0): 1,
    (0, 1, 0, 0): 1,
    (1, 0, 0, 0): 1,
    (0, 0, 0, 0, 0): 2,
    (0, 0, 0, 1, 0): 1,
}
"""Number of children of each inner node of the paper's tree."""


def _expand_children(children: dict[Path, int]) -> list[Path]:
    return [(*path, rank) for path, n in children.items() for rank in range(n)]


def _check_path(path: Sequence[int]) -> Path:
    if not path:
        raise ConfigError("a tree template holds an empty path; the root is implied")
    for rank in path:
        if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
            raise ConfigError(f"rank {rank!r} in path {list(path)} is not a whole number")
        if not 0 <= rank < MAX_K:
            raise ConfigError(f"rank {rank} in path {list(path)} must be 0 to {MAX_K - 1}")
    return tuple(int(rank) for rank in path)


def _frozen(values: list[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    array = np.array(values, dtype=np.int32)
    array.flags.writeable = False
    return array


SMALL_TREE = TreeTemplate([(0,), (1,), (0, 0)])
"""Three nodes: what a processor with few cores can afford."""
