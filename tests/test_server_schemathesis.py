"""Requests made of the server's own description of itself: each is answered or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from serving import Running, serving

from edge_tr.server.openapi import describe

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

N_EXAMPLES = 40
LENIENT = [
    checks.positive_data_acceptance,  # what a description cannot say is refused too
    checks.negative_data_rejection,  # 1 is read as true, and "1" as 1
]
SMALL = {"max_tokens": 4, "max_completion_tokens": 4}
"""Answers need not be long."""


@pytest.fixture(scope="module")
def running(tiny_model: Callable[[str], Path]) -> Iterator[Running]:
    with serving(tiny_model("llama"), n_ctx=256) as server:
        yield server


def test_the_server_gives_its_description(running: Running) -> None:
    assert running.http.get("/openapi.json").json() == describe()


API = schemathesis.openapi.from_dict(describe())
OPERATIONS = [found.ok() for found in API.get_all_operations()]
CASES = [
    pytest.param(operation, mode, id=f"{mode.value} {operation.label}")
    for operation in OPERATIONS
    for mode in schemathesis.GenerationMode
    if operation.body or mode is schemathesis.GenerationMode.POSITIVE
]


@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_each_request_is_answered_or_refused(running: Running, operation: Any, mode: Any) -> None:
    @seed(1)
    @settings(
        max_examples=N_EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body |= {k: v for k, v in SMALL.items() if k in case.body or k == "max_tokens"}
        response = case.call(base_url=running.url)
        assert response.status_code < 500, f"{case.body!r}: {response.text}"
        case.validate_response(response, excluded_checks=LENIENT)

    send()
    assert running.http.get("/health").status_code == 200
