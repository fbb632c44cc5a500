"""Streams of edge_tr.Llama: stop strings and characters, while steps give several tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from drop_in import open_own

from edge_tr import Llama

PROMPT = "Once upon a time there was a"
GREEDY: dict[str, Any] = {"max_tokens": 80, "temperature": 0.0}
CHARACTERS = llama_cpp.LlamaGrammar.from_string(
    'root ::= ("日本語" | "😀" | "é" | "👩‍👩‍👧" | "a")+', verbose=False
)


OVERLONG = dict.fromkeys((0xE0, 0xC0, 0xC1, 0x81, 0x82, 0x83, 0x86, 0x88), -100.0)
"""Bytes (and so tokens) that a random model needs for forbidden spellings of these characters;
llama.cpp's grammar takes them, Python's decoder does not."""


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> Iterator[Llama]:
    with open_own(tiny_model("llama")) as opened:
        yield opened


@pytest.fixture(scope="module")
def full(llm: Llama) -> str:
    llm.create_completion(PROMPT, **GREEDY)  # warms the matrix
    text = str(llm.create_completion(PROMPT, **GREEDY)["choices"][0]["text"])
    assert llm.stats.mat > 2
    return text


def both(llm: Llama, **options: Any) -> tuple[str, str, list[str]]:
    """The text at once, its finish reason, and the parts of the stream."""
    choice = llm.create_completion(PROMPT, **options)["choices"][0]
    chunks = [c["choices"][0] for c in llm.create_completion(PROMPT, stream=True, **options)]
    assert chunks[-1]["finish_reason"] == choice["finish_reason"]
    return choice["text"], choice["finish_reason"], [chunk["text"] for chunk in chunks]


@pytest.mark.parametrize("place", range(20))
def test_a_stop_string_ends_the_text_and_the_stream(llm: Llama, full: str, place: int) -> None:
    first = 5 + 6 * place
    stop = full[first : first + (1, 3, 5, 10)[place % 4]]
    text, reason, parts = both(llm, stop=[stop], **GREEDY)
    assert text == "".join(parts) == full[: full.index(stop)]
    assert reason == "stop"


def test_no_beginning_of_a_stop_string_is_streamed(llm: Llama, full: str) -> None:
    stop = full[60:70]
    streamed = ""
    for chunk in llm.create_completion(PROMPT, stream=True, stop=[stop], **GREEDY):
        streamed += chunk["choices"][0]["text"]
        assert full.startswith(streamed)
        assert len(streamed) <= full.index(stop)


def test_a_limit_behind_a_stop_string(llm: Llama, full: str) -> None:
    n_tokens = 12
    text = str(
        llm.create_completion(PROMPT, **GREEDY | {"max_tokens": n_tokens})["choices"][0]["text"]
    )
    stop = text[-6:-3]
    expected = text[: text.index(stop)]
    for max_tokens in range(n_tokens, n_tokens + 6):
        found, reason, parts = both(llm, stop=[stop], **GREEDY | {"max_tokens": max_tokens})
        assert (found, reason) == (expected, "stop")
        assert "".join(parts) == expected


@pytest.mark.parametrize("max_tokens", range(1, 25))
def test_characters_are_never_cut(llm: Llama, max_tokens: int) -> None:
    options: dict[str, Any] = {
        "temperature": 1.5,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": max_tokens,
    }
    options |= {"grammar": CHARACTERS, "logit_bias": OVERLONG, "max_tokens": max_tokens}
    text, _, parts = both(llm, **options)
    assert text == "".join(parts)
    assert "\N{REPLACEMENT CHARACTER}" not in text
