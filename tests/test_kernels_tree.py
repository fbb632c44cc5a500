from __future__ import annotations

from collections.abc import Sequence

import naive
import numpy as np
import pytest

from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.draft import Draft
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.kernels import tree as kernels
from edge_tr.target import Batch

SEEDS = range(40)
TEMPLATES = {
    "paper": TreeTemplate.paper(),
    "small": TreeTemplate([(0,), (1,), (0, 0)]),
    "chain": TreeTemplate.from_breadths([1] * 9),
    "wide": TreeTemplate.from_breadths([16]),
    "bushy": TreeTemplate.from_breadths([3, 2, 2]),
    "high ranks": TreeTemplate([(7,), (7, 3), (2,), (2, 5), (2, 5, 1)]),
    "nothing": TreeTemplate([]),
}


def random_tree(rng: np.random.Generator, n: int, n_vocab: int = 5) -> naive.Tree:
    """A tree of n nodes in BFS order; few tokens, so that siblings and strangers repeat."""
    parents = sorted(int(rng.integers(0, i + 1)) for i in range(n - 1))
    tokens = rng.integers(0, n_vocab, n).tolist()
    return list(zip(tokens, [-1, *parents], strict=True))


def as_draft(tree: naive.Tree) -> Draft:
    draft = Draft(len(tree) + 2)
    draft.n = len(tree)
    draft.token[: draft.n], draft.parent[: draft.n] = np.array(tree, dtype=np.int32).T
    draft.depth[: draft.n] = naive.depths(tree)
    draft.plan()
    return draft


def as_tree(draft: Draft) -> naive.Tree:
    pairs = zip(draft.token[: draft.n], draft.parent[: draft.n], strict=True)
    return [(int(t), int(p)) for t, p in pairs]


def shapes() -> list[naive.Tree]:
    chain = [(i, i - 1) for i in range(10)]
    star = [(0, -1)] + [(i, 0) for i in range(1, 17)]
    return [[(3, -1)], chain, star, [(0, -1), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 3)]]


def every_tree() -> list[naive.Tree]:
    return shapes() + [random_tree(np.random.default_rng(s), 1 + s) for s in SEEDS]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("seed", range(6))
