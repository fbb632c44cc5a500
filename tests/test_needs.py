"""What opening a model takes, against what llama.cpp then says, and what cannot fit."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.doctor import findings
from edge_tr.doctor import text as doctor_text
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import ModelLoadError
from edge_tr.gguf_file.info import inspect
from edge_tr.machine import facts
from edge_tr.models.hybrids import HYBRIDS
from edge_tr.needs import memory_needs, require_fit, told
from edge_tr.session import Session

TinyModel = Callable[[str], Path]
PLAIN = DraftConfig(speculative="off", start="empty")
CONTEXTS = [
    {},
    {"n_ctx": 1000},
    {"n_ctx": 4096, "flash_attn": True, "type_k": "q8_0", "type_v": "q8_0"},
    {"n_ctx": 2048, "type_k": "f32", "type_v": "f32", "n_ubatch": 64},
]


class Log(logging.Handler):
    """Sizes of the buffers that llama.cpp tells of."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[str, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        found = re.search(r"(KV|RS|compute|output) buffer size = *([0-9.]+) MiB", line)
        if found:
            self.sizes.append((found[1], float(found[2])))

    def bytes_of(self, kind: str) -> float:
        return sum(size for name, size in self.sizes if name == kind) * 2**20


@pytest.fixture
def log() -> Iterator[Log]:
    handler, logger = Log(), logging.getLogger("edge_tr.llama")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "gemma3", "mixtral"])
@pytest.mark.parametrize("options", CONTEXTS)
def test_the_cache_is_as_large_as_it_was_told(
    tiny_model: TinyModel, log: Log, arch: str, options: dict[str, Any]
) -> None:
    context = ContextConfig(n_threads=1, n_threads_batch=1, **options)
    needs = memory_needs(inspect(tiny_model(arch)), context, PLAIN)
    with Session(tiny_model(arch), context=context, draft=PLAIN):
        assert log.bytes_of("KV") == pytest.approx(needs.cache_bytes, abs=30_000, rel=0.002)


CHAIN = TreeTemplate.from_breadths([1] * 3)
FORCED = DraftConfig(speculative=CHAIN, start="empty")


@pytest.mark.parametrize(
    ("draft", "n_snapshots", "expected"),
    [(PLAIN, None, 0), (PLAIN, 5, 5), (FORCED, None, 3), (FORCED, 2, 2)],
)
@pytest.mark.parametrize("arch", HYBRIDS)
def test_the_state_is_as_large_as_it_was_told_with_its_snapshots(
    tiny_model: TinyModel,
    log: Log,
    arch: str,
    draft: DraftConfig,
    n_snapshots: int | None,
    expected: int,
) -> None:
    context = ContextConfig(n_threads=1, n_threads_batch=1, n_snapshots=n_snapshots)
    info = inspect(tiny_model(arch))
    needs = memory_needs(info, context, draft)
    copy_bytes = 4 * info.n_state_values
    assert needs.state_bytes == copy_bytes * (2 + expected)
    with Session(tiny_model(arch), context=context, draft=draft) as session:
        assert session.target.n_rewind == expected
        assert log.bytes_of("RS") == pytest.approx(needs.state_bytes - copy_bytes, abs=6000)
        assert log.bytes_of("KV") == pytest.approx(needs.cache_bytes, abs=30_000, rel=0.002)


@pytest.mark.parametrize("arch", ["mamba", "jamba"])
def test_a_state_that_cannot_be_rewound_has_no_snapshots(
    tiny_model: TinyModel, log: Log, arch: str
) -> None:
    context = ContextConfig(n_threads=1, n_threads_batch=1)
    needs = memory_needs(inspect(tiny_model(arch)), context, DraftConfig())
    with Session(tiny_model(arch), context=context, draft=PLAIN):
        assert log.bytes_of("RS") == pytest.approx(needs.state_bytes / 2, abs=6000)
        assert log.bytes_of("KV") == pytest.approx(needs.cache_bytes, abs=30_000)


@pytest.mark.parametrize(
    ("n_values", "size_bytes", "n_snapshots"),
    [(1000, 1 << 20, 7), (4 << 20, 1 << 20, 4), (4 << 20, 1 << 30, 7), (32 << 20, 1 << 30, 2)],
)
def test_automatic_mode_may_make_as_many_snapshots_as_are_counted(
    tiny_model: TinyModel, n_values: int, size_bytes: int, n_snapshots: int
) -> None:
    """64 MiB of them, or a quarter of the model, and at most seven."""
    info = replace(inspect(tiny_model("lfm2")), n_state_values=n_values, size_bytes=size_bytes)
    needs = memory_needs(info, ContextConfig(), DraftConfig())
    assert needs.state_bytes == 4 * n_values * (2 + n_snapshots)
    assert "recurrent state" in told(needs)


