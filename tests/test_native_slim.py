"""native/slim.py: the wheel with each library once."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from edge_tr.errors import NativeBuildError
from native.slim import slim

LIBRARIES = ("libllama.so", "libggml.so", "libggml-base.so")


def write(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (members | {"x-1.dist-info/RECORD": b"old"}).items():
            archive.writestr(name, data)
    return path


def test_each_library_is_kept_once_where_python_looks(tmp_path: Path) -> None:
    members = {f"{place}/{name}": name.encode() for name in LIBRARIES
               for place in ("llama_cpp/lib", "lib", "x-1.data/platlib/llama_cpp/lib")}  # fmt: skip
    members |= {"bin/libggml-cpu-zen4.so": b"zen4", "lib/libllama-common.so": b"unused"}
    members |= {"include/llama.h": b"", "lib/cmake/llama/llama-config.cmake": b"", "bin/x.py": b""}
    members |= {"llama_cpp/__init__.py": b"import this"}
    wheel = write(tmp_path / "x-1-py3-none-any.whl", members)
    slim(wheel)
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(archive.namelist())
        record = archive.read("x-1.dist-info/RECORD").decode().splitlines()
    expected = [f"llama_cpp/lib/{name}" for name in (*LIBRARIES, "libggml-cpu-zen4.so")]
    assert names == sorted([*expected, "llama_cpp/__init__.py", "x-1.dist-info/RECORD"])
    assert sorted(line.split(",")[0] for line in record) == names


def test_two_libraries_of_one_name_are_refused(tmp_path: Path) -> None:
    members = {"llama_cpp/lib/libllama.so": b"one", "bin/libllama.so": b"another"}
    with pytest.raises(NativeBuildError, match="two libraries named llama_cpp/lib/"):
        slim(write(tmp_path / "x.whl", members))


def test_a_wheel_without_llama_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NativeBuildError, match=r"no library of llama\.cpp"):
        slim(write(tmp_path / "x.whl", {"llama_cpp/__init__.py": b""}))
