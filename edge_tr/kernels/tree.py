"""Fill a draft tree, lay it out as a batch, walk it, recycle its nodes.

A draft tree of ``n`` nodes, root included, is a set of arrays in BFS order: ``token[i]``,
``parent[i] < i`` and ``depth[i]``; node 0 is the root, with parent -1 and depth 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from edge_tr.kernels import CACHE

Array = np.ndarray[Any, Any]


@njit(cache=CACHE, nogil=True)
def fill_tree(
    rows: Array,
    template_parent: Array,
    template_rank: Array,
    max_nodes: int,
    max_depth: int,
    token: Array,
    parent: Array,
    depth: Array,
    node_of: Array,
) -> int:
    """Read a draft tree off the adjacency matrix, layer by layer.

    A node whose candidate is -1 is left out, and everything below it.

    Parameters
    ----------
    rows : int32[n_vocab, k], read only; -1 = no candidate.
    template_parent, template_rank : int32[n_template], BFS order, entry 0 is the root.
    max_nodes : most nodes below the root; the first ones in BFS order are taken.
    max_depth : nodes deeper than this are left out.
    token, parent, depth : int32[>= n_template], written; ``token[0]`` is the root, read.
    node_of : int32[>= n_template], scratch: draft node of each template node, or -1.

    Returns
    -------
    Number of nodes, root included.
    """
    parent[0] = -1
    depth[0] = 0
    node_of[0] = 0
    n = 1
    for i in range(1, template_parent.shape[0]):
        node_of[i] = -1
        p = node_of[template_parent[i]]
        if p < 0 or depth[p] >= max_depth or n > max_nodes:
            continue
        t = rows[token[p], template_rank[i]]
        if t < 0:
            continue
        token[n] = t
        parent[n] = p
        depth[n] = depth[p] + 1
        node_of[i] = n
        n += 1
    return n


@njit(cache=CACHE, nogil=True)
def plan_batch(
    parent: Array, n: int, slot: Array, lane_first: Array, lane_last: Array, scratch: Array
) -> int:
    """Give each node its place in the batch (depth first) and its lanes.

    Leaves are numbered in depth-first order, so the lanes of a node are the range
    ``lane_first <= lane < lane_last`` of the leaves below it, and the first path of the tree
    has lane 0. Children keep their BFS order: the first child is the most probable one.

    Parameters
    ----------
    parent : int32[>= n], BFS order.
    slot, lane_first, lane_last : int32[>= n], written per node. ``slot`` counts from 0 at the
        root; a permutation of ``range(n)``.
    scratch : int32[2, >= n], overwritten.

    Returns
    -------
    Number of lanes.
    """
    n_below = scratch[0]
    n_leaves = scratch[1]
    for i in range(n):
        n_below[i] = 1
        n_leaves[i] = 0
    for i in range(n - 1, -1, -1):
        if n_leaves[i] == 0:
            n_leaves[i] = 1
        if i > 0:
            n_below[parent[i]] += n_below[i]
            n_leaves[parent[i]] += n_leaves[i]
    slot[0] = 0
    lane_first[0] = 0
    lane_last[0] = n_leaves[0]
    n_lanes = n_leaves[0]
    # From here on the scratch rows hold the next free slot and lane below each node.
    n_below[0] = 1
    n_leaves[0] = 0
    for i in range(1, n):
        p = parent[i]
        slot[i] = n_below[p]
        lane_first[i] = n_leaves[p]
        n_below[p] += n_below[i]
        n_leaves[p] += n_leaves[i]
        lane_last[i] = n_leaves[p]
        n_below[i] = slot[i] + 1
        n_leaves[i] = lane_first[i]
    return int(n_lanes)


@njit(cache=CACHE, nogil=True)
def fill_batch(
    chain: Array,
    n_chain: int,
    n_past: int,
    token: Array,
    depth: Array,
    slot: Array,
    lane_first: Array,
    lane_last: Array,
    n: int,
    lane_ids_address: int,
    batch_token: Array,
    batch_pos: Array,
    batch_n_lanes: Array,
    batch_lanes: Array,
    batch_logits: Array,
) -> None:
    """Write one llama.cpp batch: the chain in front, then the tree depth first.

    Parameters
    ----------
    chain : int32[>= n_chain]; committed tokens without cells, the root excluded. They carry
        all lanes and ask for no logits.
    n_past : position of the first token of the batch.
    token, depth, slot, lane_first, lane_last : int32[>= n], the draft tree and its plan.
    lane_ids_address : address of an int32 array 0, 1, 2, ...
    batch_token, batch_pos, batch_n_lanes : int32[>= n_chain + n], written.
    batch_lanes : int64[>= n_chain + n], written; address of each token's first lane id.
    batch_logits : int8[>= n_chain + n], written; 1 for every node of the tree.
    """
    for i in range(n_chain):
        batch_token[i] = chain[i]
        batch_pos[i] = n_past + i
        batch_n_lanes[i] = lane_last[0]
        batch_lanes[i] = lane_ids_address
        batch_logits[i] = 0
    for i in range(n):
        j = n_chain + slot[i]
        batch_token[j] = token[i]
        batch_pos[j] = n_past + n_chain + depth[i]
        batch_n_lanes[j] = lane_last[i] - lane_first[i]
        batch_lanes[j] = lane_ids_address + 4 * int(lane_first[i])
        batch_logits[j] = 1


@njit(cache=CACHE, nogil=True)
def walk_greedy(
    token: Array, parent: Array, slot: Array, n: int, ids: Array, accepted: Array
) -> int:
    """Follow the target model's own choices from the root as far as the tree goes.

    Parameters
    ----------
    token, parent, slot : int32[>= n], the draft tree and its plan.
    ids : int32[>= n, k]; row ``slot[i]`` holds the best tokens after node i, best first.
    accepted : int32[>= n], written: the nodes of the accepted path below the root. Where two
        siblings hold the same token the first one is taken.

    Returns
    -------
    Number of accepted nodes.
    """
    current = 0
    n_accepted = 0
    i = 1
    while i < n:
        if parent[i] == current and token[i] == ids[slot[current], 0]:
            accepted[n_accepted] = i
            n_accepted += 1
            current = i
        i += 1
    return n_accepted


@njit(cache=CACHE, nogil=True)
def find_child(token: Array, parent: Array, n: int, node: int, wanted: int) -> int:
    """First child of ``node`` that holds the token ``wanted``, or -1."""
    for i in range(node + 1, n):
        if parent[i] == node and token[i] == wanted:
            return i
    return -1


@njit(cache=CACHE, nogil=True)
def recycle(rows: Array, token: Array, slot: Array, nodes: Array, n: int, ids: Array) -> None:
    """Overwrite the row of each node's token with the target model's best tokens there.

    Parameters
    ----------
    rows : int32[n_vocab, k], written.
    token, slot : int32[...], the draft tree and its plan.
    nodes : int32[>= n], the nodes to recycle in BFS order; of repeated tokens the last wins.
    ids : int32[>= n, >= k]; row ``slot[i]`` belongs to node i.
    """
    k = rows.shape[1]
    for m in range(n):
        i = nodes[m]
        t = token[i]
        s = slot[i]
        for j in range(k):
            rows[t, j] = ids[s, j]
