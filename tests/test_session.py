from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.measuring import kept_costs
from edge_tr.session import Session

TinyModel = Callable[[str], Path]


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path / "data"))


def open_session(tiny_model: TinyModel, n_batch: int = 512, *, exact: bool = False) -> Session:
    context = ContextConfig(n_ctx=256, n_batch=n_batch, n_threads=1, n_threads_batch=1)
    return Session(tiny_model("llama"), context=context, draft=DraftConfig(exact=exact))


def test_a_batch_of_one_token_decodes_plainly_and_says_so(tiny_model: TinyModel) -> None:
    with open_session(tiny_model, 1) as session:
        text = "".join(session.stream(session.prompt_tokens("Hello"), max_tokens=5))
        assert text
        assert session.stats.n_drafted == 0
        assert session.notices == [
            "drafting is off: a batch of one token (n_batch=1) holds no draft"
        ]


@pytest.mark.parametrize("exact", [False, True])
def test_a_small_batch_drafts(tiny_model: TinyModel, exact: bool) -> None:
    with open_session(tiny_model, 4, exact=exact) as session:
        list(session.stream(session.prompt_tokens("Hello"), max_tokens=40))
        assert session.stats.n_tokens == 40


def test_costs_are_measured_when_a_model_is_opened_first(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_session(tiny_model).close()
    open_session(tiny_model).close()  # once more, where the machine was busy
    monkeypatch.setattr(kept_costs, "measure_costs", None)
    open_session(tiny_model).close()


def test_costs_behind_a_long_text_are_kept(tiny_model: TinyModel) -> None:
    open_session(tiny_model).close()
    with open_session(tiny_model) as session:  # measured once more, where the machine was busy
        session.decoder.costs.extend(3000, {1: 1.0})
    with open_session(tiny_model) as session:
        table = session.decoder.costs.table
        assert table is not None
        assert table.contexts[-1] == 3000
