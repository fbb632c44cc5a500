"""From records of answers to tables: speed, mean accepted tokens, ratios, equal texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, isfinite
from statistics import fmean, median
from typing import Any

import numpy as np

from edge_tr.bench.outcome import Outcome
from edge_tr.bench.pairs import Record
from edge_tr.bench.runner import PLAIN
from edge_tr.bench.statistics import median_bounds
from edge_tr.measuring.equality import EqualityReport, Known, TextPair, compare_texts
from edge_tr.target import TargetModel

Answers = list[tuple[Record, Outcome, Outcome | None]]
"""Record, answer of a method, and plain decoding's answer to the same prompt."""


def plain_key(key: str, keys: Sequence[str]) -> str:
    """The plain decoding that a key is compared with: that of its setting, where there is one."""
    setting, _, _ = key.rpartition("/")
    own = f"{setting}/{PLAIN}"
    return own if setting and own in keys else PLAIN


def keys_of(records: Sequence[Record]) -> list[str]:
    """Every key of the records, in the order of their first appearance."""
    return list(dict.fromkeys(key for record in records for key in record["outcomes"]))


def answers_of(records: Sequence[Record], key: str, plain: str) -> Answers:
    """The answers of one key that have a speed."""
    found: Answers = []
    for record in records:
        outcomes = record["outcomes"]
        if key not in outcomes:
            continue
        outcome = Outcome(**outcomes[key])
        other = Outcome(**outcomes[plain]) if plain in outcomes else None
        if outcome.counts:
            found.append((record, outcome, other if other and other.counts else None))
    return found


def cell(answers: Answers) -> dict[str, Any] | None:
    """Totals over answers: tokens over seconds, tokens over steps, and their ratio to plain.

    Returns
    -------
    None where nothing has a speed. ``ratio`` compares totals over the same prompts,
    ``ratio_mean`` is the mean of the ratios of each answer, ``ratio_median`` their median with
    one-sided 95 % bounds.
    """
    if not answers:
        return None
    outcomes = [outcome for _, outcome, _ in answers]
    both = [(a, b) for _, a, b in answers if b is not None]
    ratios = [a.tps / b.tps for a, b in both]
    n_drafted = sum(o.n_drafted for o in outcomes)
    found: dict[str, Any] = {
        "n": len(answers),
        "tps": round(_tps(outcomes), 3),
        "mat": round(sum(o.n_tokens - 1 for o in outcomes) / sum(o.n_steps for o in outcomes), 3),
        "prefill_s": round(sum(o.prefill_s for o in outcomes), 3),
        "acceptance_rate": round(sum(o.n_accepted for o in outcomes) / n_drafted, 3)
        if n_drafted
        else None,
    }
    if ratios:
        bounds = median_bounds(ratios)
        found |= {
            "ratio": round(_tps([a for a, _ in both]) / _tps([b for _, b in both]), 4),
            "ratio_mean": round(fmean(ratios), 4),
            "ratio_median": round(bounds.median, 4),
            "ratio_lower": round(bounds.lower, 4) if isfinite(bounds.lower) else None,
            "ratio_upper": round(bounds.upper, 4) if isfinite(bounds.upper) else None,
        }
    return found


def _tps(outcomes: Sequence[Outcome]) -> float:
    return sum(o.n_tokens - 1 for o in outcomes) / sum(o.decode_s for o in outcomes)


def parts_ms(answers: Answers) -> dict[str, float]:
    """Milliseconds per decode step of each kind of work, and what is left as "other"."""
    outcomes = [outcome for _, outcome, _ in answers if outcome.parts]
    n_steps = sum(o.n_steps for o in outcomes)
    if not n_steps:
        return {}
    names = dict.fromkeys(name for o in outcomes for name in o.parts)
    ms = {
        name.removesuffix("_s"): 1e3 * sum(o.parts[name] for o in outcomes) / n_steps
        for name in names
    }
    whole = 1e3 * sum(o.decode_s for o in outcomes) / n_steps
    return {name: round(value, 4) for name, value in ms.items()} | {"step": round(whole, 4)}


