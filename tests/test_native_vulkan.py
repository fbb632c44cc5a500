"""native/vulkan.py and native/beside.py: old headers, newer ones beside them, another build."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_tr.errors import NativeBuildError
from native import beside, vulkan
from native.build import Plan

Headers = Callable[[str, str], Path]


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headers:
    """``headers(folder, version)``: headers in a folder of their own; no others are known."""
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("VULKAN_SDK", str(tmp_path / "sdk"))
    monkeypatch.delenv("CMAKE_ARGS", raising=False)

    def write(folder: str, version: str) -> Path:
        major, minor, patch = version.split(".")
        path = tmp_path / folder / "vulkan" / "vulkan_core.h"
        path.parent.mkdir(parents=True)
        path.write_text(
            f"#define VK_HEADER_VERSION {patch}\n#define VK_HEADER_VERSION_COMPLETE "
            f"VK_MAKE_API_VERSION(0, {major}, {minor}, VK_HEADER_VERSION)\n"
        )
        return path.parents[1]

    return write


def test_the_version_of_headers(headers: Headers) -> None:
    assert vulkan.headers_version(headers("sdk/include", "1.3.239")) == (1, 3, 239)


def test_new_headers_need_no_flags(headers: Headers) -> None:
    headers("sdk/include", "1.4.304")
    assert vulkan.flags() == []


def test_old_headers_are_an_error_that_says_how_to_get_newer(headers: Headers) -> None:
    folder = headers("sdk/include", "1.3.239")
    words = f"headers in {folder} are of version 1.3.239, llama.cpp needs 1.4 or later"
    with pytest.raises(NativeBuildError, match=f"{words}.*python3 native/vulkan.py"):
        vulkan.flags()


@pytest.mark.usefixtures("headers")
def test_no_headers_are_an_error_that_says_how_to_get_some() -> None:
    with pytest.raises(NativeBuildError, match="there are none: install the Vulkan SDK"):
        vulkan.flags()


def test_fetched_headers_go_before_old_ones(headers: Headers) -> None:
    headers("sdk/include", "1.3.239")
    folder = headers(f"cache/vulkan-headers/{vulkan.SUITE}/usr/include", "1.4.309")
    assert vulkan.flags()[0] == f"-DVulkan_INCLUDE_DIR={folder}"


@pytest.mark.usefixtures("headers")
def test_the_users_own_headers_are_left_to_cmake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DVulkan_INCLUDE_DIR=/opt/vulkan/include")
    assert vulkan.flags() == []


@pytest.mark.usefixtures("headers")
def test_a_machine_without_apt_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeBuildError, match="there is no apt-get here; install the Vulkan SDK"):
        vulkan.fetch()


def test_a_fetched_mesa_is_named_to_the_loader_and_the_linker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    assert vulkan.mesa_environment() == {}
    usr = tmp_path / "mesa" / vulkan.MESA_SUITE / "usr"
    library = usr / "lib" / "x86_64-linux-gnu" / "libvulkan_lvp.so"
    driver = usr / "share" / "vulkan" / "icd.d" / "lvp_icd.json"
    for file in (library, driver):
        file.parent.mkdir(parents=True)
        file.touch()
    assert vulkan.mesa_environment() == {
        "LD_LIBRARY_PATH": os.pathsep.join((str(library.parent), "/mine")),
        "VK_DRIVER_FILES": str(driver),
        "VK_ICD_FILENAMES": str(driver),
    }


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A build whose wheel is there: a module that says what it is."""
    folder = tmp_path / "wheels" / "key"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "llama_cpp_python-1-py3-none-any.whl", "w") as wheel:
        info = "llama_cpp_python-1.dist-info"
        wheel.writestr("llama_cpp/__init__.py", "name = 'the other build'\n")
        wheel.writestr(f"{info}/METADATA", "Name: llama_cpp_python\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return Plan("vulkan", "1", (), folder)


def test_another_build_stands_before_the_installed_one(plan: Plan) -> None:
    environment = beside.environment_of(beside.unpack(plan))
    command = [sys.executable, "-c", "import llama_cpp; print(llama_cpp.name)"]
    assert subprocess.check_output(command, env=environment, text=True) == "the other build\n"


def test_another_build_is_unpacked_once(plan: Plan) -> None:
    folder = beside.unpack(plan)
    (folder / "mark").touch()
    beside.unpack(plan)
    assert (folder / "mark").exists()


def test_packages_that_came_first_still_come_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert beside.environment_of(Path("/new"))["PYTHONPATH"] == os.pathsep.join(("/new", "/mine"))