def test_fill_tree(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    template = TEMPLATES[name]
    matrix = AdjacencyMatrix.random(12, 16, seed=seed)
    matrix.rows[rng.random(matrix.rows.shape) < 0.1 * seed] = -1
    drafter = FixedTreeDrafter(matrix, template)
    for max_nodes in (0, 1, 2, template.n_nodes // 2, template.n_nodes):
        for max_depth in (0, 1, 2, 99):
            draft = Draft(template.n_nodes)
            draft.reset(int(rng.integers(12)), n_past=0)
            drafter.propose(draft, max_nodes=max_nodes, max_depth=max_depth)
            tree, _ = naive.fill_tree(
                matrix.rows.tolist(), template.paths, int(draft.token[0]), max_nodes, max_depth
            )
            assert as_tree(draft) == tree
            assert draft.depth[: draft.n].tolist() == naive.depths(tree)


def test_fill_tree_drafts_nothing_from_an_empty_matrix() -> None:
    draft = Draft(80)
    drafter = FixedTreeDrafter(AdjacencyMatrix(5, 8), TreeTemplate.paper())
    drafter.propose(draft, max_nodes=80, max_depth=80)
    assert draft.n == 1


def test_a_missing_candidate_takes_everything_below_it_away() -> None:
    matrix = AdjacencyMatrix(4, 2)
    matrix.set_row(0, np.array([-1, 2], dtype=np.int32))
    matrix.set_row(2, np.array([3], dtype=np.int32))
    draft = Draft(6)
    FixedTreeDrafter(matrix, TreeTemplate.from_breadths([2, 2])).propose(
        draft, max_nodes=6, max_depth=6
    )
    assert as_tree(draft) == [(0, -1), (2, 0), (3, 1)]


@pytest.mark.parametrize("tree", every_tree())
def test_plan_batch(tree: naive.Tree) -> None:
    draft = as_draft(tree)
    in_batch_order = sorted(range(draft.n), key=lambda i: int(draft.slot[i]))
    assert in_batch_order == naive.depth_first(tree)
    lanes = [
        list(range(*span))
        for span in zip(draft.lane_first[: draft.n], draft.lane_last[: draft.n], strict=True)
    ]
    assert lanes == naive.lanes(tree)
    assert draft.n_lanes == len(lanes[0])


@pytest.mark.parametrize("n_chain", [0, 1, 5])
@pytest.mark.parametrize("tree", every_tree()[::3])
def test_fill_batch(tree: naive.Tree, n_chain: int) -> None:
    draft = as_draft(tree)
    draft.n_past, draft.n_front = 1000, n_chain + 1
    batch = Batch(n_chain + draft.n, draft.n_lanes)
    chain = np.arange(50, 50 + n_chain + 1, dtype=np.int32)
    draft.fill(batch, chain)
    written = [
        (int(batch.token[i]), int(batch.pos[i]), list(batch.lanes_of(i)), bool(batch.logits[i]))
        for i in range(batch.n)
    ]
    assert written == naive.batch(chain[:n_chain].tolist(), 1000, tree)


def rows_of(draft: Draft, by_node: Sequence[Sequence[int]]) -> np.ndarray:
    """Rows in batch order, as the target returns them, from rows by node."""
    rows = np.zeros((draft.n, len(by_node[0])), dtype=np.int32)
    for node in range(draft.n):
        rows[draft.slot[node]] = by_node[node]
    return rows


@pytest.mark.parametrize("tree", every_tree())
def test_walk_greedy(tree: naive.Tree) -> None:
    draft = as_draft(tree)
    accepted = np.zeros(draft.n, dtype=np.int32)
    for seed in range(10):
        best = np.random.default_rng(seed).integers(-1, 5, (draft.n, 2)).tolist()
        n = kernels.walk_greedy(
            draft.token, draft.parent, draft.slot, draft.n, rows_of(draft, best), accepted
        )
        assert accepted[:n].tolist() == naive.walk_greedy(tree, [row[0] for row in best])


def test_walk_greedy_accepts_a_whole_chain() -> None:
    tree = [(i, i - 1) for i in range(10)]
    draft = as_draft(tree)
    accepted = np.zeros(10, dtype=np.int32)
    ids = np.arange(1, 11, dtype=np.int32).reshape(10, 1)
    n = kernels.walk_greedy(draft.token, draft.parent, draft.slot, 10, ids, accepted)
    assert accepted[:n].tolist() == list(range(1, 10))


@pytest.mark.parametrize("tree", every_tree()[::4])
def test_find_child(tree: naive.Tree) -> None:
    draft = as_draft(tree)
    for node in range(draft.n):
        for token in range(-1, 7):
            found = kernels.find_child(draft.token, draft.parent, draft.n, node, token)
            assert found == naive.find_child(tree, node, token)


@pytest.mark.parametrize("update", ["all", "accepted"])
@pytest.mark.parametrize("tree", every_tree()[::2])
def test_recycle(tree: naive.Tree, update: str) -> None:
    draft = as_draft(tree)
    rng = np.random.default_rng(len(tree))
    matrix = AdjacencyMatrix(20, 3)
    expected = matrix.rows.tolist()
    by_node = rng.integers(-1, 20, (draft.n, 3)).tolist()
    path = naive.walk_greedy(tree, [row[0] for row in by_node])
    drafter = FixedTreeDrafter(matrix, TreeTemplate([]), update=update)  # type: ignore[arg-type]
    drafter.learn(
        draft,
        rows_of(draft, by_node),
        np.zeros((draft.n, 3), dtype=np.float32),
        np.array(path, dtype=np.int32),
        [0],
    )
    nodes = list(range(draft.n)) if update == "all" else [0, *path]
    naive.recycle(expected, [token for token, _ in tree], nodes, by_node)
    assert matrix.rows.tolist() == expected


def test_of_repeated_tokens_the_last_node_in_bfs_order_wins() -> None:
    # The batch is depth first: root, 1, 3, 2, so that node 3 stands before node 2 there.
    draft = as_draft([(9, -1), (1, 0), (7, 0), (7, 1)])
    assert draft.slot[:4].tolist() == [0, 1, 3, 2]
    rows = np.full((10, 1), -1, dtype=np.int32)
    ids = rows_of(draft, [[0], [1], [2], [3]])
    kernels.recycle(rows, draft.token, draft.slot, draft.all_nodes, draft.n, ids)
    assert rows[7, 0] == 3


def test_learning_from_a_prompt_keeps_the_last_of_repeated_tokens() -> None:
    matrix = AdjacencyMatrix(6, 2)
    drafter = FixedTreeDrafter(matrix, TreeTemplate([]), harvest=True)
    ids = np.array([[1, 2], [3, 4], [5, 0]], dtype=np.int32)
    values = np.zeros((3, 2), dtype=np.float32)
    drafter.learn_prompt(np.array([4, 2, 4], dtype=np.int32), ids, values)
    assert matrix.rows[[2, 4]].tolist() == [[3, 4], [5, 0]]
