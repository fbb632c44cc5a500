"""What each kernel should do, in plain Python: slow, obvious, and written apart from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

Tree = list[tuple[int, int]]
"""``(token, parent)`` of each node in BFS order; the root comes first, with parent -1."""


def topk(row: Sequence[float], k: int) -> list[tuple[int, float]]:
    """The k best ``(id, logit)``; ties: lower id first; NaN and -inf never count."""
    counted = [(i, x) for i, x in enumerate(row) if not math.isnan(x) and x != -math.inf]
    best = sorted(counted, key=lambda entry: (-entry[1], entry[0]))[:k]
    return best + [(-1, -math.inf)] * (k - len(best))


def fill_tree(
    rows: Sequence[Sequence[int]],
    paths: Sequence[Sequence[int]],
    root: int,
    max_nodes: int,
    max_depth: int,
) -> tuple[Tree, list[tuple[int, ...]]]:
    """Nodes and their rank paths, the root's empty one included."""
    tree: Tree = [(root, -1)]
    known: dict[tuple[int, ...], int] = {(): 0}
    for path in sorted((tuple(p) for p in paths), key=lambda p: (len(p), p)):
        parent = known.get(path[:-1])
        if parent is None or len(path) > max_depth or len(tree) > max_nodes:
            continue
        token = rows[tree[parent][0]][path[-1]]
        if token >= 0:
            known[path] = len(tree)
            tree.append((token, parent))
    return tree, list(known)


def depths(tree: Tree) -> list[int]:
    """Depth of each node."""
    result: list[int] = []
    for _, parent in tree:
        result.append(0 if parent < 0 else result[parent] + 1)
    return result


def children(tree: Tree, node: int) -> list[int]:
    """Children in BFS order."""
    return [i for i, (_, parent) in enumerate(tree) if parent == node]


def depth_first(tree: Tree, node: int = 0) -> list[int]:
    """Nodes from ``node`` on in depth-first order, the first child first."""
    return [node] + [i for child in children(tree, node) for i in depth_first(tree, child)]


def lanes(tree: Tree) -> list[list[int]]:
    """Lanes of each node: the numbers, in depth-first order, of the leaves below it."""
    leaves = [i for i in depth_first(tree) if not children(tree, i)]
    return [
        [leaves.index(i) for i in depth_first(tree, n) if i in leaves] for n in range(len(tree))
    ]


def batch(chain: Sequence[int], n_past: int, tree: Tree) -> list[tuple[int, int, list[int], bool]]:
    """``(token, position, lanes, wants logits)`` of each token: the chain, then the tree."""
    of_node, depth = lanes(tree), depths(tree)
    front = [(token, n_past + i, of_node[0], False) for i, token in enumerate(chain)]
    start = n_past + len(chain)
    return front + [(tree[i][0], start + depth[i], of_node[i], True) for i in depth_first(tree)]


def find_child(tree: Tree, node: int, token: int) -> int:
    """First child of ``node`` with this token, or -1."""
    return next((i for i in children(tree, node) if tree[i][0] == token), -1)


def walk_greedy(tree: Tree, best: Sequence[int]) -> list[int]:
    """Accepted nodes below the root; ``best[i]`` is the model's choice after node i."""
    path: list[int] = []
    node = find_child(tree, 0, best[0])
    while node >= 0:
        path.append(node)
        node = find_child(tree, node, best[node])
    return path


def recycle(
    rows: list[list[int]], tokens: Sequence[int], nodes: Sequence[int], ids: Sequence[Sequence[int]]
) -> None:
    """Overwrite rows in BFS order; ``ids[i]`` are the best tokens after node i."""
    for node in sorted(nodes):
        rows[tokens[node]] = list(ids[node])[: len(rows[0])]
