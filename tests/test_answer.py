"""Answers of a drop-in Llama: limits, origins of tokens, probabilities, grammars."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_tr.answer import Answer, AnswerConfig
from edge_tr.chat.text import Piece, Token
from edge_tr.config import ContextConfig, DraftConfig, SamplingConfig
from edge_tr.constrain.schema import schema_rules
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import CancelledError, ConfigError, PromptTooLongError
from edge_tr.session import Session

GREEDY: dict[str, Any] = {"temperature": 0.0}
DRAWN: dict[str, Any] = {"temperature": 1.5}


def opened(model: Path, speculative: Any) -> Session:
    context = ContextConfig(n_ctx=1024, n_threads=1, n_threads_batch=1)
    return Session(model, context=context, draft=DraftConfig(speculative, start="empty"))


@pytest.fixture(scope="module")
def plain(tiny_model: Callable[[str], Path]) -> Iterator[Session]:
    with opened(tiny_model("llama"), "off") as session:
        yield session


@pytest.fixture(scope="module")
def drafting(tiny_model: Callable[[str], Path]) -> Iterator[Session]:
    with opened(tiny_model("llama"), TreeTemplate.from_breadths([3, 2])) as session:
        yield session


def answer(
    session: Session, text: str = "the of and", *, max_tokens: int | None = 60, **config: Any
) -> Answer:
    """An answer that is not generated yet; seeded and greedy if not said otherwise."""
    names = ("stops", "n_logprobs")
    asked = {name: config.pop(name) for name in names if name in config}
    sampling = SamplingConfig(**{"seed": 1} | config)
    return session.answer(
        session.model.tokenize(text),
        AnswerConfig(max_tokens=max_tokens, sampling=sampling, **asked),
    )


def tokens_of(answer: Answer) -> list[Token]:
    return [token for piece in answer for token in piece.tokens]


def text_of(answer: Answer) -> str:
    return "".join(piece.text for piece in answer)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_steps_and_drafts_add_up(drafting: Session, sampling: dict[str, Any]) -> None:
    asked = answer(drafting, max_tokens=300, **sampling)
    tokens = tokens_of(asked)
    bonus = [token.step for token in tokens if not token.drafted]
    assert bonus == list(range(len(bonus)))
    assert any(token.drafted for token in tokens)
    assert [token.step for token in tokens] == sorted(token.step for token in tokens)
    assert tokens[-1].step == asked.stats.n_steps
    assert sum(token.drafted for token in tokens) == asked.stats.n_accepted


def test_plain_decoding_has_a_step_for_each_token(plain: Session) -> None:
    tokens = tokens_of(answer(plain, max_tokens=9))
    assert [token.step for token in tokens] == list(range(9))
    assert not any(token.drafted for token in tokens)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_probabilities_belong_to_their_tokens(drafting: Session, sampling: dict[str, Any]) -> None:
    tokens = tokens_of(answer(drafting, n_logprobs=512, **sampling))
    for token in tokens:
        assert token.logprob is not None
        assert dict(token.logprob.top)[token.id] == token.logprob.value
        assert np.exp([value for _, value in token.logprob.top]).sum() == pytest.approx(1)


def test_probabilities_with_and_without_drafting(plain: Session, drafting: Session) -> None:
    first, second = (tokens_of(answer(llm, n_logprobs=1)) for llm in (plain, drafting))
    pairs = list(zip(first, second, strict=True))
    same = list(takewhile(lambda pair: pair[0].id == pair[1].id, pairs))
    assert same
    for one, other in same:
        assert one.logprob is not None
        assert other.logprob is not None
        assert one.logprob.value == pytest.approx(other.logprob.value, abs=0.05)


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_the_limit_is_exact(drafting: Session, n: int) -> None:
    asked = answer(drafting, max_tokens=n)
    assert len(tokens_of(asked)) == n
    assert (asked.n_tokens, asked.finish_reason) == (n, "length")


def test_without_limit_the_context_ends_the_text(drafting: Session) -> None:
    asked = answer(drafting, max_tokens=None, logit_bias={511: -100.0})
    tokens_of(asked)
    assert asked.finish_reason == "context"
    assert len(asked.prompt) + asked.n_tokens == 1024


def test_a_stop_ends_the_text(drafting: Session) -> None:
    text = text_of(answer(drafting))
    asked = answer(drafting, stops=[text[20:30]])
    assert text_of(asked) == text[: text.index(text[20:30])]
    assert asked.finish_reason == "stop"


def test_a_stop_within_the_limit_counts_before_it(drafting: Session) -> None:
    pieces = list(answer(drafting))
    for n, piece in enumerate(pieces[:20], 1):
        if piece.text not in "".join(before.text for before in pieces[: n - 1]):
            asked = answer(drafting, stops=[piece.text], max_tokens=n)
            assert text_of(asked) == "".join(before.text for before in pieces[: n - 1])
            assert asked.finish_reason == "stop"


def test_an_end_token_ends_the_text(drafting: Session) -> None:
    asked = answer(drafting, logit_bias={min(drafting.stop_tokens): 100.0})
    assert text_of(asked) == ""
    assert (asked.n_tokens, asked.finish_reason) == (0, "stop")


def test_a_schema_is_followed_with_drafting(drafting: Session) -> None:
    schema = {"type": "object", "properties": {"n": {"maximum": 9, "type": "integer"}}}
    grammar = schema_rules(schema | {"required": ["n"]})
    assert "n" in json.loads(text_of(answer(drafting, grammar=grammar, max_tokens=200)))


def test_a_seed_counts_where_threads_ask_at_once(drafting: Session) -> None:
    def ask(seed: int) -> str:
        return text_of(answer(drafting, seed=seed, **DRAWN))

    alone = [ask(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, [0, 1, 2, 3] * 3)) == alone * 3


def test_a_cancelled_answer(drafting: Session) -> None:
    pieces = iter(answer(drafting, max_tokens=900))
    next(pieces)
    threading.Thread(target=drafting.cancel).start()
    with pytest.raises(CancelledError):
        list(pieces)
    assert text_of(answer(drafting))


def test_a_prompt_that_is_too_long(plain: Session) -> None:
    with pytest.raises(PromptTooLongError, match="a context of 1024 holds at most 1023"):
        answer(plain, "word " * 2000)


def test_a_prompt_without_tokens(plain: Session) -> None:
    with pytest.raises(ConfigError, match="the prompt has no tokens"):
        plain.answer([])


@pytest.mark.parametrize("token", [-1, 512])
def test_a_bias_for_a_token_that_is_not_there(plain: Session, token: int) -> None:
    with pytest.raises(ConfigError, match=f"token {token}, which the model lacks"):
        answer(plain, logit_bias={token: 1.0})


def test_a_grammar_that_cannot_be_read(plain: Session) -> None:
    with pytest.raises(ConfigError, match=r"expected ::=|cannot be"):
        answer(plain, grammar="root = ")


def test_a_schema_that_cannot_be_followed() -> None:
    with pytest.raises(ConfigError, match="the JSON schema cannot be followed"):
        schema_rules({"type": "nonsense"})


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_each_piece_tells_what_was_done_for_it(drafting: Session, sampling: dict[str, Any]) -> None:
    asked = answer(drafting, **sampling)
    n_tokens = n_drafted = 0
    for piece in asked:
        n_tokens += len(piece.tokens)
        n_drafted += sum(token.drafted for token in piece.tokens)
        assert (piece.stats.n_tokens, piece.stats.n_accepted) == (n_tokens, n_drafted)
        assert piece.stats.n_steps == piece.tokens[-1].step
    assert asked.stats == piece.stats


def test_an_answer_that_is_cancelled_before_it_begins(drafting: Session) -> None:
    asked = answer(drafting)
    asked.cancel()
    with pytest.raises(CancelledError):
        list(asked)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_an_answer_goes_on_after_another_one(drafting: Session, sampling: dict[str, Any]) -> None:
    alone = text_of(answer(drafting, **sampling))
    first = answer(drafting, **sampling)
    pieces = iter(first)
    shown: list[Piece] = [next(pieces), next(pieces)]
    assert text_of(answer(drafting, "name", max_tokens=5))
    shown += pieces
    assert "".join(piece.text for piece in shown) == first.text == alone


def test_answers_of_two_threads_do_not_wait_for_each_other(plain: Session) -> None:
    """One thread has an answer open, another waits for its turn, and the first asks again."""
    done = threading.Event()

    def ask_twice() -> None:
        pieces = iter(answer(plain, max_tokens=9))
        next(pieces)
        other = threading.Thread(target=lambda: list(answer(plain, max_tokens=3)), daemon=True)
        other.start()
        other.join(0.2)
        assert text_of(answer(plain, max_tokens=3))
        list(pieces)
        other.join()
        done.set()

    threading.Thread(target=ask_twice, daemon=True).start()
    assert done.wait(60)
