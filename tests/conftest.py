"""Fixtures shared by all tests: model files."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from edge_tr import models
from edge_tr.gguf_info import inspect


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``tiny_model(arch)``: a tiny random-weight model, written once per session."""
    directory = tmp_path_factory.mktemp("tiny")

    @cache
    def write(arch: str) -> Path:
        return models.write_tiny(directory / f"{arch}.gguf", arch)

    return write


@pytest.fixture(scope="session")
def smollm2_q4_0() -> Path:
    """SmolLM2-135M-Instruct in Q4_0, which must have been brought before."""
    path = models.location("smollm2-q4_0")
    if not path.exists():
        pytest.fail(f"{path} is missing; `edge-tr model get` brings it")
    return inspect(path).path
