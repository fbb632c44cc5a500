"""LangChain's ChatLlamaCpp with edge_tr.Llama in place of the stock class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from drop_in import EXACT

import edge_tr
from edge_tr.drafts.template import SMALL_TREE

pytest.importorskip("langchain_community")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Llama has no argument '(n_parts|f16_kv)'"),
]

SCHEMA = {
    "title": "animal",
    "description": "An animal.",
    "type": "object",
    "properties": {"legs": {"type": "integer", "maximum": 9, "minimum": 0}},
    "required": ["legs"],
}

Open = Callable[[type, dict[str, Any]], Any]


@pytest.fixture
def open_chat(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """``open_chat(class, model_kwargs)``: a ChatLlamaCpp whose client is of that class."""
    from langchain_community.chat_models import ChatLlamaCpp

    opened: list[Any] = []

    def make(kind: type, model_kwargs: dict[str, Any]) -> Any:
        monkeypatch.setattr(llama_cpp, "Llama", kind)
        chat = ChatLlamaCpp(
            model_path=str(tiny_model("llama")),
            model_kwargs=EXACT | model_kwargs,
            n_batch=64,
            verbose=False,
            max_tokens=40,
            temperature=0.0,
        )
        opened.append(chat.client)
        return chat

    yield make
    for client in opened:
        client.close()


@pytest.fixture
def pair(open_chat: Open) -> tuple[Any, Any]:
    """A chat with the stock class, and one with ours that drafts at every step."""
    stock = open_chat(llama_cpp.Llama, {})
    own = {"speculative": SMALL_TREE, "matrix_path": False}
    return stock, open_chat(edge_tr.Llama, own)


def test_invoke(pair: tuple[Any, Any]) -> None:
    stock, own = (chat.invoke("Tell me of trees.").content for chat in pair)
    assert own == stock
    assert pair[1].client.stats.n_drafted > 0


def test_stream(pair: tuple[Any, Any]) -> None:
    stock, own = ([c.content for c in chat.stream("Tell me of trees.")] for chat in pair)
    assert own == stock


def test_structured_output(pair: tuple[Any, Any]) -> None:
    stock, own = (chat.with_structured_output(SCHEMA).invoke("A dog.") for chat in pair)
    assert own == stock
    assert set(own) == {"legs"}
