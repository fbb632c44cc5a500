"""Two models open in one process: each drafts and writes its own text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.drafts.template import TreeTemplate
from edge_tr.session import Session

TinyModel = Callable[[str], Path]
Open = Callable[..., Session]

ARCHS = ("llama", "gemma3")
HYBRIDS = ("lfm2", "qwen35")
TREE = TreeTemplate.paper().prefix(7)
CONTEXT = ContextConfig(
    n_ctx=512, n_threads=1, n_threads_batch=1, flash_attn=True, type_k="q8_0", type_v="q8_0"
)
"""Its widths are bit-equal, so that texts are."""
N_TOKENS = 120


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def open_session(tiny_model: TinyModel) -> Iterator[Open]:
    """``open_session(arch)``: drafts with a forced tree, closed when the test ends."""
    with ExitStack() as stack:

        def make(arch: str, tree: TreeTemplate | Literal["off"] = TREE) -> Session:
            draft = DraftConfig(speculative=tree, start="empty")
            return stack.enter_context(Session(tiny_model(arch), context=CONTEXT, draft=draft))

        yield make


def steps(session: Session, seed: int) -> Iterator[list[int]]:
    prompt = np.random.default_rng(seed).integers(0, 500, 30)
    return session.decoder.generate(prompt.astype(np.int32), max_tokens=N_TOKENS)


def text(session: Session, seed: int) -> list[int]:
    return [token for emitted in steps(session, seed) for token in emitted]


def plain_texts(open_session: Open, archs: tuple[str, ...]) -> list[list[int]]:
    texts = []
    for seed, arch in enumerate(archs):
        with open_session(arch, "off") as session:
            texts.append(text(session, seed))
    return texts


PAIRS = [(ARCHS, TREE), (HYBRIDS, TreeTemplate.from_breadths([1] * 5)), (("llama", "llama"), TREE)]
"""Two of different kinds, two hybrids, and one file opened twice."""


@pytest.mark.parametrize(("archs", "tree"), PAIRS, ids=["dense", "hybrid", "same"])
def test_steps_in_turn(open_session: Open, archs: tuple[str, ...], tree: TreeTemplate) -> None:
    plain = plain_texts(open_session, archs)
    sessions = [open_session(arch, tree) for arch in archs]
    for _ in range(2):  # the second time much is accepted
        texts: list[list[int]] = [[] for _ in sessions]
        running = dict(enumerate(steps(session, i) for i, session in enumerate(sessions)))
        while running:
            for i, generation in list(running.items()):
                emitted = next(generation, None)
                if emitted is None:
                    del running[i]
                else:
                    texts[i] += emitted
        assert texts == plain
    assert all(session.stats.n_accepted > 0 for session in sessions)


def test_steps_at_the_same_time(open_session: Open) -> None:
    plain = plain_texts(open_session, ARCHS)
    sessions = [open_session(arch) for arch in ARCHS]
    found: dict[int, list[list[int]]] = {}

    def run(i: int) -> None:
        found[i] = [text(sessions[i], i) for _ in range(3)]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(ARCHS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(len(ARCHS))] == [[wanted] * 3 for wanted in plain]
    assert all(session.stats.n_accepted > 0 for session in sessions)


def test_one_that_is_closed_leaves_the_other(open_session: Open) -> None:
    (wanted,) = plain_texts(open_session, ("llama",))
    first, second = open_session("llama"), open_session("gemma3")
    generation = steps(first, 0)
    begun = list(next(generation))
    second.close()
    assert begun + [token for emitted in generation for token in emitted] == wanted
