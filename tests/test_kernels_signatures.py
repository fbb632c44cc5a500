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

from edge_tr.adjacency import AdjacencyMatrix
from edge_tr.draft import RecyclingDrafter
from edge_tr.generate import Decoder
from edge_tr.kernels import topk, tree
from edge_tr.sampling import TemperatureSampler
from edge_tr.topk import TopK
from edge_tr.tree import TreeTemplate

model = HashModel(30)
target = FakeTarget(model, n_ctx=200, n_batch=8, n_lanes=40)
for k, template in ((1, TreeTemplate.from_breadths([1, 1])), (8, TreeTemplate.paper())):
    for update in ("all", "accepted"):
        matrix = AdjacencyMatrix.random(30, k)
        drafter = RecyclingDrafter(matrix, template, update=update, harvest=True)
        decoder = Decoder(target, drafter, n_threads=2)
        for sampler in (None, TemperatureSampler(1.0, 0)):
            for prompt in ([1], np.arange(20)):
                list(decoder.generate(prompt, sampler=sampler, max_tokens=60))
list(Decoder(target).generate([1, 2, 3]))
TopK(8, 3)(np.zeros((5, 1 << 18), dtype=np.float32))
kernels = {
    name: value
    for module in (topk, tree)
    for name, value in vars(module).items()
    if hasattr(value, "signatures")
}
print(json.dumps({name: [str(s) for s in kernel.signatures] for name, kernel in kernels.items()}))
"""


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
    kernels = ["topk_rows", "fill_tree", "plan_batch", "fill_batch", "walk_greedy", "find_child"]
    counts = {name: len(found) for name, found in signatures.items()}
    assert counts == dict.fromkeys([*kernels, "recycle"], 1)


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
