"""The drop-in class, the server, several contexts, cancelling and RPC with a model on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from on_gpu import (
    CONTEXT,
    DRAFTABLE,
    TREE,
    WIDTHS,
    Open,
    compared,
    drafting,
    model_of,
    open_target,
    prompt_of,
    text_of,
)
from serving import NAME, serving
from test_rpc import needs_rpc, rpc_server

from edge_tr import Llama
from edge_tr.config import ContextConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.errors import CancelledError
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.equality import TextPair, compare_texts
from edge_tr.target import Batch, Float32

pytestmark = pytest.mark.gpu
__all__ = ["model_of", "open_target"]

TinyModel = Callable[[str], Path]
OPTIONS: dict[str, Any] = {**CONTEXT, "n_gpu_layers": -1, "verbose": False}
PROMPT = prompt_of(30)


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path / "data"))


def own_of(path: Path, **options: Any) -> Llama:
    return Llama(str(path), **OPTIONS | {"speculative": TREE, "matrix_path": False} | options)


def greedy(llm: Any, n: int = 100, prompt: list[int] = PROMPT) -> list[int]:
    return list(islice(llm.generate(prompt, temp=0.0), n))


@pytest.mark.parametrize("arch", DRAFTABLE)
def test_the_drop_in_class_differs_from_the_stock_one_by_rounding_alone(
    tiny_model: TinyModel, open_target: Open, arch: str
) -> None:
    stock = llama_cpp.Llama(str(tiny_model(arch)), **OPTIONS)
    with own_of(tiny_model(arch)) as own:
        texts = greedy(stock), greedy(own)
        assert own.stats.n_accepted > 0
    stock.close()
    pair = TextPair(arch, np.array(PROMPT, dtype=np.int32), *texts)
    report = compare_texts(open_target(arch), [pair], widths=WIDTHS)
    assert report.violations == (), report.to_dict()


@pytest.mark.parametrize("arch", [*DRAFTABLE, "jamba"])
def test_a_state_goes_to_another_context(tiny_model: TinyModel, arch: str) -> None:
    with own_of(tiny_model(arch)) as first, own_of(tiny_model(arch), speculative="off") as second:
        text = [*PROMPT, *greedy(first, 20)]
        first.reset()
        first.eval(text)
        state = first.save_state()
        wanted = greedy(second, 40, text)
        greedy(second, 10, prompt_of(5, seed=1))
        second.load_state(state)
        assert second.n_tokens == len(text)
        assert greedy(second, 40, [*text, wanted[0]])[:10] == wanted[1:11]
        assert second.stats.n_reused >= len(text)


def test_the_server_writes_the_text_of_the_model(tiny_model: TinyModel) -> None:
    prompt_text = "the cat and the dog"
    body = {"model": NAME, "prompt": prompt_text, "max_tokens": 30, "temperature": 0}
    with serving(tiny_model("llama"), tree=TREE, n_gpu_layers=-1) as running:
        answer = running.http.post("/v1/completions", json=body).raise_for_status().json()
        prompt = running.service.session.prompt_tokens(prompt_text, chat=False)
        assert running.service.session.stats.n_drafted > 0
    assert answer["usage"]["completion_tokens"] == 30
    with own_of(tiny_model("llama")) as own:
        tokens = greedy(own, 30, prompt.tolist())
        text = own.detokenize(tokens).decode("utf-8", "ignore")
    assert answer["choices"][0]["text"] == text


def test_two_contexts_decode_at_the_same_time(open_target: Open) -> None:
    decoders = [Decoder(open_target(arch)) for arch in ("llama", "gemma3", "llama")]
    wanted = [text_of(decoder, prompt_of(30, i), 60) for i, decoder in enumerate(decoders)]
    found: dict[int, list[int]] = {}

    def run(i: int) -> None:
        found[i] = text_of(Decoder(decoders[i].target), prompt_of(30, i), 60)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(3)] == wanted


@pytest.mark.parametrize("at_call", [1, 3, 12])
def test_cancelling_leaves_a_decoder_that_works(
    open_target: Open, monkeypatch: pytest.MonkeyPatch, at_call: int
) -> None:
    """Before the prompt's first part, before its last, and while decoding. llama.cpp's abort
    callback is for the CPU: a GPU finishes the call that it is at."""
    target = open_target(n_batch=32)
    decoder, decode, calls = drafting(target), target.decode, iter(range(1, 1000))
    prompt = prompt_of(90)
    wanted = text_of(Decoder(target), prompt, 40)

    def cancel_and_decode(batch: Batch) -> Float32:
        if next(calls) == at_call:
            decoder.cancel()
        return decode(batch)

    monkeypatch.setattr(target, "decode", cancel_and_decode)
    with pytest.raises(CancelledError):
        text_of(decoder, prompt)
    assert decoder.n_past <= 32 * at_call
    monkeypatch.undo()
    pair = TextPair("", np.array(prompt, dtype=np.int32), wanted, text_of(decoder, prompt, 40))
    report = compare_texts(target, [pair], widths=WIDTHS)
    assert report.violations == (), report.to_dict()


@pytest.fixture
def lender() -> Iterator[str]:
    """A server that lends the GPU of this machine; Mesa 22.3 dies of a second model."""
    with rpc_server() as (name, _):
        yield name


@needs_rpc
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_server_that_owns_the_gpu_takes_layers(
    tiny_model: TinyModel, lender: str, arch: str
) -> None:
    with (
        Model(tiny_model(arch), n_gpu_layers=-1, rpc=lender) as model,
        LlamaTarget(model, ContextConfig(**CONTEXT)) as target,
    ):
        report = compared(target, [prompt_of(30, seed) for seed in range(2)], 60)
    assert report.violations == (), report.to_dict()
