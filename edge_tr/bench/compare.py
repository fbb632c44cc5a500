"""What changed between two results of one experiment, beyond the noise."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

from edge_tr.bench.runner import AGAIN, PLAIN
from edge_tr.bench.statistics import median_bounds
from edge_tr.bench.summary import plain_key
from edge_tr.errors import ConfigError


def read_result(path: Path) -> dict[str, Any]:
    """A result that ``edge-tr bench`` wrote.

    Raises
    ------
    ConfigError : the file cannot be read, or holds something else.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read as a result: {error}") from error
    if not isinstance(found, dict) or "experiment" not in found or "answers" not in found:
        raise ConfigError(f"{path} is not a result of edge-tr bench")
    return found


def compare(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """B against A, method by method, over the prompts that both answered.

    Speeds are compared as multiples of the plain decoding of the same run, so that two runs on a
    machine that was faster once compare; plain decoding itself is compared in tokens per second.
    A change is beyond the noise where the one-sided 95 % bounds of its median leave 1 out, and
    it is larger than what two plain answers of one run differ by.

    Raises
    ------
    ConfigError : results of different experiments, or without a prompt in common.
    """
    if a["experiment"] != b["experiment"]:
        raise ConfigError(
            f"a result of {a['experiment']} and one of {b['experiment']} do not compare"
        )
    pairs = _pairs(a, b)
    if not pairs:
        raise ConfigError("the two results have no answered prompt in common")
    least = max(_noise(result) for result in (a, b))
    keys = list(dict.fromkeys(key for x, _ in pairs for key in x))
    changes = {}
    for key in keys:
        plain = plain_key(key, keys)
        ratios = [
            _speed(y, key, plain) / _speed(x, key, plain)
            for x, y in pairs
            if all(_has(outcomes, name) for outcomes in (x, y) for name in (key, plain))
        ]
        if ratios:
            changes[key] = _change(ratios, least)
    return {
        "bench": "compare",
        "experiment": a["experiment"],
        "noise": round(least, 4),
        "different": _different(a, b),
        "changes": changes,
    }


def _pairs(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    others = {(x["id"], tuple(sorted(x["outcomes"]))): x["outcomes"] for x in b["answers"]}
    by_id = {x["id"]: x["outcomes"] for x in b["answers"]}
    pairs = []
    for x in a["answers"]:
        other = others.get((x["id"], tuple(sorted(x["outcomes"])))) or by_id.get(x["id"])
        if other is not None:
            pairs.append((x["outcomes"], other))
    return pairs


def _has(outcomes: dict[str, Any], key: str) -> bool:
    return key in outcomes and outcomes[key]["n_tokens"] > 1 and outcomes[key]["decode_s"] > 0


def _tps(outcome: dict[str, Any]) -> float:
    return float((outcome["n_tokens"] - 1) / outcome["decode_s"])


def _speed(outcomes: dict[str, Any], key: str, plain: str) -> float:
    own = _tps(outcomes[key])
    return own if key == plain else own / _tps(outcomes[plain])


def _noise(result: dict[str, Any]) -> float:
    """By which share two plain answers to one prompt differ, in the median."""
    noise = result.get("noise")
    return abs(float(noise["median"]) - 1) if noise else 0.0


def _change(ratios: list[float], least: float) -> dict[str, Any]:
    bounds = median_bounds(ratios)
    faster = bounds.lower > 1 and bounds.median - 1 > least
    slower = bounds.upper < 1 and 1 - bounds.median > least
    return {
        "n": bounds.n,
        "median": round(bounds.median, 4),
        "lower": round(bounds.lower, 4) if isfinite(bounds.lower) else None,
        "upper": round(bounds.upper, 4) if isfinite(bounds.upper) else None,
        "verdict": "faster" if faster else "slower" if slower else "no change beyond the noise",
    }


def _different(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """What differs in the conditions; such a change may explain any other."""
    found = []
    for part in ("model", "machine", "build", "settings"):
        one, other = a.get(part, {}), b.get(part, {})
        for name in sorted(one | other):
            if one.get(name) != other.get(name):
                found.append(f"{part} {name}: {one.get(name)} and {other.get(name)}")
    return found


def text(found: dict[str, Any]) -> list[str]:
    """For a terminal."""
    lines = [f"different: {what}" for what in found["different"]]
    lines.append(f"{'':<28}{'B over A':>10}{'bounds':>18}{'n':>5}")
    for key, change in found["changes"].items():
        name = f"{key} (tokens/s)" if key.rpartition("/")[2] in (PLAIN, AGAIN) else key
        low, high = change["lower"], change["upper"]
        bounds = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        lines.append(
            f"{name:<28}{change['median']:>10.3f}{bounds:>18}{change['n']:>5}  {change['verdict']}"
        )
    return lines
