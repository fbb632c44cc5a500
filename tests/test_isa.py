"""Instruction sets: what executes, what traps, and the flags that follow."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from edge_tr.machine import isa
from edge_tr.machine.isa import SetStatus

x86_only = pytest.mark.skipif(not isa.is_x86(), reason="runs x86-64 machine code")
UD2 = "0f0b c3"  # the instruction that always traps


@pytest.fixture
def one_set(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine whose only set is an advertised one that traps."""
    monkeypatch.setattr(isa, "_X86", {"avx": isa._Set(("avx",), (), UD2)})
    monkeypatch.setattr(isa, "_x86_advertised", lambda: {"avx"})
    return monkeypatch


@x86_only
def test_every_advertised_basic_set_executes() -> None:
    found = isa.probe()
    for name in ("sse42", "avx", "avx2", "fma", "f16c", "bmi2"):
        assert found[name].executes is (True if found[name].advertised else None), name


@x86_only
def test_an_advertised_set_that_traps_is_found(one_set: pytest.MonkeyPatch) -> None:
    status = isa.probe()["avx"]
    assert (status.executes, status.traps, status.usable) == (False, True, False)


@x86_only
def test_a_set_that_is_not_advertised_is_not_tried(one_set: pytest.MonkeyPatch) -> None:
    one_set.setattr(isa, "_x86_advertised", set)
    assert isa.probe()["avx"] == SetStatus("avx", False, None)


@x86_only
def test_a_set_of_which_the_system_says_nothing_is_tried(one_set: pytest.MonkeyPatch) -> None:
    one_set.setattr(isa, "_x86_advertised", lambda: None)
    assert isa.probe()["avx"].executes is False


@x86_only
def test_the_advertised_list_is_believed_where_nothing_can_be_executed(
    one_set: pytest.MonkeyPatch,
) -> None:
    one_set.setattr(sys, "executable", "")
    one_set.setattr("platform.system", lambda: "an unknown system")
    one_set.setattr(isa, "_x86_advertised", lambda: {"avx"})
    status = isa.probe()["avx"]
    assert (status.usable, status.executes) == (True, None)
    assert status.note


def test_a_child_refused_executable_memory_is_no_trap() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    executed, note = isa._outcome(child)
    assert executed is None
    assert "executable memory" in note


def test_a_set_needs_only_sets_before_it() -> None:
    seen: set[str] = set()
    for name, instruction_set in isa._X86.items():
        assert seen.issuperset(instruction_set.needs), name
        seen.add(name)


@pytest.mark.parametrize("name", ["amx_tile", "amx_int8", "amx_bf16"])
def test_tile_code_loads_its_own_configuration(name: str) -> None:
    code = bytes.fromhex(isa._X86[name].code)
    start = 9 + int.from_bytes(code[5:9], "little")  # relative to the end of the instruction
    config = code[start:]
    assert len(config) == 64
    assert config[0] == 1  # palette
    assert [config[16 + 2 * tile] for tile in range(3)] == [4, 4, 4]  # bytes per row
    assert list(config[48:51]) == [1, 1, 1]  # rows
    assert code[start - 1] == 0xC3  # the code returns before it


def _all(executes: bool | None = True) -> dict[str, SetStatus]:
    return {name: SetStatus(name, True, executes) for name in isa._X86}


@pytest.fixture
def as_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "is_x86", lambda: True)


@pytest.mark.usefixtures("as_x86")
def test_flags_name_every_set() -> None:
    assert isa.cmake_flags(_all())[0] == "-DGGML_NATIVE=OFF"
    assert isa.cmake_flags(_all())[1:] == [f"-DGGML_{name.upper()}=ON" for name in isa._X86]


@pytest.mark.usefixtures("as_x86")
def test_a_set_that_traps_takes_those_that_need_it_with_it() -> None:
    found = _all() | {"amx_tile": SetStatus("amx_tile", True, False)}
    off = [flag for flag in isa.cmake_flags(found)[1:] if flag.endswith("OFF")]
    assert off == [f"-DGGML_AMX_{name}=OFF" for name in ("TILE", "INT8", "BF16")]


@pytest.mark.usefixtures("as_x86")
def test_a_set_unknown_to_the_compiler_is_left_out() -> None:
    flags = isa.cmake_flags(_all(), [name for name in isa._X86 if name != "avx512_bf16"])
    assert "-DGGML_AVX512_BF16=OFF" in flags
    assert "-DGGML_AVX512_VNNI=ON" in flags


def test_elsewhere_llama_cpp_finds_out_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "is_x86", lambda: False)
    assert isa.cmake_flags({}) == ["-DGGML_NATIVE=ON"]


def test_arm_sets_come_from_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isa, "is_arm", lambda: True)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(isa, "_cpuinfo_words", lambda key: {"asimd", "asimddp"})
    assert [name for name, status in isa.probe().items() if status.usable] == ["neon", "dotprod"]


def test_it_runs_under_a_bare_python() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", isa.__file__], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1].startswith("-DGGML_NATIVE=")
