"""A kernel compiles again, silently, when a dtype or a layout drifts; each must do so once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numba
import pytest

USE_EVERYTHING = """
import json

import numpy as np
from drafters import OracleDrafter
from fake_target import FakeTarget, HashModel

from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import CostTable
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.decode.decoder import Decoder
from edge_tr.kernels import candidates, matches, topk, tree
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.history import History
from samplers import TemperatureSampler
from edge_tr.decode.topk import TopK
from edge_tr.drafts.template import TreeTemplate

model = HashModel(30)
target = FakeTarget(model, n_ctx=200, n_batch=8, n_lanes=40)
for k, template in ((1, TreeTemplate.from_breadths([1, 1])), (8, TreeTemplate.paper())):
    for update in ("all", "accepted"):
        matrix = AdjacencyMatrix.random(30, k)
        drafter = FixedTreeDrafter(matrix, template, update=update, harvest=True)
        decoder = Decoder(target, drafter, n_threads=2)
        for sampler in (None, TemperatureSampler(1.0, 0)):
            for prompt in ([1], np.arange(20)):
                list(decoder.generate(prompt, sampler=sampler, max_tokens=60))
list(Decoder(target).generate([1, 2, 3]))
flat = CostTable((1, 9), (0,), ((1.0, 1.1),))
for n_pairs in (0, 1 << 10):
    for costs in (None, StepCosts(flat, 9)):
        learned = Candidates(AdjacencyMatrix(30, 4), n_pairs=n_pairs)
        recycler = GrownTreeDrafter(
            learned, n_ctx=200, costs=costs, max_nodes=8, max_lanes=8, history=History(500)
        )
        recycler.compile()
        for _ in range(2):
            list(Decoder(target, recycler, costs=costs).generate(np.arange(20), max_tokens=100))
        Candidates(learned.matrix, n_pairs=1 << 10).load_arrays(learned.to_arrays())
TopK(8, 3)(np.zeros((5, 1 << 18), dtype=np.float32))
kernels = {
    name: value
    for module in (candidates, matches, topk, tree)
    for name, value in vars(module).items()
    if hasattr(value, "signatures")
}
print(json.dumps({name: [str(s) for s in kernel.signatures] for name, kernel in kernels.items()}))
"""


# Called from Python; what kernels call is compiled for each kind of call.
CALLED = [
    *("topk_rows", "fill_tree", "plan_batch", "fill_batch", "walk_greedy", "find_child"),
    *("recycle", "grow_tree", "learn_step", "recycle_rows", "insert_pairs"),
    *("extend", "index_history", "holds_text"),
]

pytestmark = pytest.mark.skipif(
    bool(numba.config.DISABLE_JIT), reason="nothing is compiled with the JIT off"
)


def test_each_kernel_has_one_signature_after_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", USE_EVERYTHING],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    signatures = json.loads(done.stdout)
    counts = {name: len(found) for name, found in signatures.items()}
    assert {name: counts[name] for name in CALLED} == dict.fromkeys(CALLED, 1)


NOWHERE_TO_CACHE = """
from numba.core import caching


def refuse(self):
    raise OSError("read-only")


caching._CacheLocator.ensure_cache_path = refuse
from edge_tr.kernels import CACHE, topk, tree
from edge_tr.llama import target

print(CACHE)
"""


def test_kernels_compile_where_no_directory_can_be_written() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOWHERE_TO_CACHE], capture_output=True, text=True, check=False
    )
    assert done.stdout == "False\n", done.stderr
