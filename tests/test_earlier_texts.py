"""The history of earlier texts: what is kept, for how long, and what is drafted from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_target import FakeTarget, HashModel

from edge_tr.decode.decoder import Decoder
from edge_tr.drafts import history_file
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates, RunningText
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.history import History
from edge_tr.errors import ConfigError, MatrixDamagedError, MatrixFileError, MatrixMismatchError
from edge_tr.kernels import matches
from edge_tr.target import Int32

N_VOCAB = 40


def text(seed: int, n: int = 20) -> Int32:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).astype(np.int32)


def texts_of(history: History) -> list[list[int]]:
    ends = np.flatnonzero(history.texts() < 0)
    return [part[part >= 0].tolist() for part in np.split(history.texts(), ends + 1)[:-1]]


def begun(history: History, *prompts: Int32) -> RunningText:
    running = RunningText(200)
    for prompt in prompts:
        running.begin(prompt, history)
    return running


def found(running: RunningText) -> list[tuple[int, int]]:
    pairs = running.matches[:, : running.n_matches].T
    return [(int(i) - matches.EARLIER, int(n)) for i, n in pairs if i >= matches.EARLIER]


def test_a_text_goes_into_the_history_when_the_next_one_begins() -> None:
    history = History(1000)
    begun(history, text(1), text(2), text(3))
    assert texts_of(history) == [text(1).tolist(), text(2).tolist()]
    assert history.n_texts == 2


def test_of_a_text_that_goes_on_nothing_is_kept_twice() -> None:
    history = History(1000)
    running = begun(history, text(1))
    running.extend(text(2, 5))
    running.begin(np.concatenate((text(1), text(2, 5), text(3))), history)
    assert texts_of(history) == []


def test_the_answer_to_the_same_prompt_is_kept_with_what_leads_to_it() -> None:
    history = History(1000)
    prompt, answer = text(1, 50), text(2, 30)
    running = begun(history, prompt)
    running.extend(answer)
    running.begin(prompt, history)
    assert texts_of(history) == [[*prompt[-32:].tolist(), *answer.tolist()]]
    assert found(running) == [(32, 32)]


def test_a_text_is_kept_whole_where_the_next_one_has_another_history() -> None:
    own, other = History(1000), History(1000)
    running = begun(own, text(1))
    running.extend(text(2))
    running.begin(text(1), other)
    assert found(running) == []
    assert texts_of(own) == [[*text(1).tolist(), *text(2).tolist()]]
    running.begin(text(1), own)
    assert found(running) == [(20, 20)]
    assert texts_of(other) == [text(1).tolist()]


def test_a_text_that_is_there_is_not_kept_again() -> None:
    history = History(1000)
    begun(history, text(1), text(2), text(1), text(2), text(1), text(3))
    assert texts_of(history) == [text(1).tolist(), text(2).tolist()]


def test_short_texts_are_not_kept() -> None:
    history = History(1000)
    begun(history, text(1, 7), text(2))
    assert history.n == 0


def test_the_oldest_half_goes_when_it_is_full() -> None:
    history = History(100)
    for seed in range(5):
        history.add(text(seed))
    kept = [text(seed).tolist() for seed in (3, 4)]
    assert texts_of(history)[-2:] == kept
    assert history.n <= 100
    running = begun(history, text(3)[:10])
    assert len(found(running)) == 1
    place, length = found(running)[0]
    assert (history.tokens[place], length) == (text(3)[10], 10)


def test_of_a_text_longer_than_half_the_end_is_kept() -> None:
    history = History(100)
    history.add(text(1, 300))
    assert texts_of(history) == [text(1, 300)[-49:].tolist()]


def test_a_history_of_nothing_keeps_nothing() -> None:
    history = History(0)
    begun(history, text(1), text(2), text(3))
    assert history.n == 0


def test_a_match_does_not_go_past_the_end_of_its_text() -> None:
    history = History(1000)
    history.add(text(1))
    history.add(text(2))
    assert found(begun(history, text(1))) == []
    assert found(begun(history, text(1)[:19])) == [(19, 19)]


@pytest.mark.parametrize("capacity", [-1, 1 << 30])
def test_a_capacity_that_is_not_allowed(capacity: int) -> None:
    with pytest.raises(ConfigError, match=f"a history of {capacity} tokens is not allowed"):
        History(capacity)


@pytest.mark.parametrize("again", [True, False])
def test_an_answer_that_was_given_before_is_drafted_from_the_history(again: bool) -> None:
    model = HashModel(300, memory=None)
    target = FakeTarget(model, n_ctx=200, n_lanes=16)
    # Nothing but the history can draft: each token of this model depends on all before it.
    drafter = GrownTreeDrafter(
        Candidates(AdjacencyMatrix(300, 2)),
        n_ctx=200,
        max_nodes=8,
        max_lanes=16,
        history=History(1000),
    )
    decoder = Decoder(target, drafter)
    prompt = list(range(40))
    first = [t for step in decoder.generate(prompt, max_tokens=60) for t in step]
    list(decoder.generate([7] * 20, max_tokens=10))
    if not again:
        prompt[0] = 1
    second = [t for step in decoder.generate(prompt, max_tokens=60) for t in step]
    plain = model.generate(prompt, 200, max_tokens=60)
    assert second == plain
    assert (second == first) == again
    assert (decoder.stats.mat > 6) == again


def test_a_history_comes_back_from_its_file(tmp_path: Path) -> None:
    before, after = History(1000), History(1000)
    for seed in range(3):
        before.add(text(seed))
    path = tmp_path / "new" / "history.npz"
    history_file.save(path, before, "print", N_VOCAB)
    history_file.load(path, after, "print", N_VOCAB)
    assert texts_of(after) == texts_of(before)
    assert after.n_texts == 3
    assert found(begun(after, text(1)[:12])) == found(begun(before, text(1)[:12])) != []
    assert path.stat().st_mode & 0o077 == 0
    assert history_file.read_header(path)["n_tokens"] == 63


def test_a_smaller_history_takes_the_newest_texts_of_a_file() -> None:
    before, after = History(1000), History(50)
    for seed in range(3):
        before.add(text(seed))
    after.load(before.texts(), N_VOCAB)
    assert texts_of(after) == texts_of(before)[1:]


@pytest.mark.parametrize(
    "tokens", [[1, 2], [N_VOCAB, -1], [-2, -1], [[1, -1]]], ids=["no end", "high", "low", "shape"]
)
def test_a_damaged_history_is_refused(tmp_path: Path, tokens: list[int]) -> None:
    path = tmp_path / "history.npz"
    array = np.array(tokens, dtype=np.int32)
    header = {"fingerprint": "print", "n_vocab": N_VOCAB, "n_tokens": len(array), "n_texts": 1}
    history_file.FILE.write(path, header, {"tokens": array})
    with pytest.raises(
        MatrixDamagedError, match=r"history\.npz is damaged.*matrix reset --history"
    ):
        history_file.load(path, History(100), "print", N_VOCAB)


def test_a_history_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.npz"
    history_file.save(path, History(10), "print", N_VOCAB)
    with pytest.raises(MatrixMismatchError, match="saved for tokenizer print, not other"):
        history_file.load(path, History(10), "other", N_VOCAB)


def test_a_matrix_is_no_history_and_stays(tmp_path: Path) -> None:
    from edge_tr.drafts import matrix_file

    path = tmp_path / "matrix.npz"
    matrix_file.save(path, AdjacencyMatrix(5), "print")
    with pytest.raises(MatrixFileError, match="is not a history file and stays as it is"):
        history_file.FILE.check_own(path)
    with pytest.raises(MatrixDamagedError, match="another kind of file"):
        history_file.load(path, History(10), "print", 5)
