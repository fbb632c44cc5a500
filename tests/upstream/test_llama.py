"""llama-cpp-python's own tests of its Llama, run on edge_tr.Llama with drafting forced.

See README.md beside it for what stands in for what, and why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import llama_cpp
import pytest

import edge_tr
from edge_tr.drafts.template import TreeTemplate

SOURCE = Path(__file__).with_name("llama_cpp_python_0.3.36_test_llama.txt")

STAND_INS = {
    "lmstudio-community/Qwen3.5-0.8B-GGUF": "smollm2",
    "ggml-org/models": "llama",
    "CompendiumLabs/bge-small-en-v1.5-gguf": "bert",
    "QuantFactory/mamba-130m-hf-GGUF": "mamba",
    "tiiuae/Falcon-H1-Tiny-90M-Instruct-GGUF": "jamba",
}
"""The model that is used by the repository that the test would fetch it from."""

REPLACEMENTS = {
    '" jumps over the lazy dog."': r'" is lazy.\n\nThe"',
    "model.set_seed(1337)": "model.set_seed(1341)",
}
"""What the stock class writes with SmolLM2, and a seed whose first two numbers differ there."""

NEEDS_MORE = {
    "test_llama_cpp_tokenization": "a vocabulary file of the source archive",
    "test_real_model": "token ids of Qwen3.5; does not use Llama",
}


def _stub(name: str, attribute: str) -> ModuleType:
    module = ModuleType(name)
    setattr(module, attribute, None)
    return module


def _load() -> ModuleType:
    text = SOURCE.read_text()
    for old, new in REPLACEMENTS.items():
        assert old in text
        text = text.replace(old, new)
    module = ModuleType("upstream_test_llama")
    missing = {
        "huggingface_hub": _stub("huggingface_hub", "hf_hub_download"),
        "scipy": ModuleType("scipy"),
        "scipy.special": _stub("scipy.special", "log_softmax"),  # imported and never used
    }
    with patch.dict(sys.modules, missing):
        exec(compile(text, SOURCE, "exec"), module.__dict__)
    return module


upstream: Any = _load()


class Drafting(edge_tr.Llama):
    """Opened as the stock class is, and drafts at every step."""

    def __init__(self, *args: Any, **options: Any) -> None:
        own = {"speculative": TreeTemplate.paper(), "matrix_path": False}
        super().__init__(*args, **options | own)


@pytest.fixture(autouse=True)
def stand_ins(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tiny_model: Callable[[str], Path],
) -> Iterator[None]:
    """Our class in place of theirs, and our models in place of those they fetch."""
    opened: list[edge_tr.Llama] = []

    class Tracked(Drafting):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            opened.append(self)

    def path_of(repo_id: str, filename: str) -> str:
        model = STAND_INS[repo_id]
        path = request.getfixturevalue("smollm2_q4_0") if model == "smollm2" else tiny_model(model)
        return str(path)

    monkeypatch.setattr(llama_cpp, "Llama", Tracked)
    monkeypatch.setattr(upstream, "hf_hub_download", path_of)
    yield
    for llm in opened:
        llm.close()


for _name, _value in vars(upstream).items():
    if _name.endswith("_model_path"):
        globals()[_name] = _value
    elif _name.startswith("test_") and _name not in NEEDS_MORE:
        _is_real = "llama_cpp_model_path" in signature(_value).parameters
        globals()[_name] = pytest.mark.model(_value) if _is_real else _value


def test_every_test_left_out_is_there() -> None:
    assert vars(upstream).keys() >= NEEDS_MORE.keys()
