"""Counts for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)

from edge_tr.answer import Answer

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """What the server has done since it started.

    Parameters
    ----------
    n_jobs : tells how many requests run or wait.
    is_loaded : tells whether the model is in memory.
    """

    def __init__(self, n_jobs: Callable[[], int], is_loaded: Callable[[], bool]) -> None:
        self._registry = CollectorRegistry()
        self._n_requests = self._counter("requests", "requests answered", ["path", "status"])
        self._n_prompt = self._counter("prompt_tokens", "tokens of prompts")
        self._n_reused = self._counter("reused_tokens", "of those, reused from the cache")
        self._n_tokens = self._counter("tokens", "generated tokens")
        self._n_steps = self._counter("decode_steps", "decode steps")
        self._n_drafted = self._counter("drafted_tokens", "nodes of draft trees")
        self._n_accepted = self._counter("accepted_tokens", "of those, accepted")
        self._prefill_s = self._counter("prefill_seconds", "time of prefill")
        self._decode_s = self._counter("decode_seconds", "time from prefill to the last token")
        jobs = Gauge("edge_tr_open_requests", "requests that run or wait", registry=self._registry)
        jobs.set_function(n_jobs)
        told = "1 while the model is in memory, 0 while it is unloaded"
        loaded = Gauge("edge_tr_model_loaded", told, registry=self._registry)
        loaded.set_function(is_loaded)

    def _counter(self, name: str, what: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"edge_tr_{name}", what, labels or [], registry=self._registry)

    def count_request(self, path: str, status: int) -> None:
        """Count an answered request."""
        self._n_requests.labels(path, str(status)).inc()

    def count(self, answer: Answer) -> None:
        """Add what a generation did, however it ended."""
        stats = answer.stats
        self._n_prompt.inc(stats.n_prompt)
        self._n_reused.inc(stats.n_reused)
        self._n_tokens.inc(answer.n_tokens)
        self._n_steps.inc(stats.n_steps)
        self._n_drafted.inc(stats.n_drafted)
        self._n_accepted.inc(stats.n_accepted)
        self._prefill_s.inc(stats.prefill_s)
        self._decode_s.inc(max(0.0, stats.total_s - stats.prefill_s))

    def text(self) -> bytes:
        """The counts in Prometheus' text format."""
        return generate_latest(self._registry)
