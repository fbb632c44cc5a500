"""Learning from texts of the user's own: what is learned, and that it goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.errors import ConfigError
from edge_tr.learning import learn_files
from edge_tr.session import Session
from edge_tr.target import Float32

Open = Callable[[], Session]
TEXT = "the cat sat on the mat and the dog sat on the log. " * 12


@pytest.fixture
def opened(tiny_model: Callable[[str], Path], tmp_path: Path) -> Iterator[Open]:
    sessions = []
    draft = DraftConfig(matrix_path=tmp_path / "m.npz", history_path=tmp_path / "h.npz")

    def open_it() -> Session:
        context = ContextConfig(n_ctx=256, n_threads=1, n_threads_batch=1)
        sessions.append(Session(tiny_model("llama"), context=context, draft=draft))
        return sessions[-1]

    yield open_it
    for session in sessions:
        session.close()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("fast", [False, True])
def test_rows_and_history_hold_the_text(opened: Open, text: Path, fast: bool) -> None:
    session = opened()
    tokens = session.model.tokenize(TEXT, add_special=False, parse_special=False)
    assert learn_files(session, [text], fast=fast) == len(tokens)
    kept = session.history.texts()
    np.testing.assert_array_equal(kept[kept >= 0], tokens)
    assert (session.matrix.rows[np.unique(tokens[:-1]), 0] >= 0).all()


def test_fast_rows_hold_what_follows_the_most_frequent_first(opened: Open, text: Path) -> None:
    session = opened()
    tokens = session.model.tokenize(TEXT, add_special=False, parse_special=False).tolist()
    learn_files(session, [text], fast=True)
    first = tokens[: session.target.n_ctx - 2]
    for token in set(first[:-1]):
        following = [b for a, b in pairwise(first) if a == token]
        most = max(following.count(b) for b in following)
        assert following.count(session.matrix.rows[token, 0]) == most


def test_exact_rows_are_what_the_model_expects(opened: Open, text: Path) -> None:
    session = opened()
    learn_files(session, [text])
    tokens = session.model.tokenize(TEXT, add_special=False, parse_special=False)
    part = tokens[(len(tokens) - 1) // 254 * 254 :]
    rows: list[Float32] = []
    session.decoder.read(part[:1])  # else the last row is still there
    session.decoder.read(part, rows=lambda first, logits: rows.append(logits.copy()))
    best = np.concatenate(rows)[-1].argmax()
    assert session.matrix.rows[part[-1], 0] == best


def test_a_text_that_was_learned_is_left_out(opened: Open, text: Path) -> None:
    n_tokens = learn_files(opened(), [text], fast=True)
    assert n_tokens > 0
    again = opened()
    assert again.history.n > 0
    assert learn_files(again, [text], fast=True) == 0


def test_a_text_that_was_stopped_is_gone_on_with(opened: Open, text: Path) -> None:
    class StopError(Exception):
        pass

    def stop(line: str) -> None:
        raise StopError

    session = opened()
    with pytest.raises(StopError):
        learn_files(session, [text], fast=True, progress=stop)
    n_learned = (session.history.texts() >= 0).sum()
    n_tokens = len(session.model.tokenize(TEXT, add_special=False, parse_special=False))
    assert 0 < n_learned < n_tokens
    assert learn_files(opened(), [text], fast=True) == n_tokens - n_learned


@pytest.mark.parametrize(("data", "told"), [(None, "No such file"), (b"\xff\xfe", "UTF-8")])
def test_what_is_no_text_is_refused_before_anything_is_learned(
    opened: Open, text: Path, tmp_path: Path, data: bytes | None, told: str
) -> None:
    wrong = tmp_path / "wrong"
    if data is not None:
        wrong.write_bytes(data)
    session = opened()
    with pytest.raises(ConfigError, match=f"{wrong} cannot be learned from: .*{told}"):
        learn_files(session, [text, wrong])
    assert session.history.n == 0
