"""Measured costs kept on disk, one file for each model, build, machine and configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from edge_tr.costs.table import CostTable
from edge_tr.errors import ConfigError
from edge_tr.files.paths import cache_dir
from edge_tr.files.whole_file import write_whole
from edge_tr.machine.idle import IdleCores
from edge_tr.measuring.lock import measuring_alone
from edge_tr.measuring.steps import is_crowded, measure_costs
from edge_tr.target import TargetModel, widest_step

_FORMAT = 6

_MAX_WIDTH = 81
"""Widest step of automatic mode: the root and 80 nodes."""


class KnownTarget(TargetModel, Protocol):
    """A target that can say what its costs depend on."""

    def cost_key(self) -> dict[str, Any]: ...


def costs_of(
    target: KnownTarget,
    *,
    k: int,
    n_threads: int,
    budget_s: float = 4.0,
    n_tries: int = 3,
    anew: bool = False,
    keep: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> CostTable:
    """The costs of this target: those kept on disk, else measured now.

    Costs that were measured while the machine did something else too are measured once more at
    the next start, unless someone asked for that measurement, and the faster of the two are kept;
    those that were measured while another program measured, until one is alone. Where half of the
    threads are faster than all, since other programs compute, costs are measured with half of
    them and not kept.

    Parameters
    ----------
    k, n_threads, budget_s, n_tries, progress : see ``measure_costs``.
    anew : measure even if there are costs on disk.
    keep : keep what was measured, in place of what was there.
    """
    key = cost_key(target, k, n_threads)
    known = None if anew else load_costs(key)
    if known is not None and known.steady:
        return known
    max_width = min(_MAX_WIDTH, widest_step(target), target.n_ctx // 4)
    with measuring_alone(progress=progress) as is_alone, _fewer_threads(target, anew) as crowded:
        table = measure_costs(
            target,
            k=k,
            max_width=max_width,
            n_threads=n_threads,
            budget_s=budget_s,
            n_tries=n_tries,
            progress=progress,
        )
    if known is not None and known.seconds[0][0] < table.seconds[0][0]:
        table = known  # what else ran made it slower
    if not is_alone or crowded:
        table = replace(table, steady=False)
    elif anew or known is not None:
        table = replace(table, steady=True)
    if keep and not crowded:
        save_costs(key, table)
    return table


@contextmanager
def _fewer_threads(target: KnownTarget, anew: bool) -> Iterator[bool]:
    """Measure with half of the threads where these are ours to choose and half is faster; whether
    that is so. Who asked for a measurement gets that of all threads."""
    if anew or not getattr(target, "may_change_threads", False):
        yield False
        return
    n_threads, set_threads = target.n_threads, target.set_threads  # type: ignore[attr-defined]
    if n_threads < 2 or not is_crowded(target, set_threads, n_threads, IdleCores()):
        yield False
        return
    set_threads(n_threads // 2)
    try:
        yield True
    finally:
        set_threads(n_threads)


def cost_key(target: KnownTarget, k: int, n_threads: int) -> dict[str, Any]:
    """All that the costs of this target depend on."""
    return target.cost_key() | {"k": k, "topk_threads": n_threads}


def cost_path(key: dict[str, Any]) -> Path:
    """File of the costs measured under exactly these conditions."""
    text = json.dumps(key, sort_keys=True, default=str)
    return cache_dir() / "costs" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def load_costs(key: dict[str, Any]) -> CostTable | None:
    """The costs measured under these conditions, or None where there are none that can be read."""
    try:
        data = json.loads(cost_path(key).read_text())
        return CostTable.from_dict(data["costs"]) if data["format"] == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        return None


def save_costs(key: dict[str, Any], table: CostTable) -> bool:
    """Keep the costs; False where the cache cannot be written, they are then measured again."""
    path = cost_path(key)
    data = {"format": _FORMAT, "key": key, "costs": table.to_dict()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(data, indent=1, default=str)
        write_whole(path, lambda stream: stream.write(text.encode()))
    except OSError:
        return False
    return True


def forget_costs(key: dict[str, Any]) -> None:
    """Have the costs measured anew next time."""
    cost_path(key).unlink(missing_ok=True)
