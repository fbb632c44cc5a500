"""Where nobody named flash attention: on where our kernels do all of it, else off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge_tr.config import ContextConfig
from edge_tr.gguf_file.info import inspect
from edge_tr.llama import devices, kernels
from edge_tr.llama.context_params import settled
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget

TinyModel = Callable[[str], Path]


@pytest.fixture(autouse=True)
def our_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "active", lambda: kernels.ALL)
    monkeypatch.setattr(devices, "has_gpu", lambda: False)


def fake_model(key: int = 64, value: int = 64, n_gpu_layers: int = -1, rpc: str = "") -> Model:
    info = SimpleNamespace(key_size=key, value_size=value)
    return cast(Model, SimpleNamespace(info=info, n_gpu_layers=n_gpu_layers, rpc=rpc))


def is_on(model: Model, **config: Any) -> bool | None:
    return settled(model, ContextConfig(**config)).flash_attn


@pytest.mark.parametrize(
    ("sizes", "config", "on"),
    [
        ((64, 64), {}, True),
        ((256, 256), {"type_k": "q8_0", "type_v": "q8_0"}, True),
        ((80, 80), {}, True),
        ((80, 80), {"type_k": "q8_0"}, False),
        ((72, 72), {}, False),
        ((64, 72), {}, False),
        ((0, 0), {}, False),
        ((64, 64), {"type_k": "q4_0"}, False),
        ((64, 64), {"type_v": "q4_0"}, True),  # llama.cpp has no other way
    ],
)
def test_it_is_on_where_our_kernels_do_all_of_it(
    sizes: tuple[int, int], config: dict[str, Any], on: bool
) -> None:
    assert is_on(fake_model(*sizes), **config) is on


@pytest.mark.parametrize("named", [False, True])
def test_what_was_named_stays(named: bool) -> None:
    assert is_on(fake_model(), flash_attn=named) is named


def test_it_is_off_without_our_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "active", lambda: kernels.ALL - kernels.ATTENTION)
    assert is_on(fake_model()) is False


def test_it_is_off_where_layers_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_on(fake_model(rpc="host:1")) is False
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    assert is_on(fake_model()) is False
    assert is_on(fake_model(n_gpu_layers=0)) is True


def test_heads_are_read_from_the_header(tiny_model: TinyModel) -> None:
    info = inspect(tiny_model("llama"))
    assert (info.key_size, info.value_size) == (64, 64)


@pytest.mark.skipif(
    not (kernels.info() or {}).get("isa"),
    reason="this build of llama.cpp has no kernels of ours",
)
def test_an_open_context_says_which_it_took(tiny_model: TinyModel) -> None:
    path, config = tiny_model("llama"), ContextConfig(n_ctx=256)
    with Model(path, n_gpu_layers=0) as model, LlamaTarget(model, config) as target:
        assert target.config.flash_attn is True
        assert target.may_change_threads
