"""Embeddings: encoders and generating models, limits, encodings."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_tr.errors import ConfigError, ModelFileError
from edge_tr.llama.embedder import Embedder
from edge_tr.server.embeddings import encode


@pytest.fixture(params=["bert", "llama"])
def embedder(
    request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]
) -> Iterator[Embedder]:
    opened = Embedder(tiny_model(request.param), n_threads=1)
    yield opened
    opened.close()


def test_vectors_have_length_one(embedder: Embedder) -> None:
    vectors, _ = embedder.embed(["the of", "and"])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1])


def test_a_vector_does_not_depend_on_its_neighbours(embedder: Embedder) -> None:
    [alone], _ = embedder.embed(["the of"])
    [_, beside], _ = embedder.embed(["and", "the of"])
    assert beside == pytest.approx(alone)


def test_other_texts_have_other_vectors(embedder: Embedder) -> None:
    [one, other], _ = embedder.embed(["the of", "name type"])
    assert one != pytest.approx(other)


def test_tokens_are_counted(embedder: Embedder) -> None:
    n_tokens = [embedder.embed(texts)[1] for texts in (["the of"], ["and"], ["the of", "and"])]
    assert n_tokens[2] == n_tokens[0] + n_tokens[1]


@pytest.mark.parametrize(("text", "n"), [("", 0), ("x " * 3000, 6000)])
def test_a_text_of_a_length_that_is_not_allowed(embedder: Embedder, text: str, n: int) -> None:
    with pytest.raises(ConfigError, match=f"text 1 has {n} tokens; it must have 1 to"):
        embedder.embed(["the", text])


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        Embedder(tmp_path / "missing.gguf")


def test_closing_twice(embedder: Embedder) -> None:
    embedder.embed(["the"])
    embedder.close()
    embedder.close()


def test_base64_is_float32() -> None:
    packed = encode([0.5, -1.0], "base64")
    assert isinstance(packed, str)
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == [0.5, -1.0]


def test_numbers_that_json_lacks_are_zero() -> None:
    assert encode([float("nan"), 1.0], "float") == [0.0, 1.0]