def rows(records: Sequence[Record], about: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """One row for each key: setting, method, totals, and a cell for each category."""
    keys = keys_of(records)
    categories = list(dict.fromkeys(record["category"] for record in records))
    found = []
    for key in keys:
        answers = answers_of(records, key, plain_key(key, keys))
        whole = cell(answers)
        setting, _, method = key.rpartition("/")
        row: dict[str, Any] = {"setting": setting, "method": method}
        if about and method in about:
            row["about"] = about[method]
        errors = [r["outcomes"][key]["error"] for r in records if _failed(r, key)]
        if errors:
            row["errors"] = {"n": len(errors), "first": errors[0]}
        if whole is not None:
            cells = {c: cell([a for a in answers if a[0]["category"] == c]) for c in categories}
            row |= {"all": whole, "by_category": {c: v for c, v in cells.items() if v}}
            parts = parts_ms(answers)
            if parts:
                row["parts_ms"] = parts
        found.append(row)
    return found


def _failed(record: Record, key: str) -> bool:
    return bool(record["outcomes"].get(key, {}).get("error"))


def by_method(table: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows of an experiment without settings as ``methods``, by name: "tps", "mat" and
    "ratio" by category, and "all"."""
    methods = {}
    for row in table:
        if "all" not in row:
            continue
        cells = row["by_category"]
        methods[row["method"]] = {
            name: {category: values.get(name) for category, values in cells.items()}
            for name in ("tps", "mat", "ratio")
        } | {"all": row["all"]}
    return methods


def over_best(methods: dict[str, Any], name: str, others: Sequence[str]) -> dict[str, Any] | None:
    """Tokens per second of a method over those of the best of others, in each category and over
    all, and the lowest category; None where none of them has a speed."""
    there = [other for other in others if other in methods]
    if name not in methods or not there:
        return None
    own = methods[name]["tps"]
    ratios = {}
    for category in own:
        tps = [v for other in there if (v := methods[other]["tps"].get(category)) is not None]
        if tps and own[category] is not None:
            ratios[category] = round(own[category] / max(tps), 3)
    best = max(methods[other]["all"]["tps"] for other in there)
    return {
        "all": round(methods[name]["all"]["tps"] / best, 3),
        "lowest": min(ratios.values(), default=None),
        "by_category": ratios,
    }


def noise(records: Sequence[Record], again: str) -> dict[str, float] | None:
    """Ratios of two plain answers to one prompt: their median, by how much they typically leave
    1, and their range."""
    ratios = [o.tps / p.tps for _, o, p in answers_of(records, again, PLAIN) if p is not None]
    if not ratios:
        return None
    return {
        "median": round(median(ratios), 4),
        "typical": round(median(abs(ratio - 1) for ratio in ratios), 4),
        "lowest": round(min(ratios), 4),
        "highest": round(max(ratios), 4),
    }


def equal_shares(
    records: Sequence[Record], keys: Sequence[str], text_of: Callable[[list[int]], str]
) -> dict[str, str]:
    """How many texts of each key equal plain decoding's, as "n/m".

    Parameters
    ----------
    text_of : the text of tokens, for programs that give no tokens.
    """
    shares = {}
    for key in keys:
        equal = []
        for record in records:
            outcomes = record["outcomes"]
            if key not in outcomes or PLAIN not in outcomes or outcomes[key].get("error"):
                continue
            plain, other = Outcome(**outcomes[PLAIN]), Outcome(**outcomes[key])
            if other.tokens:
                equal.append(_same_start(plain.tokens, other.tokens))
            elif other.text is not None:
                equal.append(_same_text(text_of(plain.tokens), other.text))
        if equal:
            shares[key] = f"{sum(equal)}/{len(equal)}"
    return shares


def _same_start(a: list[int], b: list[int]) -> bool:
    n = min(len(a), len(b))
    return n > 0 and a[:n] == b[:n]


def _same_text(a: str, b: str) -> bool:
    """As far as both go; a program may stop some tokens later."""
    a, b = a.strip(), b.strip()
    n = min(len(a), len(b))
    return n > 0 and a[:n] == b[:n]


def text_pairs(records: Sequence[Record], key: str) -> list[TextPair]:
    """Plain and drafted texts of one key, cut to the length of the shorter one."""
    pairs = []
    for record in records:
        outcomes = record["outcomes"]
        plain = outcomes.get(PLAIN, {}).get("tokens")
        other = outcomes.get(key, {}).get("tokens")
        if plain and other:
            n = min(len(plain), len(other))
            prompt = np.array(record["prompt"], dtype=np.int32)
            pairs.append(TextPair(record["id"], prompt, plain[:n], other[:n]))
    return pairs


def equality(
    target: TargetModel,
    records: Sequence[Record],
    key: str,
    *,
    n_positions: int,
    known: Known | None = None,
) -> EqualityReport | None:
    """The four numbers of one of our methods; the control runs at the widths that it drafted,
    over the plain texts and then the prompts."""
    pairs = text_pairs(records, key)
    outcomes = [Outcome(**r["outcomes"][key]) for r in records if key in r["outcomes"]]
    n_steps = sum(o.n_steps for o in outcomes)
    if not pairs or not n_steps:
        return None
    width = 1 + ceil(sum(o.n_drafted for o in outcomes) / n_steps)
    widths = range(2, max(2, min(width, target.n_batch)) + 1)
    prompts = [pair.prompt for pair in pairs]
    return compare_texts(target, pairs, widths=widths, n_positions=n_positions, more_texts=prompts)
