"""From records of answers to cells, ratios and the verdict of ``bench.never_slower``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_tr.bench.outcome import Outcome
from edge_tr.bench.pairs import Record, Records
from edge_tr.bench.statistics import median_bounds

LEAST_RATIO = 0.98
"""A cell whose median ratio is below this for sure fails."""

LEAST_COPY_RATIO = 2.5
LEAST_COPIED = 0.7
LEAST_COPIES = 10
LEAST_ORACLE_SHARE = 0.95
LEAST_MEDIAN = 1.15
"""Of every category of every model."""

LEAST_MEDIAN_ALL = {"smollm2-q4_0": 1.5, "gemma3-q4_k_m": 1.5}

_VERDICT = (
    "failed_cells",
    "plain_failed_cells",
    "copy_edit_ratio",
    "oracle_share",
    "lowest_median",
    "median_all",
    "texts_equal",
    "violations",
    "passed",
)

_SPEEDS = ("whole_tps", "tps", "to_end_tps")


def ratios(
    records: Sequence[Record], arm: str, other: str, speed: str = "whole_tps"
) -> list[float]:
    """Speed of one arm over that of another, one ratio for each record that has both."""
    found = []
    for record in records:
        answers = record["answers"]
        if arm in answers and other in answers:
            fast, slow = (Outcome(**answers[name]) for name in (arm, other))
            found.append(getattr(fast, speed) / getattr(slow, speed))
    return found


def compare(records: Sequence[Record], arm: str, other: str) -> dict[str, Any] | None:
    """Ratios of whole generations, of decoding alone, and up to the end of the text.

    Returns
    -------
    None where no record has both arms. ``fails`` goes by whole generations.
    """
    if not ratios(records, arm, other):
        return None
    whole, decode, to_end = (median_bounds(ratios(records, arm, other, s)) for s in _SPEEDS)
    return {
        **whole.to_dict(),
        "decode": decode.to_dict(),
        "to_end_median": round(to_end.median, 4),
        "fails": whole.upper < LEAST_RATIO,
        "decode_fails": decode.upper < LEAST_RATIO,
    }


def model_report(records: Records, model: str) -> dict[str, Any]:
    """Everything measured of one model."""
    measured = records.of(model, "measured")
    copies = records.of(model, "copy_edit")
    cells = {}
    for category in dict.fromkeys(r["category"] for r in measured + copies):
        members = [r for r in measured + copies if r["category"] == category]
        automatic = compare(members, "auto", "plain")
        if automatic is not None:
            plain = compare(members, "plain2", "plain")
            cells[category] = automatic | {"plain_against_plain": plain}
            cells[category] |= _sources(members) | _drafting(members)
    report = {
        "plain": _one(records, model, "plain"),
        "cells": cells,
        "plain_against_plain": compare(measured, "plain2", "plain"),
        "fixed": _one(records, model, "fixed"),
        "equality": _one(records, model, "equality"),
        "copied_shares": [round(r["copied_share"], 2) for r in copies],
        "copy_edit_ratio": _bounds(ratios(copies, "auto", "plain")),
        "all": _bounds(ratios(measured + copies, "auto", "plain")),
    } | _sources(measured + copies)
    for kind in ("static", "grown"):
        report[f"oracle_share_{kind}"] = _bounds(ratios(measured, "auto", kind))
    return report


def _sources(members: Sequence[Record]) -> dict[str, Any]:
    """How much comes from plain decoding of our build and how much from drafting, medians."""
    pairs = {"from_kernels": ("own", "plain"), "from_drafting": ("auto", "own")}
    found = {name: _bounds(ratios(members, *arms)) for name, arms in pairs.items()}
    return {name: bounds and bounds["median"] for name, bounds in found.items()}


def _one(records: Records, model: str, phase: str) -> Any:
    found = records.find(model, phase, "")
    return found["result"] if found else None


def _bounds(values: Sequence[float]) -> dict[str, Any] | None:
    return median_bounds(values).to_dict() if values else None


def _drafting(members: Sequence[Record]) -> dict[str, Any]:
    """What the automatic arm did in a cell, all answers together."""
    answers = [Outcome(**r["answers"]["auto"]) for r in members]
    n_steps = sum(a.stats["n_steps"] for a in answers)
    n_tokens = sum(len(a.tokens) for a in answers)
    n_after_prefill = n_tokens - len(answers)
    return {
        "mat": round(n_after_prefill / max(1, n_steps), 3),
        "plain_step_share": round(sum(a.stats["n_plain_steps"] for a in answers) / n_steps, 3)
        if n_steps
        else None,
        "after_end_share": round(1 - sum(a.n_to_end for a in answers) / n_tokens, 3),
    }


def summary(records: Records, models: Sequence[str]) -> dict[str, Any]:
    """The verdict over all models, what the last line of stdout says."""
    reports = {model: model_report(records, model) for model in models}
    cells = [cell for report in reports.values() for cell in report["cells"].values()]
    plain = [r["plain_against_plain"] for r in reports.values() if r["plain_against_plain"]]
    plain += [c["plain_against_plain"] for c in cells if c["plain_against_plain"]]
    copies = [
        r["copy_edit_ratio"] for m, r in reports.items() if m in ("smollm2-q4_0", "smollm2-f16")
    ]
    enough = copies and all(c is not None and c["n"] >= LEAST_COPIES for c in copies)
    copy_ratio = min(c["median"] for c in copies) if enough else None
    shares = [r["oracle_share_static"] for r in reports.values()]
    oracle = min((s["median"] for s in shares if s), default=None)
    violations = sum(r["equality"]["violations"] for r in reports.values() if r["equality"])
    lowest = min((cell["median"] for cell in cells), default=None)
    median_all = {model: r["all"]["median"] for model, r in reports.items() if r["all"]}
    equal = min(
        (r["equality"]["identical_share"] for r in reports.values() if r["equality"]), default=None
    )
    failed = sum(cell["fails"] for cell in cells)
    plain_failed = sum(cell["fails"] for cell in plain)
    return {
        "bench": "never_slower",
        "failed_cells": failed,
        "plain_failed_cells": plain_failed,
        "copy_edit_ratio": copy_ratio,
        "oracle_share": oracle,
        "lowest_median": lowest,
        "median_all": median_all,
        "texts_equal": equal,
        "violations": violations,
        "passed": not failed
        and not plain_failed
        and not violations
        and (copy_ratio or 0) >= LEAST_COPY_RATIO
        and (oracle or 0) >= LEAST_ORACLE_SHARE
        and (lowest or 0) >= LEAST_MEDIAN
        and all(median_all.get(m, least) >= least for m, least in LEAST_MEDIAN_ALL.items())
        and equal == 1.0,
        "rule": "a cell fails if the upper 95 % bound (order statistics) of its median ratio of "
        f"tokens per second, prefill included, is below {LEAST_RATIO}",
        "models": reports,
    }


def table(result: dict[str, Any]) -> list[str]:
    """The cells as lines of text."""
    lines = []
    for model, report in result["models"].items():
        lines += ["", f"{model}: plain is {report['plain'] and report['plain']['fastest']}"]
        lines.append(
            f"  {'automatic / plain':<18}{'n':>4}{'median':>9}{'upper':>9}{'decode':>9}"
            f"{'to end':>9}{'MAT':>7}{'kernels':>9}{'drafting':>10}{'plain / plain':>16}"
        )
        for category, cell in report["cells"].items():
            plain = cell["plain_against_plain"]
            lines.append(
                f"  {category:<18}{cell['n']:>4}{cell['median']:>9.3f}{_number(cell['upper']):>9}"
                f"{cell['decode']['median']:>9.3f}{cell['to_end_median']:>9.3f}{cell['mat']:>7.2f}"
                f"{_number(cell['from_kernels']):>9}{_number(cell['from_drafting']):>10}"
                f"{plain['median'] if plain else '-':>16}{'  FAILS' if cell['fails'] else ''}"
            )
        plain = report["plain_against_plain"]
        if plain:
            lines.append(f"  plain / plain: {plain['median']} (upper {_number(plain['upper'])})")
        if report["all"]:
            lines.append(
                f"  all texts: {report['all']['median']}, of which plain decoding of our build "
                f"{_number(report['from_kernels'])}, drafting {_number(report['from_drafting'])}"
            )
        for kind in ("static", "grown"):
            share = report[f"oracle_share_{kind}"]
            if share:
                best = report["fixed"]["best"][kind]["name"]
                lines.append(
                    f"  automatic / best {kind} setting ({best}): {share['median']} over "
                    f"{share['n']} questions, bounds {share['lower']} to {share['upper']}"
                )
        copies = report["copy_edit_ratio"]
        if copies:
            lines.append(
                f"  copy and edit: {copies['median']} over {copies['n']} questions, copied shares "
                f"{report['copied_shares']}"
            )
        if report["equality"]:
            lines.append(f"  text: {report['equality']}")
    return [*lines, "", *(f"{name}: {result[name]}" for name in _VERDICT)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
