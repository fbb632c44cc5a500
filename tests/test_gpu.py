"""What has to hold on a GPU of any make: ``pytest -m gpu``, skipped where llama.cpp sees none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_tr.config import ContextConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.decode.lanes import LaneCache
from edge_tr.doctor import findings
from edge_tr.doctor.measured_child import PROMPTS
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import CancelledError
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.equality import TextPair, compare_texts
from edge_tr.measuring.steps import measure_costs
from edge_tr.measuring.trial import Trial, random_text
from edge_tr.target import Batch, Float32

pytestmark = pytest.mark.gpu

CACHES = [(False, "f16"), (True, "f16"), (True, "q8_0")]
"""Flash attention, type of the cache."""
TREE = TreeTemplate.paper().prefix(15)


@pytest.fixture(scope="module")
def tiny(tiny_model: Callable[[str], Path]) -> Iterator[Model]:
    with Model(tiny_model("llama"), n_gpu_layers=-1) as model:
        yield model


@pytest.fixture(scope="module")
def real(smollm2_q4_0: Path) -> Iterator[Model]:
    with Model(smollm2_q4_0, n_gpu_layers=-1) as model:
        yield model


def config(**changes: Any) -> ContextConfig:
    return ContextConfig(**({"n_ctx": 1024} | changes))


@pytest.fixture
def target(tiny: Model) -> Iterator[LlamaTarget]:
    with LlamaTarget(tiny, config()) as target:
        yield target


@pytest.mark.model
def test_all_layers_are_on_the_gpu(smollm2_q4_0: Path) -> None:
    found = findings.report(smollm2_q4_0)
    names = {d["name"] for d in found["build"]["devices"] if "gpu" in d["type"]}
    assert found["model"]["layers"].keys() <= names


def test_the_doctor_has_nothing_to_say_about_the_gpu() -> None:
    found = findings.report()
    assert not [p for p in found["problems"] if "GPU" in p["what"] or "layers" in p["what"]]


def test_a_tree_gives_the_rows_of_its_paths(target: LlamaTarget) -> None:
    """Each node's row is, within rounding, that of its path decoded token by token."""
    trial = Trial(target, 16, *random_text(target))
    trial.read(40)
    trial.grow(16)
    trial.plant()
    draft, n_past = trial.draft, trial.lanes.n_past
    rows = target.decode(trial.batch).copy()
    batch, lanes = Batch(target.n_batch, target.n_lanes), LaneCache(target)
    for node in (0, 7, 15):
        path = [node]
        while path[0] > 0:
            path.insert(0, int(draft.parent[path[0]]))
        lanes.recover(n_past)
        for depth, ancestor in enumerate(path):
            batch.set_one(int(draft.token[ancestor]), n_past + depth)
            row = target.decode(batch)[0]
            lanes.extend(1)
        scale = float(np.abs(row).max())
        assert np.abs(row - rows[draft.slot[node]]).max() < 0.05 * scale


def test_costs_can_be_measured(target: LlamaTarget) -> None:
    table = measure_costs(target, max_width=8, budget_s=2.0)
    assert table.widths[-1] == 8


def test_a_long_prompt_is_cancelled_between_chunks(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp's abort callback is for the CPU; a GPU finishes the chunk it is at."""
    with LlamaTarget(tiny, config(n_batch=64)) as target:
        decoder, decode = Decoder(target), target.decode

        def cancel_and_decode(batch: Batch) -> Float32:
            decoder.cancel()
            return decode(batch)

        monkeypatch.setattr(target, "decode", cancel_and_decode)
        with pytest.raises(CancelledError):
            list(decoder.generate(np.zeros(500, dtype=np.int32), max_tokens=4))
        assert decoder.n_past <= 64


@pytest.mark.model
@pytest.mark.parametrize(("flash_attn", "cache"), CACHES)
def test_drafted_texts_differ_by_rounding_alone(real: Model, flash_attn: bool, cache: str) -> None:
    context = config(flash_attn=flash_attn, type_k=cache, type_v=cache)
    with LlamaTarget(real, context) as target:
        drafter = FixedTreeDrafter(AdjacencyMatrix(target.n_vocab, 8), TREE)
        prompts = [real.tokenize(text) for text in PROMPTS]
        texts = []
        for decoder in (Decoder(target), Decoder(target, drafter)):
            for prompt in prompts:
                for _ in decoder.generate(prompt, max_tokens=64):
                    pass
                texts.append(decoder.tokens[len(prompt) :].tolist())
        pairs = [
            TextPair(str(i), prompt, texts[i], texts[len(prompts) + i])
            for i, prompt in enumerate(prompts)
        ]
        report = compare_texts(target, pairs, widths=[2, 4, 8, TREE.n_nodes + 1])
    assert report.violations == ()
