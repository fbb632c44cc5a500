"""REST: the datastore's sorted suffixes and the trees drafted from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edge_tr.bench.rest import Datastore, RestDrafter, read_texts
from edge_tr.drafts.draft import Draft
from edge_tr.errors import ConfigError
from edge_tr.target import Int32


def ints(*values: int) -> Int32:
    return np.array(values, dtype=np.int32)


def drafted(store: Datastore, last: list[int], max_nodes: int = 8, max_depth: int = 8) -> Draft:
    """The draft behind a text."""
    drafter = RestDrafter(store, 16, max_nodes=8)
    drafter.begin(ints(*last))
    draft = Draft(8)
    draft.reset(last[-1], n_past=len(last) - 1)
    drafter.propose(draft, max_nodes=max_nodes, max_depth=max_depth)
    return draft


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """The token path of each node."""
    found: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(1, draft.n):
        found[node] = (*found[int(draft.parent[node])], int(draft.token[node]))
    return set(found.values()) - {()}


def test_suffixes_stand_in_the_order_of_their_tokens() -> None:
    tokens = np.random.default_rng(0).integers(0, 3, 200).astype(np.int32)
    suffixes = [tokens[place : place + 32].tolist() for place in Datastore(tokens).suffixes]
    assert suffixes == sorted(suffixes)


def test_every_place_of_a_pattern_is_found() -> None:
    tokens = np.random.default_rng(1).integers(0, 4, 300).astype(np.int32)
    store = Datastore(tokens)
    first, last = store.find([2, 1, 3])
    places = [i for i in range(298) if tokens[i : i + 3].tolist() == [2, 1, 3]]
    assert sorted(store.suffixes[first:last].tolist()) == places


def test_an_unknown_pattern_has_no_place() -> None:
    first, last = Datastore(ints(1, 2, 3)).find([2, 2])
    assert first == last


def test_the_most_frequent_continuation_comes_first() -> None:
    store = Datastore(ints(1, 2, 5, 0, 1, 2, 6, 0, 1, 2, 6, 0))
    assert paths(drafted(store, [1, 2], max_nodes=1)) == {(6,)}


def test_a_tree_branches_where_the_datastore_does() -> None:
    store = Datastore(ints(1, 2, 5, 7, 1, 2, 6, 8, 1, 2, 6, 9))
    assert paths(drafted(store, [1, 2], max_depth=2)) == {(5,), (6,), (5, 7), (6, 8), (6, 9)}


def test_the_longest_suffix_decides() -> None:
    store = Datastore(ints(4, 1, 2, 5, 0, 3, 1, 2, 6, 0, 3, 1, 2, 6, 0))
    assert (5,) in paths(drafted(store, [4, 1, 2], max_depth=1))
    assert (6,) not in paths(drafted(store, [4, 1, 2], max_depth=1))


def test_nodes_stand_in_bfs_order() -> None:
    tokens = np.random.default_rng(2).integers(0, 3, 300).astype(np.int32)
    draft = drafted(Datastore(tokens), [1, 2])
    assert draft.n == 9
    depth = draft.depth[: draft.n]
    assert (np.diff(depth) >= 0).all()
    assert (depth[1:] == depth[draft.parent[1 : draft.n]] + 1).all()


def test_one_token_alone_is_not_looked_up() -> None:
    assert drafted(Datastore(ints(1, 2, 1, 2)), [2, 1][1:]).n == 1


def test_what_was_accepted_is_looked_up_next() -> None:
    drafter = RestDrafter(Datastore(ints(1, 2, 3, 4)), 16)
    drafter.begin(ints(9, 1))
    draft = Draft(8)
    draft.reset(1, n_past=1)
    drafter.learn(draft, ints(), np.zeros(0, dtype=np.float32), ints(), [2])
    draft.reset(2, n_past=2)
    drafter.propose(draft, max_nodes=1, max_depth=1)
    assert paths(draft) == {(3,)}


def test_every_string_of_a_jsonl_line_is_one_text(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    lines = [{"turns": ["a", "b"], "id": 3}, {"text": "c"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert list(read_texts(file)) == ["a\nb", "c"]


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.txt"):
        list(read_texts(tmp_path / "nothing.txt"))
