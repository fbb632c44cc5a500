"""Fixtures shared by all tests: model files; tests that need a GPU are skipped without one."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from edge_tr import models
from edge_tr.drafts import compiled
from edge_tr.gguf_file.info import inspect


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("slow") and not os.environ.get("EDGE_TR_SLOW"):
        pytest.skip("takes minutes; EDGE_TR_SLOW=1 runs it")
    if item.get_closest_marker("gpu"):
        from edge_tr.llama import devices

        names = [devices.description(device) for device in devices.gpus()]
        if not names:
            pytest.skip("this build of llama.cpp sees no GPU")
        if item.get_closest_marker("model") and all("llvmpipe" in name for name in names):
            pytest.skip("a real model takes an hour on Mesa's software device")


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """No answer is plain because the drafter is still being compiled."""
    compiled.compile_now()


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
