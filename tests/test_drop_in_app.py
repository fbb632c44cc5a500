"""edge_tr.Llama inside an application: cancel, threads, asyncio, the end, copies and forks."""

from __future__ import annotations

import asyncio
import copy
import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from drop_in import open_own

from edge_tr import Llama
from edge_tr.errors import CancelledError, ModelError

PROMPT = "Once upon a time there was a"
GREEDY: dict[str, Any] = {"max_tokens": 30, "temperature": 0.0}

TinyModel = Callable[[str], Path]


@pytest.fixture
def llm(tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Llama]:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path / "data"))
    with open_own(tiny_model("llama"), n_ctx=4352) as opened:
        yield opened


def text_of(llm: Llama, prompt: Any = PROMPT, **options: Any) -> str:
    return str(llm.create_completion(prompt, **GREEDY | options)["choices"][0]["text"])


class Slow:
    """A logits processor that says when it is in, and waits until it may go on."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.entered.set()
        self.go_on.wait()
        return scores


def test_cancel_while_tokens_come(llm: Llama) -> None:
    expected = text_of(llm)
    slow = Slow()
    processor = llama_cpp.LogitsProcessorList([slow])
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(text_of, llm, max_tokens=2000, logits_processor=processor)
        slow.entered.wait()
        llm.cancel()
        slow.go_on.set()
        with pytest.raises(CancelledError):
            call.result()
    assert text_of(llm) == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [0, 3])
def test_an_exception_in_a_logits_processor_reaches_the_caller(
    llm: Llama, stream: bool, at: int
) -> None:
    expected = text_of(llm)
    calls = 0

    def fail(input_ids: Any, scores: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > at:
            raise LookupError("of the processor")
        return scores

    processor = llama_cpp.LogitsProcessorList([fail])
    with pytest.raises(LookupError, match="of the processor"):
        list(llm.create_completion(PROMPT, stream=stream, logits_processor=processor, **GREEDY))
    assert text_of(llm) == expected


SLOW_GRAMMAR = "root ::= (" + "[a-z]? " * 12 + ")+"


def test_cancel_in_a_slow_grammar(llm: Llama) -> None:
    expected = text_of(llm)
    grammar = llama_cpp.LlamaGrammar.from_string(SLOW_GRAMMAR, verbose=False)
    chunks = llm.create_completion(
        PROMPT, stream=True, grammar=grammar, **GREEDY | {"max_tokens": 4000}
    )
    assert next(chunks)
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, chunks)
        llm.cancel()
        with pytest.raises(CancelledError):
            rest.result()
    assert text_of(llm) == expected


def test_cancel_in_a_prefill_of_4000_tokens(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = text_of(llm)
    target: Any = llm._decoder.target  # type: ignore[union-attr]
    decode, reading = target.decode, threading.Event()
    n_read = 0

    def watched(batch: Any) -> Any:
        nonlocal n_read
        reading.set()
        n_read += batch.n
        return decode(batch)

    monkeypatch.setattr(target, "decode", watched)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(text_of, llm, [7] * 4000)
        reading.wait()
        llm.cancel()
        with pytest.raises(CancelledError):
            call.result()
    assert n_read < 4000
    assert text_of(llm) == expected
    with open_own(Path(llm.model_path), n_ctx=4352) as fresh:
        assert text_of(llm, [7] * 4000) == text_of(fresh, [7] * 4000)


def test_cancel_without_anything_to_cancel(llm: Llama) -> None:
    llm.cancel()
    assert text_of(llm)


def test_cancel_of_a_stream_that_waits_for_its_reader(llm: Llama) -> None:
    stream = llm.create_completion(PROMPT, stream=True, **GREEDY)
    next(stream)
    llm.cancel()
    with pytest.raises(CancelledError):
        next(stream)
    assert text_of(llm)


def test_two_threads_with_five_requests_each(llm: Llama) -> None:
    prompts = [f"{PROMPT} {word}" for word in ("tree", "leaf", "path", "node", "root")]
    expected = [text_of(llm, p, temperature=0.8, seed=4) for p in prompts]

    def ask(order: int) -> list[str]:
        return [text_of(llm, p, temperature=0.8, seed=4) for p in prompts[::order]][::order]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, (1, -1))) == [expected, expected]


def test_streams_of_two_threads(llm: Llama) -> None:
    expected = text_of(llm)

    def read() -> str:
        chunks = llm.create_completion(PROMPT, stream=True, **GREEDY)
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    with ThreadPoolExecutor(2) as pool:
        assert [f.result() for f in [pool.submit(read) for _ in range(4)]] == [expected] * 4


def test_what_one_thread_asks_for_is_not_told_to_another(tiny_model: TinyModel) -> None:
    with open_own(tiny_model("llama"), n_ctx=512, logits_all=True) as llm:

        def with_logprobs() -> Any:
            return llm.create_completion(PROMPT, **GREEDY | {"max_tokens": 5, "logprobs": 2})

        def tokens_of_a_stream() -> list[int]:
            return list(itertools.islice(llm.generate([1, 2, 3], temp=0.0), 40))

        asks = [with_logprobs, tokens_of_a_stream] * 4
        expected = [with_logprobs()["choices"], tokens_of_a_stream()] * 4
        with ThreadPoolExecutor(2) as pool:
            found = [call.result() for call in [pool.submit(ask) for ask in asks]]
        assert [f["choices"] if isinstance(f, dict) else f for f in found] == expected


def test_a_stream_that_ends_takes_nothing_from_a_call(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_own(tiny_model("llama"), n_ctx=512, logits_all=True) as llm:
        chunks = llm.create_completion(PROMPT, stream=True, **GREEDY)
        next(chunks)

        def tokenize(*args: Any, **options: Any) -> list[int]:
            chunks.close()
            return [*Llama.tokenize(llm, *args, **options)]

        monkeypatch.setattr(llm, "tokenize", tokenize)
        answer = llm.create_completion(PROMPT, **GREEDY | {"max_tokens": 3, "logprobs": 1})
        assert len(answer["choices"][0]["logprobs"]["tokens"]) == 3


def test_a_call_inside_a_call_has_arguments_of_its_own(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_own(tiny_model("llama"), n_ctx=512, logits_all=True) as llm:
        inner: list[int] = []

        def tokenize(*args: Any, **options: Any) -> list[int]:
            inner.extend(itertools.islice(llm.generate([1, 2, 3], temp=0.0), 10))
            return [*Llama.tokenize(llm, *args, **options)]

        monkeypatch.setattr(llm, "tokenize", tokenize)
        answer = llm.create_completion(PROMPT, **GREEDY | {"max_tokens": 3, "logprobs": 1})
        assert len(inner) == 10
        assert len(answer["choices"][0]["logprobs"]["tokens"]) == 3


def test_a_subclass_may_change_generate(tiny_model: TinyModel) -> None:
    class Counting(Llama):
        n_tokens_seen = 0

        def generate(self, *args: Any, **options: Any) -> Any:
            for token in super().generate(*args, **options):
                self.n_tokens_seen += 1
                yield token

    options: dict[str, Any] = {"matrix_path": False, "logits_all": True, "verbose": False}
    with Counting(str(tiny_model("llama")), **options) as llm:
        answer = llm.create_completion(PROMPT, **GREEDY | {"max_tokens": 5, "logprobs": 1})
        assert len(answer["choices"][0]["logprobs"]["tokens"]) == llm.n_tokens_seen == 5


def test_a_stream_that_several_threads_advance(llm: Llama) -> None:
    expected = text_of(llm)
    chunks = llm.create_completion(PROMPT, stream=True, **GREEDY)
    text = ""
    for _ in itertools.count():
        with ThreadPoolExecutor(1) as pool:  # a new thread for each chunk
            chunk = pool.submit(next, chunks, None).result()
        if chunk is None:
            break
        text += chunk["choices"][0]["text"]
    assert text == expected


def test_a_stream_gives_way_to_a_call_of_its_thread(llm: Llama) -> None:
    expected, other = text_of(llm), text_of(llm, "Other words")
    chunks = llm.create_completion(PROMPT, stream=True, **GREEDY)
    text = ""
    for chunk in chunks:
        text += chunk["choices"][0]["text"]
        if len(text) < 60:
            assert text_of(llm, "Other words") == other
    assert text == expected


def test_a_stream_left_alone_holds_nobody_up(llm: Llama) -> None:
    stream = llm.create_completion(PROMPT, stream=True, **GREEDY)
    next(stream)
    del stream
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(text_of, llm).result()


def test_async_chunks_do_not_block_the_event_loop(llm: Llama) -> None:
    expected = text_of(llm)
    slow = Slow()

    async def main() -> str:
        processor = llama_cpp.LogitsProcessorList([slow])

        async def read() -> str:
            chunks = llm.stream_completion(PROMPT, logits_processor=processor, **GREEDY)
            return "".join([chunk["choices"][0]["text"] async for chunk in chunks])

        reading = asyncio.create_task(read())
        while not slow.entered.is_set():
            await asyncio.sleep(0)
        slow.go_on.set()  # the loop got here while the generation waits
        return await reading

    assert asyncio.run(main()) == expected


def test_async_chat(llm: Llama) -> None:
    async def main() -> list[Any]:
        chunks = llm.stream_chat_completion([{"role": "user", "content": "Hello"}], max_tokens=3)
        return [chunk async for chunk in chunks]

    assert asyncio.run(main())[-1]["choices"][0]["finish_reason"] == "length"


def test_a_cancelled_task_cancels_the_generation(llm: Llama) -> None:
    slow = Slow()

    async def main() -> None:
        processor = llama_cpp.LogitsProcessorList([slow])

        async def read() -> None:
            async for _ in llm.stream_completion(
                PROMPT, max_tokens=4000, logits_processor=processor
            ):
                pass

        reading = asyncio.create_task(read())
        while not slow.entered.is_set():
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.sleep(0)
        slow.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(main())
    assert text_of(llm)


def test_a_cancelled_task_that_waits_for_its_turn(llm: Llama) -> None:
    stream = llm.create_completion(PROMPT, stream=True, **GREEDY)
    next(stream)

    async def main() -> None:
        async def read() -> None:
            async for _ in llm.stream_completion(PROMPT):
                pass

        reading = asyncio.create_task(read())
        while not llm._turns._waiting:
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(main())
    assert list(stream)


def test_an_async_reader_that_stops_early(llm: Llama) -> None:
    async def main() -> None:
        chunks = llm.stream_completion(PROMPT, **GREEDY)
        async for _ in chunks:
            break
        await chunks.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert text_of(llm)


def test_close_stops_who_runs(llm: Llama) -> None:
    slow = Slow()
    processor = llama_cpp.LogitsProcessorList([slow])
    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(text_of, llm, max_tokens=4000, logits_processor=processor)
        slow.entered.wait()
        closing = pool.submit(llm.close)
        slow.go_on.set()
        closing.result()
        with pytest.raises((CancelledError, ModelError)):
            call.result()


@pytest.mark.parametrize(
    "use",
    [
        lambda llm: llm.create_completion(PROMPT),
        lambda llm: llm.tokenize(b"text"),
        lambda llm: llm.detokenize([1]),
        lambda llm: llm.eval([1]),
        lambda llm: llm.reset(),
        lambda llm: llm.save_state(),
        lambda llm: llm.n_vocab(),
        lambda llm: llm.create_chat_completion([{"role": "user", "content": "Hello"}]),
    ],
)
def test_a_closed_model_says_so(llm: Llama, use: Callable[[Llama], Any]) -> None:
    llm.close()
    llm.close()
    with pytest.raises(ModelError, match="closed"):
        use(llm)


def test_a_stream_that_outlives_its_model(llm: Llama) -> None:
    stream = llm.create_completion(PROMPT, stream=True, **GREEDY)
    next(stream)
    llm.close()
    with pytest.raises(ModelError, match="closed"):
        next(stream)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_a_copy_is_refused(llm: Llama, make: Callable[[Llama], Llama]) -> None:
    with pytest.raises(ModelError, match="cannot be copied"):
        make(llm)


def _use_in_child(llm: Llama, answers: Any) -> None:
    try:
        text_of(llm)
    except ModelError as error:
        answers.put(str(error))
    llm.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_is_refused(llm: Llama) -> None:
    expected = text_of(llm)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_use_in_child, args=(llm, answers))
    child.start()
    assert "cannot be used in a fork" in answers.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert text_of(llm) == expected


EXITS = {
    "never closed": "pass",
    "a stream is open": "s = llm.create_completion('a', stream=True); next(s)",
    "a generator is open": "g = llm.generate([1, 2]); next(g)",
    "a thread generates": """
import threading
threading.excepthook = lambda args: None
running = threading.Event()
def run():
    for _ in llm.generate([1, 2]):
        running.set()
threading.Thread(target=run, daemon=True).start()
running.wait()
""",
    "a cycle holds it": "llm.me = llm",
    "forked": "import os; p = os.fork(); p and os.waitpid(p, 0)",
}


@pytest.mark.parametrize("what", EXITS)
def test_a_process_that_never_closes_ends_well(tiny_model: TinyModel, what: str) -> None:
    code = (
        "import edge_tr\n"
        f"llm = edge_tr.Llama({str(tiny_model('llama'))!r}, n_ctx=4096, n_threads=1,\n"
        "    n_threads_batch=1, speculative=[[0]], matrix_path=False, verbose=False)\n"
        f"{EXITS[what]}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
