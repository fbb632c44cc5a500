"""What the measurements of the GPU script say: speed-ups, their bound, what an 8B would get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bench.gpu_arms import BUDGETS, HOST_PARTS, PEERS
from edge_tr.costs.expected import Recording, RelativeCosts, expect

_LEAST = ("auto_speedup_overall", "auto_over_best_peer", "efficiency")
_MOST = ("host_ms_per_step", "host_ms_per_step_4k", "host_over_backend_topk")

Rows = Sequence[Mapping[str, Any]]
Table = Mapping[str, Any]


def total(rows: Iterable[Mapping[str, Any]], name: str) -> float:
    """Sum of one field."""
    return float(sum(row[name] for row in rows))


def summarise(rows: Rows) -> dict[str, Any]:
    """One entry for each arm: overall and by category.

    Speed-ups are over the faster of the arms "bare" and "plain", from tokens and seconds after
    the first token of each answer.
    """
    arms = {name: [r for r in rows if r["arm"] == name] for name in {r["arm"]: 0 for r in rows}}
    plain = max((a for a in ("bare", "plain") if a in arms), key=lambda a: _tps(arms[a]))
    categories = list({row["category"]: 0 for row in rows})
    summary: dict[str, Any] = {"baseline": plain, "arms": {}}
    for name, own in arms.items():
        entry: dict[str, Any] = {
            "tps": _tps(own),
            "speedup": _tps(own) / _tps(arms[plain]),
            "n_answers": len(own),
            "n_same_text": sum(row["first_difference"] is None for row in own),
            "first_differences": [row["first_difference"] for row in own],
            "categories": {},
        }
        if "n_steps" in own[0]:
            entry |= _steps(own)
        for category in categories:
            of, base = ([r for r in arms[a] if r["category"] == category] for a in (name, plain))
            entry["categories"][category] = {"speedup": _tps(of) / _tps(base)}
            if "n_steps" in own[0]:
                entry["categories"][category]["mat"] = _steps(of)["mat"]
        summary["arms"][name] = entry
    return summary


def _tps(rows: Rows) -> float:
    return total(rows, "n_tokens") / max(total(rows, "seconds"), 1e-9)


def _steps(rows: Rows) -> dict[str, Any]:
    """MAT and milliseconds per step of each part; ``host`` is all but llama_decode and top-k."""
    n = max(total(rows, "n_steps"), 1.0)
    ms = {part[:-2]: 1e3 * total(rows, part) / n for part in ("decode_s", "topk_s", *HOST_PARTS)}
    ms["host"] = 1e3 * total(rows, "steps_s") / n - ms["decode"] - ms["topk"]
    return {
        "mat": total(rows, "n_tokens") / n,
        "nodes_per_step": total(rows, "n_drafted") / n,
        "redone_per_step": total(rows, "n_redone") / n,
        "plain_share": total(rows, "n_plain_steps") / n,
        "ms_per_step": {name: round(value, 4) for name, value in ms.items()},
    }


def host_ms(rows: Rows) -> tuple[list[int], list[float]]:
    """Milliseconds per step of drafting, choosing and recycling, by the number of nodes."""
    nodes, host = [0], [0.0]
    for budget in BUDGETS:
        own = [r for r in rows if r["arm"] == f"recycler{budget}"]
        if own:
            ms = _steps(own)["ms_per_step"]
            nodes.append(budget)
            host.append(ms["draft"] + ms["sample"] + ms["recycle"])
    return nodes, host


def expectation(recording: Recording, name: str, table: Table, rows: Rows | None) -> dict[str, Any]:
    """What the simulator says of a measured T(n).

    Parameters
    ----------
    rows : of the arms, whose time on the host is added to every drafted step; None leaves out
        that, top-k, lanes and the transfer of all logits but one row.
    """
    column = table["one_row_ms"] if rows is None else table["step_ms"]
    step_ms = np.array(column, dtype=np.float64)
    widths = np.array(table["widths"])
    if rows is not None:
        step_ms[1:] += np.interp(widths[1:] - 1, *host_ms(rows))
    ratio = tuple((step_ms / column[0]).tolist())
    costs = RelativeCosts(name, tuple(table["widths"]), ratio, "measured here")
    return expect(recording, costs).to_dict()


def conclude(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of the last line, from the parts that are there; None for those that are not.

    ``models`` has them for each model, the others are those of the model that did worst.
    ``efficiency`` is the speed-up of automatic mode over what the simulator gives for T(n) with
    nothing on the host and one row of logits, with the acceptance recorded on the same prompts;
    ``expected_8b`` is the lowest of the 8B shapes, whole steps and the host's time included, with
    the acceptance of the first model. ``host_over_backend_topk`` is what a step with top-k on the
    host takes over one with llama.cpp's own, above 1 where the latter is faster.
    """
    found: dict[str, Any] = dict.fromkeys((*_LEAST, *_MOST, "expected_8b"))
    found |= {"models": {}, "expected": {}, "bound": {}}
    shapes = [name for name in parts if name.startswith("shape ")]
    for name in [name.removeprefix("costs ") for name in parts if name.startswith("costs ")]:
        found["models"][name] = _of_model(parts, name, shapes, found)
        shapes = []
    for names, worst in ((_LEAST, min), (_MOST, max)):
        for name in names:
            values = [m[name] for m in found["models"].values() if m.get(name) is not None]
            found[name] = worst(values) if values else None
    big = [e for name, e in found["expected"].items() if name.startswith("shape 8b")]
    if big:
        found["expected_8b"] = min(e["expected_speedup"] for e in big)
    return found


def _of_model(
    parts: Mapping[str, Any], model: str, shapes: Sequence[str], found: dict[str, Any]
) -> dict[str, Any]:
    """The numbers of one model; what the simulator says of it, and of the parts that are shapes
    with its acceptance, goes to ``found``."""
    own: dict[str, Any] = {"peers": []}
    rows = parts.get(f"arms {model}", {}).get("rows", [])
    arms = summarise(rows)["arms"] if rows else {}
    auto = arms.get("auto")
    if auto:
        own["auto_speedup_overall"] = auto["speedup"]
        own["host_ms_per_step"] = auto["ms_per_step"]["host"]
        own["peers"] = [name for name in PEERS if name in arms]
        if own["peers"]:
            best = max(arms[name]["speedup"] for name in own["peers"])
            own["auto_over_best_peer"] = auto["speedup"] / best
    long = parts.get(f"host 4k {model}", {}).get("rows", [])
    if long:
        own["host_ms_per_step_4k"] = summarise(long)["arms"]["auto"]["ms_per_step"]["host"]
    topk = parts.get(f"topk {model}", {}).get("topk")
    if topk:  # of the widest step
        own["host_over_backend_topk"] = topk["host_ms"][-1] / topk["backend_ms"][-1]
    recorded = parts.get(f"record {model}", {}).get("recording")
    if recorded and auto:
        recording = Recording.from_dict(recorded)
        for name in (f"costs {model}", *shapes):
            table = _table(parts, name)
            if table:
                found["expected"][name] = expectation(recording, name, table, rows)
        table = _table(parts, f"costs {model}")
        if table:
            found["bound"][model] = expectation(recording, model, table, None)
            own["efficiency"] = auto["speedup"] / found["bound"][model]["expected_speedup"]
    return own


def _table(parts: Mapping[str, Any], name: str) -> Table | None:
    """The T(n) table of the shortest context of a part."""
    tables = [t for t in parts.get(name, {}).get("tables", []) if len(t["widths"]) > 1]
    return min(tables, key=lambda table: table["n_past"]) if tables else None
