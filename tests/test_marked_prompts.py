"""Models with a recurrent state go on from the mark near the end of the last prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import CancelledError, DecodeError
from edge_tr.llama.library import lib
from edge_tr.models.hybrids import HYBRIDS
from edge_tr.session import Session

TinyModel = Callable[[str], Path]
Open = Callable[..., Session]

N_PROMPT, N_MARKED = 100, 84
CHAIN = TreeTemplate.from_breadths([1] * 5)
BIT_EQUAL: dict[str, Any] = {"flash_attn": True, "type_k": "q8_0", "type_v": "q8_0"}

pytestmark = pytest.mark.parametrize("arch", [*HYBRIDS, "mamba", "jamba"])


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def open_session(tiny_model: TinyModel) -> Iterator[Open]:
    with ExitStack() as stack:

        def make(arch: str, **options: Any) -> Session:
            context = ContextConfig(n_ctx=512, n_threads=1, n_threads_batch=1, **BIT_EQUAL)
            draft = DraftConfig(speculative=CHAIN, start="empty")
            return stack.enter_context(
                Session(tiny_model(arch), context=context, draft=draft, **options)
            )

        yield make


def prompt_of(n: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 500, n)]


def text_of(decoder: Decoder, prompt: list[int], n: int = 40) -> list[int]:
    return [token for emitted in decoder.generate(prompt, max_tokens=n) for token in emitted]


PROMPT = prompt_of(N_PROMPT)


@pytest.mark.parametrize("n_same", [N_MARKED, N_MARKED + 5, N_PROMPT])
def test_a_prompt_that_differs_behind_the_mark_is_read_from_there(
    open_session: Open, arch: str, n_same: int
) -> None:
    prompt = [*PROMPT[:n_same], *prompt_of(9, seed=1)]
    decoder = open_session(arch).decoder
    text_of(decoder, PROMPT)
    text = text_of(decoder, prompt)
    assert decoder.stats.n_reused == N_MARKED
    assert text == text_of(open_session(arch).decoder, prompt)


def test_a_prompt_that_differs_before_the_mark_is_read_from_the_start(
    open_session: Open, arch: str
) -> None:
    prompt = [*PROMPT[: N_MARKED - 1], *prompt_of(40, seed=1)]
    decoder = open_session(arch).decoder
    text_of(decoder, PROMPT)
    text = text_of(decoder, prompt)
    assert decoder.stats.n_reused == 0
    assert text == text_of(open_session(arch).decoder, prompt)


def test_the_mark_moves_with_the_conversation(open_session: Open, arch: str) -> None:
    """Each prompt leaves out what the last one ended in, as templates do with reasoning."""
    decoder = open_session(arch).decoder
    prompt, n_reused = PROMPT, 0
    for turn in range(3):
        text = text_of(decoder, prompt)
        assert decoder.stats.n_reused == n_reused
        assert text == text_of(open_session(arch).decoder, prompt)
        n_reused = len(prompt) - (N_PROMPT - N_MARKED)
        prompt = [*prompt[:-3], *text, *prompt_of(30, seed=turn)]


def test_a_cancelled_answer_goes_on_from_the_mark(open_session: Open, arch: str) -> None:
    decoder = open_session(arch).decoder
    wanted = text_of(decoder, PROMPT)
    steps = decoder.generate(PROMPT, max_tokens=40)
    next(steps)
    decoder.cancel()
    with pytest.raises(CancelledError):
        next(steps)
    assert text_of(decoder, PROMPT) == wanted
    assert decoder.stats.n_reused == N_MARKED


def test_an_error_in_a_step_leaves_the_mark(
    open_session: Open, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session(arch)
    decoder, decode = session.decoder, session.target.decode
    wanted = text_of(decoder, PROMPT)
    steps = decoder.generate(PROMPT, max_tokens=40)
    next(steps)

    def fail(batch: Any) -> Any:
        decode(batch)
        raise DecodeError("no more")

    monkeypatch.setattr(session.target, "decode", fail)
    with pytest.raises(DecodeError, match="no more"):
        next(steps)
    monkeypatch.undo()
    assert decoder.n_past == N_MARKED
    assert text_of(decoder, PROMPT) == wanted


def test_a_copy_that_cannot_be_put_back_is_left(
    open_session: Open, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = open_session(arch).decoder
    wanted = text_of(decoder, PROMPT)
    monkeypatch.setattr(lib, "llama_state_seq_set_data_ext", lambda *_: 0)
    assert text_of(decoder, PROMPT) == wanted
    assert decoder.stats.n_reused == 0


def test_cells_that_were_given_up_take_the_mark_along(open_session: Open, arch: str) -> None:
    """A prompt cancelled at its mark, another that differs just before it, then the first."""
    decoder = open_session(arch).decoder
    wanted = text_of(decoder, PROMPT)
    decoder.hold(N_MARKED)
    other = [*PROMPT[: N_MARKED - 2], *prompt_of(60, seed=1)]
    text_of(decoder, other)
    assert text_of(decoder, PROMPT) == wanted


def test_an_unloaded_model_has_no_mark(open_session: Open, arch: str) -> None:
    session = open_session(arch, idle_unload_s=1000.0)
    wanted = text_of(session.decoder, PROMPT)
    session._unload()
    session._load()
    assert text_of(session.decoder, PROMPT) == wanted
    assert session.decoder.stats.n_reused == 0
