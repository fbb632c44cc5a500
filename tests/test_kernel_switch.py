"""The switch of our kernels, on a build that has them and on one that has not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edge_tr.llama import kernels


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leaves the parts as they were."""
    with kernels.only(kernels.active()):
        yield


@pytest.fixture
def own() -> dict[str, Any]:
    """What the kernels say; the test is skipped where this build has none."""
    found = kernels.info()
    if not found or not found["isa"]:
        pytest.skip("this build has no kernels of ours for this processor")
    return found


def test_they_name_their_instruction_sets_and_types(own: dict[str, Any]) -> None:
    assert {"q4_0", "q8_0", "q4_K", "q6_K", "f16"} <= set(own["types"])


@pytest.mark.usefixtures("own")
def test_what_ran_before_comes_back() -> None:
    kernels.set_active(kernels.ALL)
    assert kernels.set_active(kernels.DENSE) == kernels.ALL
    with kernels.only(0):
        assert kernels.active() == 0
    assert kernels.active() == kernels.DENSE


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(ValueError, match="parts is 8; it must be 0 to 7"):
        kernels.set_active(8)


def test_a_stock_build_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "info", lambda: None)
    assert kernels.set_active(kernels.ALL) == 0
    assert kernels.active() == 0


def test_a_build_without_the_function_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> object:
        raise StopIteration

    monkeypatch.setattr(kernels, "ggml_function", missing)
    assert kernels.info.__wrapped__() is None
