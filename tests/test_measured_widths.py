from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_target import FakeTarget, HashModel

from edge_tr.config import ContextConfig
from edge_tr.errors import ConfigError
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.widths import probe_widths
from edge_tr.target import Batch, Float32


class Rounding(FakeTarget):
    """Rounds one logit otherwise in batches that ``differs`` picks, by width and position."""

    differs: Callable[[Batch], bool] = staticmethod(lambda batch: False)

    def decode(self, batch: Batch) -> Float32:
        rows = super().decode(batch)
        if len(rows) > 1 and self.differs(batch):
            rows[:, 3] = np.nextafter(rows[:, 3], np.float32(9))
        return rows


def probed(differs: Callable[[Batch], bool], **sizes: int) -> tuple[int, int]:
    sizes = {"n_ctx": 256, "n_batch": 64} | sizes
    target = Rounding(HashModel(memory=None), **sizes)  # type: ignore[arg-type]
    target.differs = differs
    probe = probe_widths(target, max_width=12, contexts=(20, 100))
    assert (target.pos == -1).all()
    return probe.chain_width, probe.tree_width


def test_where_every_batch_is_equal_every_width_is() -> None:
    assert probed(lambda batch: False) == (12, 12)


@pytest.mark.parametrize("width", [2, 3, 7, 12])
def test_the_widest_equal_width_is_found(width: int) -> None:
    assert probed(lambda batch: batch.n >= width) == (width - 1, width - 1)


def test_a_width_counts_only_if_all_below_it_are_equal() -> None:
    assert probed(lambda batch: batch.n == 4) == (3, 3)


def test_a_difference_behind_a_long_past_counts() -> None:
    assert probed(lambda batch: batch.n > 5 and batch.pos[0] >= 100) == (5, 5)


def test_trees_may_be_less_equal_than_chains() -> None:
    assert probed(lambda batch: batch.n > 2 and batch.n_lanes[0] > 1) == (12, 2)


def test_a_target_with_one_lane_has_no_trees() -> None:
    assert probed(lambda batch: False, n_lanes=1) == (12, 1)


@pytest.mark.parametrize("max_width", [0, 1, 65, 1000])
def test_a_width_that_does_not_fit_is_refused(max_width: int) -> None:
    with pytest.raises(ConfigError, match=f"max_width {max_width} is not allowed"):
        probe_widths(FakeTarget(n_ctx=300, n_batch=64), max_width=max_width)


def test_a_context_shorter_than_the_probes_is_probed_as_far_as_it_goes() -> None:
    probe = probe_widths(FakeTarget(n_ctx=64), max_width=8)
    assert probe.contexts == (32, 55)


def test_a_real_context_is_probed_and_left_empty(tiny_model: Callable[[str], Path]) -> None:
    config = ContextConfig(
        n_ctx=1024, n_threads=1, n_threads_batch=1, flash_attn=True, type_k="q8_0", type_v="q8_0"
    )
    with Model(tiny_model("llama")) as model, LlamaTarget(model, config) as target:
        probe = probe_widths(target)
        assert (probe.chain_width, probe.tree_width) == (16, 16)
        batch = Batch(1, 1)
        batch.set_chain(np.array([5], dtype=np.int32), 0, want_rows=1)
        target.decode(batch)
