"""What is given back while nobody uses it, and comes back as it was."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Running, serving

from edge_tr.answer import AnswerConfig
from edge_tr.config import ContextConfig, DraftConfig, SamplingConfig
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import ConfigError, ModelError, ModelLoadError
from edge_tr.idle import Idle
from edge_tr.llama import kept_cells
from edge_tr.llama.drop_in import Llama
from edge_tr.session import Session

TinyModel = Callable[[str], Path]
IDLE_S = 60.0
FOREVER = 1e6


class Thing:
    """Something to free, with a clock of its own."""

    def __init__(self, idle_s: float | None = IDLE_S) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.fails = False
        self.is_there = True
        self.idle = Idle(idle_s, self.free, self.restore, clock=lambda: self.now)

    def free(self) -> None:
        self.is_there = False
        self.log.append("free")

    def restore(self) -> None:
        if self.fails:
            raise ModelLoadError("no memory")
        self.is_there = True
        self.log.append("restore")

    def use(self) -> bool:
        with self.idle.used():
            return self.is_there


# --- time ------------------------------------------------------------------------------------


def test_it_is_freed_once_when_nobody_used_it_for_some_time() -> None:
    thing = Thing()
    thing.now = 10.0
    assert thing.use()
    assert thing.idle.check() == IDLE_S
    thing.now = 69.0
    assert thing.idle.check() == 1.0
    thing.now = 70.0
    thing.idle.check()
    thing.now = 200.0
    thing.idle.check()
    assert thing.log == ["free"]
    assert thing.idle.is_asleep


def test_it_is_back_before_the_next_use_and_freed_again_later() -> None:
    thing = Thing()
    thing.now = IDLE_S
    thing.idle.check()
    assert thing.use()
    assert not thing.idle.is_asleep
    thing.now = 2 * IDLE_S
    thing.idle.check()
    assert thing.log == ["free", "restore", "free"]


def test_a_long_use_is_a_use_until_its_end() -> None:
    thing = Thing()
    with thing.idle.used():
        thing.now = 1000.0
        with thing.idle.used():
            thing.idle.check()
        thing.idle.check()
    thing.now = 1000.0 + IDLE_S - 1
    thing.idle.check()
    assert thing.log == []


def test_without_a_time_it_stays() -> None:
    thing = Thing(None)
    thing.idle.watch()
    thing.now = 1e9
    assert thing.use()
    assert thing.log == []


def test_what_cannot_be_brought_back_is_tried_again() -> None:
    thing = Thing()
    thing.now = IDLE_S
    thing.idle.check()
    thing.fails = True
    with pytest.raises(ModelLoadError):
        thing.use()
    assert thing.idle.is_asleep
    thing.fails = False
    assert thing.use()


def test_nothing_is_freed_after_the_end() -> None:
    thing = Thing()
    thing.idle.close()
    thing.now = IDLE_S
    thing.idle.check()
    assert thing.log == []


@pytest.mark.parametrize("idle_s", [0, -1, float("nan"), float("inf")])
def test_a_time_that_is_not_allowed(idle_s: float) -> None:
    with pytest.raises(ConfigError, match="idle_unload_s"):
        Thing(idle_s)


def test_its_thread_ends_with_it() -> None:
    thing = Thing()
    thing.idle.watch()
    threads = [t for t in threading.enumerate() if t.name == "edge-tr-idle"]
    assert threads
    gone = weakref.ref(thing.idle)
    del thing
    gc.collect()
    assert gone() is None
    threads[-1].join(60)
    assert not threads[-1].is_alive()


def test_threads_never_find_it_freed() -> None:
    thing, wrong, done = Thing(), [], threading.Event()

    def use() -> None:
        for _ in range(300):
            if not thing.use():
                wrong.append(threading.get_ident())

    def check() -> None:
        while not done.is_set():
            thing.now += 2 * IDLE_S
            thing.idle.check()

    checker = threading.Thread(target=check)
    checker.start()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(use)
    done.set()
    checker.join()
    assert not wrong
    assert "free" in thing.log


# --- a session -------------------------------------------------------------------------------

TREE = TreeTemplate.from_breadths([3, 2])
TEXT = list(range(5, 105))


@pytest.fixture
def open_session(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Session]]:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    opened: list[Session] = []

    def open_(arch: str = "llama", idle_unload_s: float | None = FOREVER) -> Session:
        context = ContextConfig(n_ctx=512, n_threads=1, n_threads_batch=1)
        draft = DraftConfig(speculative=TREE, start="empty")
        opened.append(
            Session(tiny_model(arch), context=context, draft=draft, idle_unload_s=idle_unload_s)
        )
        return opened[-1]

    yield open_
    for session in opened:
        session.close()


def fall_asleep(session: Session) -> None:
    """As if the time without a use were over."""
    session.idle._clock = lambda: session.idle._last + FOREVER
    session.idle.check()
    assert session.idle.is_asleep
    assert not session.model.pointer
    assert not session.target.pointer


def answered(session: Session, prompt: list[int], **config: Any) -> tuple[list[int], int]:
    """The tokens of an answer, and how many of the prompt were in the cache."""
    answer = session.answer(prompt, AnswerConfig(max_tokens=12, **config))
    for _ in answer:
        pass
    return answer.tokens, answer.stats.n_reused


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba"])
def test_a_conversation_goes_on_as_if_nothing_had_been(
    open_session: Callable[..., Session], arch: str
) -> None:
    asleep, awake = open_session(arch), open_session(arch, None)
    prompt = TEXT
    for turn in range(3):
        (tokens, n_reused), (expected, _) = answered(asleep, prompt), answered(awake, prompt)
        assert tokens == expected
        assert n_reused >= (len(TEXT) if turn else 0)
        prompt = [*prompt, *tokens, 7, 8, 9]
        fall_asleep(asleep)


def test_what_was_learned_stays(open_session: Callable[..., Session]) -> None:
    session = open_session()
    answered(session, TEXT)
    before = {name: np.copy(array) for name, array in session.candidates.to_arrays().items()}
    assert before["codes"].size
    fall_asleep(session)
    with session.idle.used():
        after = session.candidates.to_arrays()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


@pytest.mark.parametrize(("name", "value"), [("MAX_BYTES", 1000), ("MIN_TOKENS", 1000)])
def test_a_text_that_is_not_worth_keeping_is_read_again(
    open_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    monkeypatch.setattr(kept_cells, name, value)
    session = open_session()
    expected, _ = answered(session, TEXT)
    fall_asleep(session)
    assert answered(session, TEXT) == (expected, 0)


def test_a_cache_directory_that_cannot_be_written(
    open_session: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session()
    expected, _ = answered(session, TEXT)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "file"))
    fall_asleep(session)
    assert answered(session, TEXT) == (expected, 0)


def test_no_file_remains(open_session: Callable[..., Session], tmp_path: Path) -> None:
    session = open_session()
    answered(session, TEXT)
    fall_asleep(session)
    session.close()
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


def test_texts_and_answers_can_be_made_while_it_is_unloaded(
    open_session: Callable[..., Session],
) -> None:
    session = open_session()
    grammar = SamplingConfig(grammar='root ::= "one two three"')
    before = session.answer(TEXT, AnswerConfig(max_tokens=50, sampling=grammar))
    fall_asleep(session)
    asked = session.answer(session.prompt_tokens("Hello"), AnswerConfig(sampling=grammar))
    assert session.idle.is_asleep
    assert "".join(piece.text for piece in before) == "one two three"
    assert "".join(piece.text for piece in asked) == "one two three"


def test_an_open_stream_keeps_it(open_session: Callable[..., Session]) -> None:
    session = open_session()
    pieces = iter(session.answer(TEXT, AnswerConfig(max_tokens=20)))
    next(pieces)
    session.idle._clock = lambda: session.idle._last + FOREVER
    session.idle.check()
    assert not session.idle.is_asleep
    assert list(pieces)
    session.idle.check()
    assert session.idle.is_asleep


def test_a_file_that_was_replaced_meanwhile(
    open_session: Callable[..., Session], tiny_model: TinyModel, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_model("llama").read_bytes())
    context = ContextConfig(n_ctx=512, n_threads=1, n_threads_batch=1)
    draft = DraftConfig(speculative="off")
    with Session(path, context=context, draft=draft, idle_unload_s=FOREVER) as session:
        fall_asleep(session)
        path.write_bytes(tiny_model("gemma3").read_bytes())
        with pytest.raises(ModelLoadError, match="was changed meanwhile"):
            answered(session, TEXT)
        assert session.idle.is_asleep


def test_answers_of_many_threads_while_it_falls_asleep(
    open_session: Callable[..., Session],
) -> None:
    session = open_session()
    prompts = [[*TEXT, i, i + 1] for i in range(6)]
    alone = [answered(session, prompt)[0] for prompt in prompts]
    done = threading.Event()
    session.idle._clock = lambda: session.idle._last + FOREVER

    def check() -> None:
        while not done.is_set():
            session.idle.check()

    checker = threading.Thread(target=check)
    checker.start()
    try:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda prompt: answered(session, prompt)[0], prompts * 2))
    finally:
        done.set()
        checker.join()
    assert found == alone * 2


# --- a server --------------------------------------------------------------------------------


@pytest.fixture
def running(tiny_model: TinyModel) -> Iterator[Running]:
    with serving(tiny_model("llama"), idle_unload_s=FOREVER) as server:
        yield server


def test_a_server_tells_that_the_model_is_unloaded_and_answers_all_the_same(
    running: Running,
) -> None:
    def state() -> tuple[str, str]:
        lines = running.http.get("/metrics").text.splitlines()
        loaded = next(x.split()[1] for x in lines if x.startswith("edge_tr_model_loaded "))
        return running.http.get("/health").json()["model"], loaded

    def ask() -> Any:
        body = {"prompt": "the of and " * 20, "max_tokens": 8, "temperature": 0}
        return running.http.post("/v1/completions", json=body).json()

    first = ask()
    assert state() == ("loaded", "1.0")
    fall_asleep(running.service.session)
    assert state() == ("unloaded", "0.0")
    assert running.http.get("/v1/models").status_code == 200
    assert state() == ("unloaded", "0.0")
    with ThreadPoolExecutor(4) as pool:
        answers = [call.result() for call in [pool.submit(ask) for _ in range(4)]]
    assert [a["choices"][0]["text"] for a in answers] == [first["choices"][0]["text"]] * 4
    assert answers[0]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert state() == ("loaded", "1.0")


def test_embeddings_are_unloaded_too(running: Running) -> None:
    embedder: Any = running.service.embedder
    body = {"input": "the of"}
    first = running.http.post("/v1/embeddings", json=body).json()["data"]
    embedder.idle._clock = lambda: embedder.idle._last + FOREVER
    embedder.idle.check()
    assert embedder._llm is None
    assert running.http.post("/v1/embeddings", json=body).json()["data"] == first


# --- the drop-in class -----------------------------------------------------------------------


@pytest.fixture
def open_llama(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Llama]]:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    opened: list[Llama] = []

    def open_(idle_unload_s: float | None = FOREVER, **options: Any) -> Llama:
        fixed: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "verbose": False}
        own: dict[str, Any] = {"speculative": TREE, "matrix_path": False}
        path = str(tiny_model("llama"))
        opened.append(Llama(path, idle_unload_s=idle_unload_s, **own, **fixed | options))
        return opened[-1]

    yield open_
    for llm in opened:
        llm.close()


def sleep(llm: Llama) -> None:
    llm._idle._clock = lambda: llm._idle._last + FOREVER
    llm._idle.check()
    assert llm.is_unloaded


def completed(llm: Llama, prompt: list[int], **options: Any) -> str:
    options = {"max_tokens": 12, "temperature": 0} | options
    return str(llm.create_completion(prompt, **options)["choices"][0]["text"])


def test_a_llama_goes_on_as_if_nothing_had_been(open_llama: Callable[..., Llama]) -> None:
    asleep, awake = open_llama(), open_llama(None)
    for n, least in ((60, 0), (80, 60), (100, 80)):
        assert completed(asleep, TEXT[:n]) == completed(awake, TEXT[:n])
        assert asleep.stats.n_reused >= least
        sleep(asleep)


WITHOUT_WEIGHTS: list[Callable[[Llama], Any]] = [
    lambda one: one.tokenize(b"the of"),
    lambda one: one.detokenize([5, 6, 7]),
    lambda one: one.n_vocab(),
    lambda one: one.token_eos(),
    lambda one: one.metadata,
]


def test_what_needs_no_weights_does_not_load_them(open_llama: Callable[..., Llama]) -> None:
    llm, other = open_llama(), open_llama(None)
    sleep(llm)
    for use in WITHOUT_WEIGHTS:
        assert use(llm) == use(other)
    assert llm.is_unloaded


@pytest.mark.parametrize(
    "use",
    [
        lambda one: one.n_ctx(),
        lambda one: (one.eval([9, 10]), one.n_tokens)[1],
        lambda one: one.save_state().n_tokens,
        lambda one: next(one.generate([5, 6, 7], temp=0.0)),
        lambda one: one.create_chat_completion(
            [{"role": "user", "content": "a"}], max_tokens=3, temperature=0, seed=1
        )["choices"][0]["message"],
    ],
)
@pytest.mark.parametrize("n", [10, 60])
def test_what_needs_them_loads_them(
    open_llama: Callable[..., Llama], use: Callable[[Llama], Any], n: int
) -> None:
    llm, other = open_llama(), open_llama(None)
    for one in (llm, other):
        one.eval(TEXT[:n])  # a short text is not kept and a long one is
    sleep(llm)
    assert use(llm) == use(other)
    assert not llm.is_unloaded
    assert completed(llm, TEXT) == completed(other, TEXT)
    assert llm.notices == other.notices


def test_a_state_that_was_saved_before(open_llama: Callable[..., Llama]) -> None:
    llm = open_llama()
    expected = completed(llm, TEXT)
    state = llm.save_state()
    sleep(llm)
    llm.load_state(state)
    assert completed(llm, TEXT) == expected


def test_a_llama_that_is_closed_while_it_is_unloaded(open_llama: Callable[..., Llama]) -> None:
    llm = open_llama()
    completed(llm, TEXT)
    sleep(llm)
    llm.close()
    with pytest.raises(ModelError, match="closed"):
        completed(llm, TEXT)


def test_a_llama_that_is_dropped_is_freed(open_llama: Callable[..., Llama]) -> None:
    llm = open_llama()
    completed(llm, TEXT)
    sleep(llm)
    other: Any = pickle.loads(pickle.dumps(llm))
    assert completed(other, TEXT) == completed(llm, TEXT)
    assert not other.is_unloaded
    sleep(other)
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None


def test_a_llama_without_a_text_cannot_be_unloaded(open_llama: Callable[..., Llama]) -> None:
    with pytest.raises(ConfigError, match="idle_unload_s is not for embeddings"):
        open_llama(embedding=True)
