"""The state of edge_tr.Llama: what it opens, keeps, saves and exchanges with the stock class."""

from __future__ import annotations

import gc
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from drop_in import PAPER, open_own, open_stock
from ggml import write_lora
from llama_cpp import _internals as internals
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from edge_tr import Llama
from edge_tr.errors import ConfigError, ContextFullError, MatrixFileError, ModelUnsupportedError
from edge_tr.llama.kept_rows import RecentRows

PROMPT = "Once upon a time there was a"
GREEDY: dict[str, Any] = {"max_tokens": 30, "temperature": 0.0}

TinyModel = Callable[[str], Path]
Open = Callable[..., Llama]


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def open_tiny(tiny_model: TinyModel) -> Iterator[Open]:
    """``open_tiny(arch, **options)``: closed when the test ends."""
    opened: list[Llama] = []

    def make(arch: str = "llama", **options: Any) -> Llama:
        opened.append(open_own(tiny_model(arch), **options))
        return opened[-1]

    yield make
    for llm in opened:
        llm.close()


def text_of(llm: Any, prompt: Any = PROMPT, **options: Any) -> str:
    return str(llm.create_completion(prompt, **GREEDY | options)["choices"][0]["text"])


def test_an_unknown_argument_is_named(open_tiny: Open) -> None:
    with pytest.warns(UserWarning, match="no argument 'n_lookahead'"):
        open_tiny(n_lookahead=3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speculative": "on"}, "speculative 'on' is not allowed"),
        ({"exact": "yes"}, "exact 'yes' is not allowed"),
        ({"matrix_path": 5}, "matrix_path 5 is not allowed"),
        ({"speculative": [[0], [0, 1, 2]]}, "has no parent"),
        ({"n_ctx": -1, "speculative": "of"}, "speculative 'of'"),
    ],
)
def test_bad_values_are_named(open_tiny: Open, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_tiny(**options)


def test_the_errors_of_the_stock_class(open_tiny: Open, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Model path does not exist"):
        open_own(tmp_path / "none.gguf")
    with pytest.raises(ValueError, match="Failed to create llama_context"):
        open_tiny(flash_attn=False)  # with a q8_0 V cache
    llm = open_tiny()
    with pytest.raises(ValueError, match="exceed context window of 512"):
        llm.create_completion([1] * 512)
    with pytest.raises(ValueError, match="logprobs is not supported"):
        llm.create_completion(PROMPT, logprobs=1)


def test_rank_paths_force_a_tree(open_tiny: Open) -> None:
    llm = open_tiny(speculative=[[0], [1], [0, 0]])
    text_of(llm)
    assert llm.stats.n_drafted > 0


def test_off_drafts_nothing_and_says_nothing(open_tiny: Open) -> None:
    llm = open_tiny(speculative="off")
    assert text_of(llm) == text_of(open_tiny())
    assert llm.stats.n_drafted == 0
    assert llm.notices == []


def test_automatic_mode_writes_the_same_text(open_tiny: Open, tiny_model: TinyModel) -> None:
    llm = open_tiny(speculative="auto")
    stock = open_stock(tiny_model("llama"))
    assert text_of(llm, max_tokens=200) == text_of(stock, max_tokens=200)
    assert llm.notices == []


def test_exact_drafts_where_widths_are_bit_equal(open_tiny: Open) -> None:
    llm = open_tiny(exact=True)
    assert text_of(llm) == text_of(open_tiny(speculative="off"))
    assert llm.stats.n_drafted > 0


@pytest.mark.parametrize("arch", ["mamba", "jamba"])
def test_a_recurrent_model_decodes_plainly_and_says_so(open_tiny: Open, arch: str) -> None:
    llm = open_tiny(arch, flash_attn=False, type_k=None, type_v=None)
    stock = open_stock(llm.model_path, flash_attn=False, type_k=None, type_v=None)
    for _ in range(2):
        assert text_of(llm) == text_of(stock)
    assert llm.stats.n_drafted == 0
    assert len(llm.notices) == 1
    assert "drafting is off" in llm.notices[0]


def test_a_window_that_cannot_be_rewound(open_tiny: Open) -> None:
    llm = open_tiny("gemma3", swa_full=False)
    text_of(llm)
    assert llm.stats.n_drafted == 0
    assert "swa_full=False" in llm.notices[0]


def test_an_encoder_embeds_and_cannot_write(open_tiny: Open, tiny_model: TinyModel) -> None:
    options: dict[str, Any] = {"embedding": True, "n_ctx": 64, "n_batch": 64, "n_ubatch": 64}
    llm = open_tiny("bert", **options)
    stock = open_stock(tiny_model("bert"), **options)
    assert llm.embed(["a tree", "a leaf"]) == stock.embed(["a tree", "a leaf"])
    with pytest.raises(ModelUnsupportedError, match="encoder"):
        next(llm.generate([1, 2]))


def test_embeddings_of_a_model_that_writes(open_tiny: Open, tiny_model: TinyModel) -> None:
    llm = open_tiny(embedding=True)
    stock = open_stock(tiny_model("llama"), embedding=True)
    for _ in range(2):
        assert llm.create_embedding("a tree")["data"] == stock.create_embedding("a tree")["data"]
        assert text_of(llm) == text_of(stock)


def test_only_the_vocabulary(open_tiny: Open) -> None:
    llm = open_tiny(vocab_only=True)
    tokens = llm.tokenize(b"a tree")
    assert llm.detokenize(tokens) == b"a tree"


@pytest.mark.parametrize("logits_all", [False, True])
def test_states_are_exchanged_with_the_stock_class(
    open_tiny: Open, tiny_model: TinyModel, logits_all: bool
) -> None:
    options = {"logits_all": logits_all}
    own, stock = open_tiny(**options), open_stock(tiny_model("llama"), **options)
    start = own.tokenize(PROMPT.encode())
    for source, target in ((own, stock), (stock, own), (own, open_tiny(**options))):
        source.reset()
        tokens = source.generate(start, temp=0.0)
        text = [next(tokens) for _ in range(25)]
        state = source.save_state()
        assert state.n_tokens == len(start) + 24
        target.eval([1, 2, 3])
        target.load_state(state)
        more = target.generate([text[-1]], reset=False, temp=0.0)
        assert [next(more) for _ in range(10)] == [next(tokens) for _ in range(10)]


def test_a_state_may_be_saved_between_two_tokens_of_a_step(open_tiny: Open) -> None:
    llm, other = open_tiny(), open_tiny(speculative="off")
    start = llm.tokenize(PROMPT.encode())
    expected = [t for t, _ in zip(other.generate(start, temp=0.0), range(40), strict=False)]
    found = []
    for token in llm.generate(start, temp=0.0):
        found.append(token)
        llm.save_state()
        if len(found) == 40:
            break
    assert found == expected


def test_a_cache_of_states(open_tiny: Open) -> None:
    llm = open_tiny()
    cache = llama_cpp.LlamaRAMCache()
    llm.set_cache(cache)
    first = text_of(llm)
    text_of(llm, "Something else")
    assert text_of(llm) == first
    assert cache.cache_size > 0


def test_a_state_too_long_for_the_context(open_tiny: Open) -> None:
    state = open_tiny().save_state()
    state.n_tokens = 5000
    with pytest.raises(ValueError, match="5000 tokens"):
        open_tiny().load_state(state)


def test_pickling_opens_the_model_anew(open_tiny: Open) -> None:
    llm = open_tiny(n_ctx=300, n_batch=128, logits_all=True)
    with pickle.loads(pickle.dumps(llm)) as again:
        assert again.__getstate__() == llm.__getstate__()
        assert again.n_ctx() == llm.n_ctx()
        assert text_of(again) == text_of(llm)
        assert again.stats.n_drafted > 0


def test_a_pickled_state_opens_the_stock_class(open_tiny: Open) -> None:
    state = open_tiny(n_ctx=300).__getstate__()
    for name in ("speculative", "exact", "matrix_path"):
        del state[name]
    stock = llama_cpp.Llama(**state)
    assert stock.n_ctx() == 512
    stock.close()


def test_a_model_that_nobody_holds_is_freed(tiny_model: TinyModel) -> None:
    gc.collect()
    gc.disable()
    try:
        llm = open_own(tiny_model("llama"))
        text_of(llm)
        freed = weakref.ref(llm)
        del llm
        assert freed() is None
    finally:
        gc.enable()


def test_a_matrix_is_kept_for_the_next_run(open_tiny: Open, tmp_path: Path) -> None:
    path = tmp_path / "matrix.npz"
    with open_tiny(matrix_path=path) as llm:
        text_of(llm)
        cold = llm.stats.n_accepted
    with open_tiny(matrix_path=path) as llm:
        text_of(llm)
        assert llm.stats.n_accepted > cold


def test_without_a_path_the_matrix_lies_in_the_data_directory(
    open_tiny: Open, tmp_path: Path
) -> None:
    with open_tiny(matrix_path=None) as llm:
        text_of(llm)
    assert len(list((tmp_path / "data" / "matrices").iterdir())) == 1


def test_a_model_that_wrote_nothing_leaves_no_file(open_tiny: Open, tmp_path: Path) -> None:
    open_tiny(matrix_path=None).close()
    assert not (tmp_path / "data").exists()


def test_a_damaged_matrix_at_a_given_path(open_tiny: Open, tmp_path: Path) -> None:
    path = tmp_path / "matrix.npz"
    path.write_bytes(b"nonsense")
    with pytest.raises(MatrixFileError, match=r"matrix\.npz"):
        open_tiny(matrix_path=path)


def test_a_matrix_in_a_folder_that_is_missing(open_tiny: Open, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "matrix.npz"
    with pytest.raises(MatrixFileError, match="missing does not exist"):
        open_tiny(matrix_path=path)
    assert not path.parent.exists()


def test_what_is_no_tree(open_tiny: Open) -> None:
    with pytest.raises(ConfigError, match="speculative None is not allowed; it must be 'auto'"):
        open_tiny(speculative=None)


def test_a_lora_adapter_has_its_text_and_its_matrix(
    open_tiny: Open, tiny_model: TinyModel, tmp_path: Path
) -> None:
    adapter = str(write_lora(tmp_path / "adapter.gguf"))
    base, own = open_tiny(matrix_path=None), open_tiny(matrix_path=None, lora_path=adapter)
    with warnings.catch_warnings():
        stock = open_stock(tiny_model("llama"), lora_path=adapter)
    for _ in range(2):
        assert text_of(own) == text_of(stock)
        assert text_of(own) != text_of(base)
    assert own.stats.n_accepted > 0
    base.close()
    own.close()
    assert len(list((tmp_path / "data" / "matrices").iterdir())) == 2


def test_a_draft_model_of_the_user_is_used(open_tiny: Open) -> None:
    asked: list[int] = []

    class Counting(LlamaPromptLookupDecoding):  # type: ignore[misc]
        def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
            asked.append(len(input_ids))
            return super().__call__(input_ids)

    prompt = [5, 6, 7, 8] * 50  # longer than n_batch, where the stock class raises
    llm = open_tiny(draft_model=Counting(num_pred_tokens=4), n_batch=64)
    assert text_of(llm, prompt) == text_of(open_tiny(speculative="off"), prompt)
    assert llm.stats.n_drafted > 0
    assert asked[0] == len(prompt) + 1


def test_memory_does_not_grow_with_context_times_vocabulary(open_tiny: Open) -> None:
    llm = open_tiny(n_ctx=8192, logits_all=True)
    assert llm.scores.kept.capacity == 8192
    large = RecentRows(152_064, 32_768)
    assert large.capacity * 152_064 * 4 <= 256 << 20


@pytest.mark.parametrize("n_prompt", [240, 248, 254, 255])
def test_a_wide_tree_at_the_end_of_the_context(
    open_tiny: Open, tiny_model: TinyModel, n_prompt: int
) -> None:
    own, stock = open_tiny(n_ctx=256), open_stock(tiny_model("llama"), n_ctx=256)
    prompt = [5, 6, 7, 8] * 64
    for _ in range(2):
        found, expected = (text_of(llm, prompt[:n_prompt], max_tokens=-1) for llm in (own, stock))
        assert found == expected


def test_a_context_that_llama_cpp_pads(open_tiny: Open) -> None:
    texts = [text_of(open_tiny(n_ctx=64, **o)) for o in ({}, {"speculative": "off"})]
    assert texts[0] == texts[1]


def test_a_prompt_longer_than_the_sliding_window(open_tiny: Open, tiny_model: TinyModel) -> None:
    own, stock = open_tiny("gemma3"), open_stock(tiny_model("gemma3"))
    for prompt in ([*range(100, 200)], [*range(100, 180), 7, 8]):
        assert text_of(own, prompt) == text_of(stock, prompt)
    assert own.stats.n_drafted > 0


def decode_elsewhere(llm: Any, tokens: list[int]) -> None:
    """Put cells behind the text as a vision handler does: without ``eval``."""
    batch = internals.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1)
    batch.set_batch(tokens, n_past=llm.n_tokens, logits_all=False)
    llm._ctx.decode(batch)
    llm.input_ids[llm.n_tokens : llm.n_tokens + len(tokens)] = 0
    llm.n_tokens += len(tokens)


def test_cells_that_something_else_wrote(open_tiny: Open, tiny_model: TinyModel) -> None:
    own, stock = open_tiny(), open_stock(tiny_model("llama"))
    text_of(own, "Some other text")
    texts = []
    for llm in (own, stock):
        llm.reset()
        llm._ctx.kv_cache_clear()
        llm.eval([5, 6, 7])
        decode_elsewhere(llm, [100, 101, 102, 103])
        llm.eval([8, 9])
        prompt = llm.input_ids[: llm.n_tokens].tolist()
        texts.append(text_of(llm, prompt))
    assert texts[0] == texts[1]
    assert own.stats.n_drafted == 0
    assert "something else wrote" in own.notices[0]
    for _ in range(2):  # another text takes their place
        text_of(own)
    assert own.stats.n_drafted > 0


def test_an_error_before_generating_leaves_no_limit_behind(open_tiny: Open) -> None:
    llm = open_tiny()
    with pytest.raises(ValueError, match="exceed context window"):
        llm.create_completion([1] * 512, max_tokens=3)
    assert len([t for _, t in zip(range(10), llm.generate([1, 2]), strict=False)]) == 10


def test_generate_ends_with_an_error_where_the_context_is_full(open_tiny: Open) -> None:
    llm = open_tiny(n_ctx=256)
    tokens = llm.generate([1] * 250)
    assert len([next(tokens) for _ in range(6)]) == 6
    with pytest.raises(ContextFullError):
        next(tokens)


def test_rows_that_are_not_kept_say_so(open_tiny: Open) -> None:
    llm = open_tiny()
    llm.eval([1, 2, 3])
    with pytest.raises(IndexError, match="logits_all=True"):
        llm.scores[2]


def test_paper_tree_without_the_class(open_tiny: Open) -> None:
    by_paths = open_tiny(speculative=[list(path) for path in PAPER.paths])
    assert by_paths._own["speculative"] == PAPER
