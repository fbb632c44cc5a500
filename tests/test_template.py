from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import ConfigError


def test_the_papers_tree_has_its_published_sizes() -> None:
    paper = TreeTemplate.paper()
    levels = Counter(len(path) for path in paper.paths)
    assert [levels[depth] for depth in range(1, 7)] == [8, 21, 25, 15, 8, 3]
    assert (paper.n_nodes, paper.n_leaves, paper.max_depth, paper.n_ranks) == (80, 40, 6, 8)


def test_the_papers_tree_is_the_published_one() -> None:
    published = json.loads(Path(__file__).with_name("paper_tree.json").read_text())
    assert [list(path) for path in TreeTemplate.paper().paths] == published["paths"]


def test_nodes_stand_in_bfs_order_whatever_order_they_are_given_in() -> None:
    tree = TreeTemplate([(1, 0), (0, 2), (1,), (0, 0), (0,), (0, 0, 3)])
    assert tree.paths == ((0,), (1,), (0, 0), (0, 2), (1, 0), (0, 0, 3))
    assert tree.parent.tolist() == [-1, 0, 0, 1, 1, 2, 3]
    assert tree.rank.tolist() == [0, 0, 1, 0, 2, 0, 3]
    assert (tree.n_nodes, tree.n_leaves, tree.max_depth, tree.n_ranks) == (6, 3, 3, 4)


def test_an_empty_template_is_one_lane_without_nodes() -> None:
    tree = TreeTemplate([])
    assert (tree.n_nodes, tree.n_leaves, tree.max_depth, tree.n_ranks) == (0, 1, 0, 1)


def test_from_breadths() -> None:
    assert TreeTemplate.from_breadths([2, 1]).paths == ((0,), (1,), (0, 0), (1, 0))
    assert TreeTemplate.from_breadths([1, 1, 1]).n_leaves == 1
    assert TreeTemplate.from_breadths([]) == TreeTemplate([])


@pytest.mark.parametrize("n", [0, 1, 7, 80, 99])
def test_a_prefix_is_a_tree_again(n: int) -> None:
    assert TreeTemplate.paper().prefix(n).paths == TreeTemplate.paper().paths[:n]


def test_equal_paths_make_equal_templates() -> None:
    a, b = TreeTemplate([(0,), (1,)]), TreeTemplate([(1,), (0,)])
    assert a == b
    assert hash(a) == hash(b)
    assert a != TreeTemplate([(0,)])
    assert repr(a) == "TreeTemplate(2 nodes, 2 leaves, depth 1)"


def test_arrays_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        TreeTemplate.paper().parent[0] = 1


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([()], "empty path"),
        ([(0,), (0,)], "stands twice"),
        ([(0,), (1, 0)], r"\[1\] is missing"),
        ([(16,)], "must be 0 to 15"),
        ([(-1,)], "must be 0 to 15"),
        ([(0.5,)], "not a whole number"),
        ([(True,)], "not a whole number"),
        (["0"], "not a whole number"),
    ],
)
def test_a_bad_path_is_refused(paths: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TreeTemplate(paths)


@pytest.mark.parametrize("breadths", [[0], [17], [-1], [16, 16, 16, 16]])
def test_bad_breadths_are_refused(breadths: list[int]) -> None:
    with pytest.raises(ConfigError, match="breadth"):
        TreeTemplate.from_breadths(breadths)


def test_more_leaves_than_llama_cpp_has_sequences_are_refused() -> None:
    assert TreeTemplate.from_breadths([16, 16]).n_leaves == 256
    with pytest.raises(ConfigError, match="512 leaves"):
        TreeTemplate.from_breadths([16, 16, 2])
