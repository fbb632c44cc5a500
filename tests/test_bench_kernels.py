"""bench.kernels: its plan, its verdict, and products that are the same in both layouts."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from bench import kernels as bench_kernels
from bench import peak
from bench.kernels import (
    PREFILL,
    TYPES,
    cell,
    in_turn,
    last_level_cache,
    layer,
    line,
    n_layers,
    summary,
)
from bench.products import OURS, PLAIN, Products, Weights, placed, weight_bytes
from edge_tr.llama import kernels

Q4_0 = gguf.GGMLQuantizationType.Q4_0
MIB = 1 << 20


def found(n: int, ratio: float, name: str = "Q4_0") -> dict[str, Any]:
    kind = gguf.GGMLQuantizationType[name]
    return cell(kind, "1b", layer("1b") * 2, n, 2, (0.01 * ratio, 0.01))


def test_a_layer_has_the_shape_of_its_model() -> None:
    shapes = layer("1b")
    assert len(shapes) == 7
    assert {(2048, 2048), (512, 2048), (8192, 2048), (2048, 8192)} == set(shapes)


def test_the_layers_exceed_the_cache_where_memory_allows() -> None:
    assert n_layers(30 * MIB, 100 * MIB) * 30 > 125
    assert n_layers(1024 * MIB, 4096 * MIB) == 2
    assert n_layers(4096 * MIB, MIB) == 1


def test_the_largest_cache_is_found(tmp_path: Path) -> None:
    for i, size in enumerate(("48K", "2048K", "260M")):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(size + "\n")
    assert last_level_cache(tmp_path) == 260 * MIB
    assert last_level_cache(tmp_path / "none") == 64 * MIB


def test_a_cell_counts_what_was_read_and_multiplied() -> None:
    result = found(4, 0.5)
    n_weights = 2 * (2 * 2048 * 2048 + 2 * 512 * 2048 + 3 * 8192 * 2048)
    assert (result["ms"], result["llama_ms"], result["ratio"]) == (2.5, 5.0, 0.5)
    assert result["gbs"] == pytest.approx(n_weights * 18 / 32 / 0.005 / 1e9, abs=0.01)
    assert result["gmacs"] == pytest.approx(n_weights * 4 / 0.005 / 1e9, abs=0.1)


def test_the_verdict_counts_slower_cells_and_takes_the_lowest_prefill() -> None:
    cells = [found(1, 1.02), found(2, 1.03), found(PREFILL, 0.5), found(PREFILL, 2.0, "F16")]
    result = summary(cells)
    assert (result["n_cells"], result["slower"]) == (2, 1)
    assert result["slower_cells"] == [["Q4_0", "1b", 2, 2, 1.03]]
    assert (result["prefill"], result["prefill_ratio"]) == ({"Q4_0": 2.0, "F16": 0.5}, 0.5)


def test_a_slower_cell_is_marked() -> None:
    peaks = {"read_gbs": 100.0, "int8_gmacs": 1000.0, "float_gmacs": 100.0}
    assert line(found(2, 1.03), peaks).endswith("SLOWER")
    assert "% of peak" not in line(found(2, 1.0), None)


def test_both_take_turns_and_an_unclear_case_takes_longer() -> None:
    calls = []

    def timed(name: str, seconds: float) -> float:
        calls.append(name)
        return seconds

    assert in_turn(lambda: timed("a", 1.0), lambda: timed("b", 2.0)) == (1.0, 2.0)
    assert "".join(calls).startswith("ab" + "abbaab")


def test_the_peaks_of_a_machine_without_a_compiler_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peak, "compilers", lambda: ("false", "false"))
    assert peak.measure(1) is None


def test_a_build_without_kernels_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "info", lambda: None)
    assert bench_kernels.main([]) == 1
    assert "no kernels of ours" in capsys.readouterr().err


@pytest.fixture
def own() -> None:
    """Skips the test where this build has no kernels of ours."""
    if not kernels.active():
        pytest.skip("this build has no kernels of ours for this processor")


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", TYPES)
def test_both_layouts_give_the_same_product(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    shapes = [(48, 256), (16, 512)]
    results = []
    for ours in (True, False):
        with (
            closing(Weights(kind, shapes, ours=ours)) as weights,
            closing(Products(weights, 3)) as products,
        ):
            assert products.seconds(1) > 0
            results.append(products.first())
    one, two = results
    assert two.shape == (3, 48)
    assert np.abs(one - two).max() < 0.02 * two.std()


@pytest.mark.usefixtures("own")
def test_weights_lie_where_llama_cpp_would_put_them() -> None:
    assert placed(Q4_0, (48, 256), ours=True) == OURS
    assert placed(Q4_0, (48, 256), ours=False) != OURS
    assert placed(gguf.GGMLQuantizationType.F16, (48, 256), ours=True) == PLAIN


def test_bytes_of_weights_are_those_of_the_file() -> None:
    assert weight_bytes(Q4_0, [(2, 64), (1, 32)]) == 5 * 18
