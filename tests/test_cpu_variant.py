"""native/cpu_variant.py: which library of the CPU back end the portable wheel loads."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edge_tr.machine import isa
from edge_tr.machine.isa import SetStatus

SOURCE = Path(__file__).parent.parent / "native" / "cpu_variant.py"
ALL = {"sapphirerapids", "zen4", "cascadelake", "alderlake", "skylakex", "haswell", "sse42"}
AVX2 = {"sse42", "avx", "f16c", "fma", "avx2", "bmi2"}
ZEN4 = AVX2 | {"avx512", "avx512_vnni", "avx512_vbmi", "avx512_bf16"}
AMX = {"amx_tile", "amx_int8"}


@pytest.fixture
def chooser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module as it lies in the wheel, in a package of that shape."""
    monkeypatch.delenv("EDGE_TR_CPU_VARIANT", raising=False)
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    package = ModuleType("wheel")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "wheel", package)
    monkeypatch.setitem(sys.modules, "wheel._isa", isa)
    monkeypatch.setattr(package, "_isa", isa, raising=False)
    spec = importlib.util.spec_from_file_location("wheel._cpu_variant", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def machine(
    executes: set[str], *, traps: Iterable[str] = (), believed: Iterable[str] = ()
) -> Callable[[], dict[str, SetStatus]]:
    found = {name: SetStatus(name, True, True) for name in executes}
    found |= {name: SetStatus(name, True, False) for name in traps}
    found |= {name: SetStatus(name, True, None) for name in believed}
    return lambda: found


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        (machine(ZEN4 | AMX), "sapphirerapids"),
        (machine(ZEN4, traps=AMX), "zen4"),
        (machine(set(), believed=ZEN4 | AMX), "zen4"),
        (machine(ZEN4 - {"avx512_bf16"}), "cascadelake"),
        (machine(AVX2 | {"avx_vnni"}), "alderlake"),
        (machine(AVX2 | {"avx512"}), "skylakex"),
        (machine(AVX2), "haswell"),
        (machine({"sse42", "avx"}), "sse42"),
    ],
)
def test_the_best_that_executes(
    probe: Any, expected: str, chooser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa, "probe", probe)
    assert chooser.choose(ALL) == expected


def test_the_choice_is_kept(chooser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "probe", machine(AVX2))
    assert chooser.choose(ALL) == "haswell"
    monkeypatch.setattr(isa, "probe", None)
    assert chooser.choose(ALL) == "haswell"


def test_a_kept_choice_that_is_not_there_is_made_anew(
    chooser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa, "probe", machine(AVX2))
    chooser.choose(ALL)
    assert chooser.choose({"sse42"}) == "sse42"


def test_a_cache_that_cannot_be_written_is_no_error(
    chooser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(isa, "probe", machine(AVX2))
    assert chooser.choose(ALL) == "haswell"


def test_the_environment_names_another(chooser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_TR_CPU_VARIANT", "sse42")
    assert chooser.choose(ALL) == "sse42"
    monkeypatch.setenv("EDGE_TR_CPU_VARIANT", "z80")
    with pytest.raises(RuntimeError, match="EDGE_TR_CPU_VARIANT is 'z80'; there are"):
        chooser.choose(ALL)


def test_every_set_of_a_variant_can_be_probed(chooser: Any) -> None:
    assert {name for sets in chooser.VARIANTS.values() for name in sets} <= set(isa._X86)
    assert set(chooser.VARIANTS) == ALL
