"""edge_tr.Llama gives what llama_cpp.Llama gives, token for token, with drafting forced."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from drop_in import NINE, PAPER, content, open_own, open_stock

from edge_tr import Llama

PROMPT = "Once upon a time there was a"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["name", "n"],
}
JSON = {"type": "json_object", "schema": SCHEMA}

Pair = tuple[Any, Llama]


@pytest.fixture(
    scope="module",
    params=["tiny", pytest.param("smollm2", marks=pytest.mark.model)],
)
def path(request: pytest.FixtureRequest) -> Path:
    if request.param == "tiny":
        tiny_model: Callable[[str], Path] = request.getfixturevalue("tiny_model")
        return tiny_model("llama")
    smollm2: Path = request.getfixturevalue("smollm2_q4_0")
    return smollm2


@pytest.fixture(scope="module")
def pair(path: Path) -> Iterator[Pair]:
    tree = NINE if "smollm2" in path.name else PAPER
    with open_own(path, logits_all=True, speculative=tree) as own:
        stock = open_stock(path, logits_all=True)
        yield stock, own
        stock.close()


def both(pair: Pair, method: str, *args: Any, **options: Any) -> tuple[Any, Any]:
    """The stock result and the own one."""
    results = []
    for llm in pair:
        result = getattr(llm, method)(*args, **options)
        results.append(content(list(result) if options.get("stream") else result))
    return results[0], results[1]


SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.0, "seed": 2, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 0.7, "seed": 3, "top_k": 5},
    {"temperature": 0.7, "seed": 4, "top_p": 0.5},
    {"temperature": 1.1, "seed": 5, "min_p": 0.2},
    {"temperature": 0.9, "seed": 6, "typical_p": 0.6},
    {"temperature": 0.8, "seed": 7, "repeat_penalty": 1.3},
    {"temperature": 0.8, "seed": 8, "frequency_penalty": 0.5, "presence_penalty": 0.4},
    {"temperature": 0.0, "repeat_penalty": 1.2},
    {"temperature": 0.9, "seed": 9, "mirostat_mode": 1},
    {"temperature": 0.9, "seed": 10, "mirostat_mode": 2, "mirostat_tau": 3.0},
    {"temperature": -1.0, "seed": 11},
    {"temperature": 0.0, "logit_bias": {20: 4.0, 21: -100.0}},
]


@pytest.mark.parametrize("options", SAMPLING, ids=str)
def test_sampling_cold_and_warm(pair: Pair, options: dict[str, Any]) -> None:
    own = pair[1]
    own._drafting.matrix.reset()  # type: ignore[union-attr]
    for _ in range(2):
        expected, found = both(pair, "create_completion", PROMPT, max_tokens=40, **options)
        assert found == expected
    assert own.stats.n_drafted > 0


def test_no_seed_follows_the_seed_of_the_object(pair: Pair) -> None:
    for llm in pair:
        llm.set_seed(5)
    texts = []
    for _ in range(3):
        expected, found = both(pair, "create_completion", PROMPT, max_tokens=20)
        assert found == expected
        texts.append(found["choices"][0]["text"])
    assert len(set(texts)) == 3


def test_json_schema_in_a_chat(pair: Pair) -> None:
    message = {"role": "user", "content": "Give me a name and a number."}
    for stream in (False, True):
        expected, found = both(
            pair, "create_chat_completion", [message], response_format=JSON, seed=3,
            temperature=0.7, max_tokens=60, stream=stream,
        )  # fmt: skip
        assert found == expected


def test_a_grammar_is_followed_inside_an_accepted_path(pair: Pair) -> None:
    grammar = llama_cpp.LlamaGrammar.from_string("root ::= [a-z ]+", verbose=False)
    options = {"grammar": grammar, "temperature": 0.6, "seed": 4, "max_tokens": 40}
    for _ in range(2):
        expected, found = both(pair, "create_completion", PROMPT, **options)
        assert found == expected
    assert pair[1].stats.n_accepted > 0
    assert set(found["choices"][0]["text"]) <= set(string.ascii_lowercase + " ")


TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}


def test_a_tool_call(pair: Pair) -> None:
    expected, found = both(
        pair,
        "create_chat_completion",
        [{"role": "user", "content": "Look up the word tree."}],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "look_up"}},
        temperature=0.0,
        max_tokens=40,
    )
    names = ("tool_calls", "function_call")
    for result in (expected, found):
        for choice in result["choices"]:
            for name in names:
                choice["message"].pop(name)  # they hold an id; the content is the same text
    assert found == expected


@pytest.mark.parametrize("stop", [["e"], [" the", "\n"], ["zzz"], [" a", " the", ". "]], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(pair: Pair, stop: list[str], stream: bool) -> None:
    options = {"stop": stop, "max_tokens": 40, "temperature": 0.0, "stream": stream}
    expected, found = both(pair, "create_completion", PROMPT, **options)
    assert found == expected


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_max_tokens(pair: Pair, max_tokens: int) -> None:
    expected, found = both(
        pair, "create_completion", PROMPT, max_tokens=max_tokens, temperature=0.0
    )
    assert found == expected
    assert found["usage"]["completion_tokens"] == pair[1].stats.n_tokens == max_tokens


def test_echo_and_suffix(pair: Pair) -> None:
    for options in ({"echo": True}, {"suffix": " The end."}):
        expected, found = both(
            pair, "create_completion", PROMPT, max_tokens=12, temperature=0.0, **options
        )
        assert found == expected


def numbers_of(logprobs: Any) -> list[float]:
    """Every number in the ``logprobs`` of choices, in order."""
    numbers = []
    for value in logprobs["token_logprobs"]:
        numbers.append(0.0 if value is None else float(value))
    for top in logprobs["top_logprobs"]:
        numbers += [] if top is None else [float(top[key]) for key in sorted(top)]
    return numbers


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("n_top", [0, 1, 5])
def test_logprobs(pair: Pair, n_top: int, echo: bool) -> None:
    options = {"max_tokens": 15, "temperature": 0.9, "seed": 3, "logprobs": n_top, "echo": echo}
    expected, found = both(pair, "create_completion", PROMPT, **options)
    ours, theirs = (result["choices"][0].pop("logprobs") for result in (found, expected))
    assert found == expected
    assert ours["tokens"] == theirs["tokens"]
    assert ours["text_offset"] == theirs["text_offset"]
    assert [sorted(t or ()) for t in ours["top_logprobs"]] == [
        sorted(t or ()) for t in theirs["top_logprobs"]
    ]
    assert numbers_of(ours) == pytest.approx(numbers_of(theirs), abs=1e-5)


def test_streamed_logprobs(pair: Pair) -> None:
    options = {"max_tokens": 15, "temperature": 0.0, "logprobs": 3, "stream": True}
    expected, found = both(pair, "create_completion", PROMPT, **options)
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = (chunk["choices"][0].pop("logprobs") for chunk in (ours, theirs))
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours["tokens"] == theirs["tokens"]
            assert numbers_of(ours) == pytest.approx(numbers_of(theirs), abs=1e-5)
    assert found == expected


def test_chat_logprobs(pair: Pair) -> None:
    message = {"role": "user", "content": "Say something."}
    options = {"logprobs": True, "top_logprobs": 2, "max_tokens": 5, "temperature": 0.0}
    expected, found = both(pair, "create_chat_completion", [message], **options)
    ours, theirs = (r["choices"][0]["logprobs"]["content"] for r in (found, expected))
    assert [t["token"] for t in ours] == [t["token"] for t in theirs]
    assert [t["logprob"] for t in ours] == pytest.approx([float(t["logprob"]) for t in theirs])


def test_three_turns_reuse_the_text_before(pair: Pair) -> None:
    stock, own = pair
    messages = [{"role": "user", "content": "Tell me of trees."}]
    reused = []
    for question in ("And leaves?", "And roots?", "And birds?"):
        answers = [
            llm.create_chat_completion(messages, max_tokens=24, temperature=0.0)["choices"][0]
            for llm in (stock, own)
        ]
        assert answers[0] == answers[1]
        reused.append(own.stats.n_reused)
        messages += [answers[1]["message"], {"role": "user", "content": question}]
    assert reused[0] < reused[1] < reused[2]


def test_the_text_of_a_processor_that_keeps_a_state(pair: Pair) -> None:
    seen: list[list[Any]] = [[], []]

    def processor(log: list[Any]) -> Any:
        def process(input_ids: Any, scores: Any) -> Any:
            log.append(input_ids.tolist())
            scores = scores.copy()
            scores[len(log) % 7 + 40] += 6.0
            return scores

        return llama_cpp.LogitsProcessorList([process])

    texts = [
        llm.create_completion(
            PROMPT, max_tokens=30, temperature=0.8, seed=2, logits_processor=processor(log)
        )["choices"][0]["text"]
        for llm, log in zip(pair, seen, strict=True)
    ]
    assert texts[0] == texts[1]
    assert seen[0] == seen[1]


def test_stopping_criteria(pair: Pair) -> None:
    def at_length(input_ids: Any, logits: Any) -> bool:
        assert len(logits) == pair[1].n_vocab()
        return len(input_ids) >= 20

    criteria = llama_cpp.StoppingCriteriaList([at_length])
    expected, found = both(
        pair,
        "create_completion",
        PROMPT,
        max_tokens=40,
        temperature=0.0,
        stopping_criteria=criteria,
    )
    assert found == expected
    assert found["choices"][0]["finish_reason"] == "stop"


def test_tokens_sent_into_the_generator_are_drafts(pair: Pair) -> None:
    texts = []
    for llm in pair:
        tokens = llm.generate(llm.tokenize(PROMPT.encode()), temp=0.9, top_k=30)
        text = [next(tokens) for _ in range(5)]
        text.append(tokens.send([40, 41, 42]))
        text += [next(tokens) for _ in range(10)]
        texts.append((text, llm.n_tokens, llm.input_ids[: llm.n_tokens].tolist()))
    assert texts[0] == texts[1]


def test_going_on_without_reset(pair: Pair) -> None:
    texts = []
    for llm in pair:
        llm.reset()
        llm.eval(llm.tokenize(PROMPT.encode()))
        tokens = llm.generate([50, 51], reset=False, temp=0.0)
        texts.append([next(tokens) for _ in range(10)])
    assert texts[0] == texts[1]


def test_the_state_while_tokens_come(pair: Pair) -> None:
    states = []
    for llm in pair:
        llm.reset()
        tokens = llm.generate(llm.tokenize(PROMPT.encode()), temp=0.0)
        state = []
        for _ in range(20):
            next(tokens)
            state.append((llm.n_tokens, llm.input_ids[: llm.n_tokens].tolist()))
        states.append(state)
    assert states[0] == states[1]


def test_manual_eval_and_sample(pair: Pair) -> None:
    texts = []
    for llm in pair:
        llm._sampler = None  # the stock class keeps the sampler of its last generation
        llm.reset()
        llm.eval(llm.tokenize(PROMPT.encode()))
        text = []
        for _ in range(8):
            text.append(llm.sample(temp=0.0))
            llm.eval(text[-1:])
        texts.append(text)
        assert llm.scores[llm.n_tokens - 1].argmax() == llm._scores[-1, :].argmax()
    assert texts[0] == texts[1]


def test_counts_tell_the_step_of_each_token(pair: Pair) -> None:
    own = pair[1]
    own.create_completion(PROMPT, max_tokens=40, temperature=0.0)  # warms the matrix
    tokens = own.generate(own.tokenize(PROMPT.encode()), temp=0.0)
    counts = [(own.stats.n_steps, own.stats.n_accepted) for _ in zip(range(40), tokens)]  # noqa: B905
    assert counts[0] == (0, 0)
    for (step, n), (next_step, next_n) in itertools.pairwise(counts[1:]):
        assert next_step - step in (0, 1)
        assert next_n - n in (0, 1)
    for i in range(2, 39):
        was_accepted = counts[i][1] > counts[i - 1][1]
        assert was_accepted == (counts[i + 1][0] == counts[i][0])


def test_a_step_that_was_left_is_learned_from(pair: Pair) -> None:
    own = pair[1]
    own.create_completion(PROMPT, max_tokens=20, temperature=0.0)  # warms the matrix
    tokens = own.generate(own.tokenize(PROMPT.encode()), temp=0.0)
    assert [next(tokens) for _ in range(2)]
    tokens.close()
    assert own.stats.drafted_by_depth[0] == own.stats.n_steps == 1
