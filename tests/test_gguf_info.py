"""What edge_tr knows of a GGUF before loading it, and how it refuses what is no model."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_tr.errors import ModelFileError, ModelUnsupportedError
from edge_tr.gguf_file.header import Header, read_header
from edge_tr.gguf_file.info import KINDS, GGUFInfo, inspect
from edge_tr.gguf_file.sizes import state_values
from edge_tr.gguf_file.values import check_values

TinyModel = Callable[[str], Path]


def write_gguf(
    path: Path,
    architecture: str = "llama",
    values: dict[str, object] | None = None,
    n_tensors: int = 3,
    n_tensors_per_part: int = 0,
) -> Path:
    """A GGUF that is sound in form; its tensors are 4 by 32 in float32."""
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=n_tensors_per_part)
    for key, value in (values or {}).items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
        kinds[type(value)](key, value)
    writer.add_token_list([f"token {i}" for i in range(40)])
    for i in range(n_tensors):
        writer.add_tensor(f"tensor.{i}", np.full((4, 32), i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def parts_of(path: Path, n_parts: int = 3) -> list[Path]:
    write_gguf(path, n_tensors=n_parts, n_tensors_per_part=1)
    names = [f"{path.stem}-{i + 1:05d}-of-{n_parts:05d}.gguf" for i in range(n_parts)]
    return [path.with_name(name) for name in names]


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        inspect(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_info_agrees_with_the_gguf_package(tiny_model: TinyModel) -> None:
    path = tiny_model("gemma3")
    fields = gguf.GGUFReader(path).fields
    assert inspect(path) == GGUFInfo(
        path=path,
        architecture="gemma3",
        n_vocab=len(fields["tokenizer.ggml.tokens"].data),
        n_ctx_train=fields["gemma3.context_length"].contents(),
        n_layers=fields["gemma3.block_count"].contents(),
        sliding_window=fields["gemma3.attention.sliding_window"].contents(),
        file_type="Q8_0",
        n_split=1,
        size_bytes=path.stat().st_size,
        kind="draftable",
        reason="",
        n_embd=fields["gemma3.embedding_length"].contents(),
        n_ff=fields["gemma3.feed_forward_length"].contents(),
        n_heads=fields["gemma3.attention.head_count"].contents(),
        n_cache_values=inspect(path).n_cache_values,  # see test_needs
        key_size=fields["gemma3.attention.key_length"].contents(),
        value_size=fields["gemma3.attention.value_length"].contents(),
    )


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [  # the sizes that the comments of llama_hparams::n_embd_r and n_embd_s name
        ({"kda.head_dim": 128, "ssm.conv_kernel": 4}, "ssm_conv1d_q", 3 * 3 * 4096 + 524_288),
        ({"wkv.head_size": 64}, "time_mix_w1", 2 * 2048 + 2048 * 64),
        ({}, "attn_k", 0),
    ],
)
def test_the_size_of_a_state(values: dict[str, int], name: str, expected: int) -> None:
    sizes = values | {"embedding_length": 2048, "attention.head_count": 32}
    shapes: dict[str, tuple[int, ...]] = {
        f"blk.{layer}.{name}.weight": (64, 64) for layer in range(3)
    }
    header = Header({f"x.{key}": value for key, value in sizes.items()}, {}, shapes, 0)
    assert state_values([header], "x") == 3 * expected


@pytest.mark.parametrize(
    ("arch", "kind", "word"),
    [
        ("llama", "draftable", ""),
        ("qwen2", "draftable", ""),
        ("gemma3", "draftable", ""),
        ("mixtral", "draftable", ""),
        ("mamba", "plain_only", "recurrent"),
        ("jamba", "plain_only", "hybrid"),
        ("lfm2", "plain_only", "hybrid"),
        ("bert", "unsupported", "encoder"),
        ("dream", "unsupported", "diffusion"),
    ],
)
def test_kind_of_each_architecture(tiny_model: TinyModel, arch: str, kind: str, word: str) -> None:
    info = inspect(tiny_model(arch))
    assert info.kind == kind
    assert word in info.reason
    assert "\n" not in info.reason


@pytest.mark.parametrize(
    "arch", ["llama", "mamba", "jamba", "lfm2", "qwen35", "nemotron_h", "dream"]
)
def test_kind_agrees_with_llama_cpp(tiny_model: TinyModel, arch: str) -> None:
    path = tiny_model(arch)
    parameters = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), parameters)
    recurrent = llama_cpp.llama_model_is_recurrent(model)
    hybrid = llama_cpp.llama_model_is_hybrid(model)
    diffusion = llama_cpp.llama_model_is_diffusion(model)
    llama_cpp.llama_model_free(model)
    expected = "unsupported" if diffusion else "plain_only" if recurrent or hybrid else "draftable"
    assert inspect(path).kind == expected


def test_listed_architectures_are_known_to_llama_cpp() -> None:
    folder = Path(llama_cpp.__file__).parent / "lib"
    code = b"".join(file.read_bytes() for file in folder.glob("*llama*"))
    assert [name for name in KINDS if name.encode() + b"\0" not in code] == []


def test_an_embedding_model_of_a_text_architecture_is_unsupported(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "e.gguf", values={"llama.attention.causal": False})
    with pytest.raises(ModelUnsupportedError, match="encoder"):
        inspect(path).require_text()


def test_a_text_model_passes_require_text(tmp_path: Path) -> None:
    info = inspect(write_gguf(tmp_path / "m.gguf"))
    assert info.require_text() is info


def test_vocabulary_size_without_a_token_list(tmp_path: Path) -> None:
    path = tmp_path / "shape.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(123)
    writer.add_tensor("t", np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert inspect(path).n_vocab == 123


def test_path_with_spaces_and_other_letters(tmp_path: Path) -> None:
    folder = tmp_path / "modèles à moi 模型"
    folder.mkdir()
    assert inspect(write_gguf(folder / "ein größeres.gguf")).architecture == "llama"


def test_missing_file(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.gguf")


def test_directory(tmp_path: Path) -> None:
    assert "is a directory" in refusal(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a POSIX thing")
def test_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"", "is empty"),
        (b"GG", "is cut short"),
        (b"GGUF\3\0\0\0", "is cut short"),
        (b"PK\3\4" + bytes(40), "zip archive"),
        (b"<!doctype html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (bytes(64), "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "byte order"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "does not say its architecture"),
    ],
)
def test_other_content(tmp_path: Path, start: bytes, words: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(start)
    assert words in refusal(path)


def test_lora_adapter(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "lora.gguf", values={"general.type": "adapter"})
    assert "LoRA adapter" in refusal(path)


def test_vocabulary_without_weights(tmp_path: Path) -> None:
    assert "no weights" in refusal(write_gguf(tmp_path / "vocab.gguf", n_tensors=0))


def test_alignment_that_is_no_power_of_two(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", values={"general.alignment": 32})
    data = path.read_bytes()
    key = b"general.alignment" + struct.pack("<I", gguf.GGUFValueType.UINT32)
    path.write_bytes(data.replace(key + struct.pack("<I", 32), key + struct.pack("<I", 24)))
    assert "power of two" in refusal(path)


def test_promised_tensor_data_must_be_there(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:-200])
    assert "its header promises" in refusal(path)


@given(st.data())
def test_cut_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut", numbered=True)
    whole = write_gguf(folder / "whole.gguf").read_bytes()
    path = folder / "cut.gguf"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    refusal(path)


@settings(max_examples=400)
@given(st.data())
def test_changed_bytes_raise_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("changed", numbered=True)
    path = write_gguf(folder / "changed.gguf")
    content = bytearray(path.read_bytes())
    places = data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8))
    for place in places:
        content[place] = data.draw(st.sampled_from([0, 1, 8, 9, 127, 255]))
    path.write_bytes(content)
    with contextlib.suppress(ModelFileError):
        inspect(path)


def test_a_huge_count_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "huge.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + bytes(1 << 16))
    assert "is damaged" in refusal(path)


def test_an_unknown_tensor_type_is_left_to_llama_cpp(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "new.gguf")
    name = b"tensor.0" + struct.pack("<IQQ", 2, 32, 4)
    data = path.read_bytes()
    assert name in data
    path.write_bytes(data.replace(name + struct.pack("<I", 0), name + struct.pack("<I", 42)))
    assert read_header(path).n_tensors == 3


def test_first_part_stands_for_the_whole(tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "m.gguf")
    info = inspect(parts[0])
    assert info.n_split == 3
    assert info.size_bytes == sum(part.stat().st_size for part in parts)


def test_another_part_names_the_first(tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "m.gguf")
    assert f"give the first part, {parts[0]}" in refusal(parts[1])


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "m.gguf")
    parts[2].unlink()
    assert f"{parts[2]} is missing" in refusal(parts[0])


def test_a_part_that_is_cut_short_is_named(tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "m.gguf")
    parts[1].write_bytes(parts[1].read_bytes()[:-64])
    with pytest.raises(ModelFileError, match="cut short") as caught:
        inspect(parts[0])
    assert str(parts[1]) in str(caught.value)


def test_a_renamed_part_says_how_it_must_be_named(tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "m.gguf")
    renamed = parts[0].rename(tmp_path / "renamed.gguf")
    assert "-00001-of-00003.gguf" in refusal(renamed)


def test_a_part_under_the_name_of_another(tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "m.gguf")
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(ModelFileError, match="is not part 2 of 3"):
        inspect(parts[0])


def test_parts_of_two_models(tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "m.gguf")
    (tmp_path / "other").mkdir()
    write_gguf(tmp_path / "other" / "m.gguf", n_tensors=5, n_tensors_per_part=2)
    other = tmp_path / "other" / "m-00002-of-00003.gguf"
    parts[1].write_bytes(other.read_bytes())
    assert "not of one model" in refusal(parts[0])


def test_two_tokens_of_one_text(tmp_path: Path, tiny_model: Callable[[str], Path]) -> None:
    data = tiny_model("llama").read_bytes()
    path = tmp_path / "twice.gguf"
    word = data.index(b"\x04\0\0\0\0\0\0\0alse")
    path.write_bytes(data[: word + 8] + b"al\0\0" + data[word + 12 :])
    with pytest.raises(ModelFileError, match="two tokens of the vocabulary"):
        inspect(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 513),
        ("expert_count", 1025),
        ("expert_used_count", 3),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("attention.layer_norm_rms_epsilon", -1.0),
    ],
)
def test_values_that_end_llama_cpp(key: str, value: float) -> None:
    scalars = {"llama.block_count": 2, f"llama.{key}": value}
    with pytest.raises(ModelFileError, match=f"llama.{key} is"):
        check_values(Path("x.gguf"), "llama", scalars)
