"""How many snapshots of a recurrent state pay: with them a target gives up rejected tokens, but
they take memory and time in every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from edge_tr.config import affordable_snapshots
from edge_tr.costs.table import CostTable
from edge_tr.decode.topk import TopK
from edge_tr.errors import CancelledError
from edge_tr.measuring.kept_costs import KnownTarget, cost_key, load_costs, save_costs
from edge_tr.measuring.limit import time_limit, within
from edge_tr.measuring.lock import measuring_alone
from edge_tr.measuring.steps import measure_two

_SLOWER = 1.03
"""Snapshots may make a plain step this many times as long: a text that cannot be drafted pays it
at every token."""

_FASTER = 1.3
"""A chain that is right to its end must be this many times as fast as plain decoding."""

_ROUNDS = 2
_SAME = 1.1
"""Plain steps of two rounds that differ by more were not measured on an idle machine."""


class SnapshotTarget(KnownTarget, Protocol):
    """A target that knows how much a snapshot takes."""

    def snapshot_bytes(self) -> int: ...


_Target = TypeVar("_Target", bound=SnapshotTarget)


def choose_snapshots(
    reopen: Callable[[int], _Target],
    model_bytes: int,
    *,
    k: int,
    n_threads: int,
    state_bytes: int = 0,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[_Target, str]:
    """Open a target with the snapshots that pay; what was measured for it is kept on disk.

    Parameters
    ----------
    reopen : closes the target that is open, and opens one with some snapshots; it has fewer, or
        none, where there cannot be as many.
    model_bytes : size of the model.
    state_bytes : size of its recurrent state, 0 where that is not known beforehand.
    k, n_threads, progress : see ``measure_costs``.

    Returns
    -------
    The target, and a line for the user: what its snapshots take, or why it has none. The line is
    empty where the model's state cannot be rewound at all.
    """
    target = reopen(max(1, affordable_snapshots(state_bytes, model_bytes)))
    if target.n_rewind == 0:
        return target, ""
    bytes_each = target.snapshot_bytes()
    n_snapshots = min(target.n_rewind, affordable_snapshots(bytes_each, model_bytes))
    if n_snapshots == 0:
        line = f"a snapshot of the model's recurrent state takes {_megabytes(bytes_each)}"
        return reopen(0), f"drafting is off: {line}"
    if n_snapshots < target.n_rewind:
        target = reopen(n_snapshots)
    keys = [cost_key(target, k, n_threads) | {"with_snapshots": n} for n in (0, n_snapshots)]
    known = [load_costs(key) for key in keys]
    if not all(table is not None and table.steady for table in known):
        progress("measuring what snapshots of the model's recurrent state cost")
        try:
            tables = _measure(reopen, n_snapshots, k, n_threads)
        except CancelledError:
            line = "what snapshots of the model's recurrent state cost was not known in time"
            return reopen(0), f"drafting is off: {line}"
        for key, table in zip(keys, tables, strict=True):
            save_costs(key, table)
        target = reopen(n_snapshots)
    else:
        tables = [table for table in known if table is not None]
    pays, line = snapshots_pay(*tables)
    if not pays:
        return reopen(0), line
    return target, (
        f"drafting chains of up to {n_snapshots} tokens; snapshots of the model's recurrent state "
        f"take {_megabytes(n_snapshots * bytes_each)}"
    )


def snapshots_pay(without: CostTable, with_them: CostTable) -> tuple[bool, str]:
    """Whether snapshots pay, and a line that says why they do not.

    Parameters
    ----------
    without, with_them : see ``measure_two``; of steps as wide as the longest chain.
    """
    n_nodes = with_them.widths[-1] - 1
    plain_s, chain_s = with_them.seconds[0]
    slower = plain_s / without.seconds[0][0]
    faster = (n_nodes + 1) * plain_s / chain_s
    return slower <= _SLOWER and faster >= _FASTER, (
        "drafting is off: snapshots of the model's recurrent state do not pay here; a plain step "
        f"takes {slower:.2f} times as long with them, and a chain of {n_nodes} right tokens is "
        f"{faster:.2f} times as fast"
    )


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes >= 1e6 else "less than 1 MB"


def _measure(
    reopen: Callable[[int], SnapshotTarget], n_snapshots: int, k: int, n_threads: int
) -> list[CostTable]:
    """Costs without snapshots and with them, of the round in which a plain step was fastest; not
    steady where plain steps of two rounds differ by as much as the choice turns on."""
    rounds: dict[int, list[CostTable]] = {0: [], n_snapshots: []}
    with measuring_alone() as is_alone:
        for _ in range(_ROUNDS):
            for n, tables in rounds.items():
                target = reopen(n)
                limit_s, _warning = time_limit(target)
                with within(limit_s, target):
                    topk = TopK(k, n_threads)
                    tables.append(measure_two(target, topk, n_snapshots + 1, steady=is_alone))
    found = []
    for tables in rounds.values():
        fastest, *others = sorted(tables, key=lambda table: table.seconds[0][0])
        same = all(t.seconds[0][0] < _SAME * fastest.seconds[0][0] for t in others)
        found.append(replace(fastest, steady=fastest.steady and same))
    return found
