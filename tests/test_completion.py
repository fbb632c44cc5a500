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

from edge_tr import Llama
from edge_tr.chat.text import Token
from edge_tr.completion import Completion, CompletionConfig, open_llama, schema_grammar
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import (
    CancelledError,
    ConfigError,
    ModelFileError,
    ModelUnsupportedError,
    PromptTooLongError,
)

GREEDY = {"temp": 0.0}
DRAWN = {"temp": 1.5}


def opened(model: Path, speculative: Any) -> Llama:
    return open_llama(
        model,
        n_ctx=1024,
        n_threads=1,
        n_threads_batch=1,
        speculative=speculative,
        matrix_path=False,
        verbose=False,
    )


@pytest.fixture(scope="module")
def plain(tiny_model: Callable[[str], Path]) -> Iterator[Llama]:
    with opened(tiny_model("llama"), "off") as llm:
        yield llm


@pytest.fixture(scope="module")
def drafting(tiny_model: Callable[[str], Path]) -> Iterator[Llama]:
    with opened(tiny_model("llama"), TreeTemplate.from_breadths([3, 2])) as llm:
        yield llm


def answer(llm: Llama, text: str = "the of and", **config: Any) -> Completion:
    """A completion that is not generated yet; seeded and greedy if not said otherwise."""
    given: dict[str, Any] = {"max_tokens": 60, "seed": 1, "sampling": GREEDY} | config
    return Completion(llm, llm.tokenize(text.encode()), CompletionConfig(**given))


def tokens_of(completion: Completion) -> list[Token]:
    return [token for piece in completion for token in piece.tokens]


def text_of(completion: Completion) -> str:
    return "".join(piece.text for piece in completion)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_steps_and_drafts_add_up(drafting: Llama, sampling: dict[str, Any]) -> None:
    completion = answer(drafting, max_tokens=300, sampling=sampling)
    tokens = tokens_of(completion)
    bonus = [token.step for token in tokens if not token.drafted]
    assert bonus == list(range(len(bonus)))
    assert any(token.drafted for token in tokens)
    assert [token.step for token in tokens] == sorted(token.step for token in tokens)
    assert tokens[-1].step == completion.stats.n_steps
    assert sum(token.drafted for token in tokens) == completion.stats.n_accepted


def test_plain_decoding_has_a_step_for_each_token(plain: Llama) -> None:
    tokens = tokens_of(answer(plain, max_tokens=9))
    assert [token.step for token in tokens] == list(range(9))
    assert not any(token.drafted for token in tokens)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_probabilities_belong_to_their_tokens(drafting: Llama, sampling: dict[str, Any]) -> None:
    tokens = tokens_of(answer(drafting, n_logprobs=512, sampling=sampling))
    for token in tokens:
        assert token.logprob is not None
        assert dict(token.logprob.top)[token.id] == token.logprob.value
        assert np.exp([value for _, value in token.logprob.top]).sum() == pytest.approx(1)


def test_probabilities_with_and_without_drafting(plain: Llama, drafting: Llama) -> None:
    first, second = (tokens_of(answer(llm, n_logprobs=1)) for llm in (plain, drafting))
    pairs = list(zip(first, second, strict=True))
    same = list(takewhile(lambda pair: pair[0].id == pair[1].id, pairs))
    assert same
    for one, other in same:
        assert one.logprob is not None
        assert other.logprob is not None
        assert one.logprob.value == pytest.approx(other.logprob.value, abs=0.05)


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_the_limit_is_exact(drafting: Llama, n: int) -> None:
    completion = answer(drafting, max_tokens=n)
    assert len(tokens_of(completion)) == n
    assert (completion.n_tokens, completion.finish_reason) == (n, "length")


def test_without_limit_the_context_ends_the_text(drafting: Llama) -> None:
    completion = answer(drafting, max_tokens=None, logit_bias={511: -100.0})
    tokens_of(completion)
    assert completion.finish_reason == "length"
    assert len(completion.prompt) + completion.n_tokens == 1024


def test_a_stop_ends_the_text(drafting: Llama) -> None:
    text = text_of(answer(drafting))
    completion = answer(drafting, stops=[text[20:30]])
    assert text_of(completion) == text[: text.index(text[20:30])]
    assert completion.finish_reason == "stop"


def test_a_stop_within_the_limit_counts_before_it(drafting: Llama) -> None:
    pieces = list(answer(drafting))
    for n, piece in enumerate(pieces[:20], 1):
        if piece.text not in "".join(before.text for before in pieces[: n - 1]):
            completion = answer(drafting, stops=[piece.text], max_tokens=n)
            assert text_of(completion) == "".join(before.text for before in pieces[: n - 1])
            assert completion.finish_reason == "stop"


def test_an_end_token_ends_the_text(drafting: Llama) -> None:
    completion = answer(drafting, logit_bias={drafting.token_eos(): 100.0})
    assert text_of(completion) == ""
    assert (completion.n_tokens, completion.finish_reason) == (0, "stop")


def test_a_schema_is_followed_with_drafting(drafting: Llama) -> None:
    schema = {"type": "object", "properties": {"n": {"maximum": 9, "type": "integer"}}}
    grammar = schema_grammar(schema | {"required": ["n"]})
    assert "n" in json.loads(text_of(answer(drafting, grammar=grammar, max_tokens=200)))


def test_a_seed_counts_where_threads_ask_at_once(drafting: Llama) -> None:
    def ask(seed: int) -> str:
        return text_of(answer(drafting, seed=seed, sampling=DRAWN))

    alone = [ask(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, [0, 1, 2, 3] * 3)) == alone * 3


def test_a_cancelled_answer(drafting: Llama) -> None:
    pieces = iter(answer(drafting, max_tokens=900))
    next(pieces)
    threading.Thread(target=drafting.cancel).start()
    with pytest.raises(CancelledError):
        list(pieces)
    assert text_of(answer(drafting))


def test_a_prompt_that_is_too_long(plain: Llama) -> None:
    with pytest.raises(PromptTooLongError, match="a context of 1024 holds at most 1023"):
        answer(plain, "word " * 2000)


def test_a_prompt_without_tokens(plain: Llama) -> None:
    with pytest.raises(ConfigError, match="the prompt is empty"):
        Completion(plain, [], CompletionConfig())


@pytest.mark.parametrize("token", [-1, 512])
def test_a_bias_for_a_token_that_is_not_there(plain: Llama, token: int) -> None:
    with pytest.raises(ConfigError, match=f"token {token}, which the model lacks"):
        answer(plain, logit_bias={token: 1.0})


def test_a_grammar_that_cannot_be_read(plain: Llama) -> None:
    with pytest.raises(ConfigError, match="the grammar cannot be read"):
        answer(plain, grammar="root = ")


def test_a_schema_that_cannot_be_followed() -> None:
    with pytest.raises(ConfigError, match="the JSON schema cannot be followed"):
        schema_grammar({"type": "nonsense"})


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        open_llama(tmp_path / "missing.gguf")


def test_a_model_that_writes_no_text(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ModelUnsupportedError):
        open_llama(tiny_model("bert"))