@pytest.mark.model
@pytest.mark.parametrize("options", CONTEXTS)
def test_the_buffers_of_a_real_model(smollm2_q4_0: Path, log: Log, options: dict[str, Any]) -> None:
    context = ContextConfig(n_threads=1, n_threads_batch=1, **options)
    needs = memory_needs(inspect(smollm2_q4_0), context, PLAIN)
    with Session(smollm2_q4_0, context=context, draft=PLAIN):
        assert log.bytes_of("KV") == pytest.approx(needs.cache_bytes, rel=0.002)
        assert log.bytes_of("compute") == pytest.approx(needs.compute_bytes, rel=0.2)
        assert log.bytes_of("output") == pytest.approx(needs.rows_bytes, rel=0.01)


def test_what_is_learned_is_counted_where_something_is(tiny_model: TinyModel) -> None:
    info = inspect(tiny_model("llama"))
    needs = memory_needs(info, ContextConfig(), DraftConfig())
    assert needs.matrix_bytes == info.n_vocab * 8 * 5
    assert needs.history_bytes == 9 << 20
    assert memory_needs(info, ContextConfig(), PLAIN).matrix_bytes == 0
    recurrent = memory_needs(inspect(tiny_model("mamba")), ContextConfig(), DraftConfig())
    assert (recurrent.matrix_bytes, recurrent.cache_bytes) == (0, 0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``machine(total, free, swap)``: memory of a made-up machine."""

    def set_memory(total: int, free: int, swap: int = 0) -> None:
        names = ("memory_bytes", "memory_available_bytes", "swap_free_bytes")
        found = dict(zip(names, (total, free, swap), strict=True))
        monkeypatch.setattr(facts, "memory", lambda: found)

    return set_memory


def test_what_cannot_fit_is_refused_with_the_numbers(
    tiny_model: TinyModel, machine: Callable[..., None]
) -> None:
    machine(8 << 30, 1 << 30)
    context = ContextConfig(n_ctx=1 << 24)
    with pytest.raises(ModelLoadError) as caught:
        Session(tiny_model("llama"), context=context, draft=PLAIN)
    told = str(caught.value)
    size = memory_needs(inspect(tiny_model("llama")), context, PLAIN).cache_bytes / 2**30
    assert f"KV cache {size:.2f} GiB" in told
    assert "1.00 GiB are free of 8.00 GiB" in told
    assert "A smaller context" in told


@pytest.mark.parametrize(
    ("total", "free", "swap", "fits"),
    [
        (8, 7, 0, True),
        (8, 1, 0, True),  # weights are read from the file again where there is no room
        (8, 0.1, 0, False),
        (8, 0.1, 4, True),
        (3, 3, 0, False),
        (3, 3, 8, True),
        (0, 0, 0, True),  # the system does not say
    ],
)
def test_what_fits(
    tiny_model: TinyModel,
    machine: Callable[..., None],
    total: float,
    free: float,
    swap: float,
    fits: bool,
) -> None:
    machine(*(int(size * 2**30) for size in (total, free, swap)))
    info = replace(inspect(tiny_model("llama")), size_bytes=4 << 30, n_vocab=128_000)
    try:
        require_fit(info, ContextConfig(), PLAIN)
    except ModelLoadError:
        assert not fits
    else:
        assert fits


def test_the_doctor_tells_what_a_model_takes(tiny_model: TinyModel) -> None:
    found = findings.report(tiny_model("llama"), n_ctx=8192)
    needs = found["model"]["memory"]
    assert needs["n_ctx"] == 8192
    line = next(x for x in doctor_text.render(found).splitlines() if x.startswith("its memory"))
    assert "with --ctx 8192 it takes" in line
    assert "KV cache" in line


def test_the_doctor_does_not_open_what_cannot_fit(
    tiny_model: TinyModel, machine: Callable[..., None]
) -> None:
    machine(8 << 30, 1 << 20)
    found = findings.report(tiny_model("llama"))
    assert "does not fit in memory" in found["model"]["error"]
    assert found["problems"][0]["what"].startswith("llama.gguf does not fit in memory")
