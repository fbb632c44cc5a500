"""Pictures of results, drawn with matplotlib where it is installed."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import Any

from edge_tr.bench.runner import AGAIN, PLAIN

PARTS = ("decode", "topk", "draft", "recycle", "lanes", "sample", "step")
"""Kinds of work of a decode step, and the whole."""

_COLOURS = {"auto": "#3b6fb6", "paper": "#d08a2e"}
_OTHER = "#9aa5b5"


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def heading(result: dict[str, Any]) -> str:
    """Title of a result, with its model where it is about one."""
    title = str(result["title"])
    return title if "files" in result else f"{title}: {result['model']['name']}"


def draw(result: dict[str, Any]) -> bytes | None:
    """A result as PNG; None where matplotlib is missing, or there is nothing to draw."""
    rows = [row for row in result["rows"] if row["method"] not in (PLAIN, AGAIN)]
    if not can_draw() or not rows:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.2 + 0.34 * len(rows)), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    if result.get("kind") == "memory":
        _memory_bars(axes, rows)
    elif result.get("parts"):
        _part_bars(axes, [row for row in result["rows"] if row.get("parts_ms")])
    else:
        _ratio_bars(axes, [row for row in rows if row.get("all", {}).get("ratio")])
    axes.set_title(heading(result), loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def _names(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{r['setting']}: {r['method']}" if r["setting"] else str(r["method"]) for r in rows]


def _ratio_bars(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Times plain decoding, with mean accepted tokens beside; lines are the bounds."""
    rows = rows[::-1]
    ratios = [row["all"]["ratio"] for row in rows]
    colours = [_COLOURS.get(row["method"], _OTHER) for row in rows]
    axes.barh(_names(rows), ratios, color=colours)
    right = 1.0
    for place, whole in enumerate(row["all"] for row in rows):
        low, high = whole.get("ratio_lower"), whole.get("ratio_upper")
        end = whole["ratio"]
        if low is not None and high is not None:
            axes.plot([low, high], [place, place], color="#1c2330", linewidth=1)
            end = max(end, high)
        text = f"  {whole['ratio']:.2f}  (MAT {whole['mat']:.2f})"
        axes.text(end, place, text, fontsize=8, verticalalignment="center")
        right = max(right, end)
    axes.axvline(1, color="#1c2330", linewidth=0.8, linestyle="--")
    axes.set_xlim(0, 1.25 * right)
    axes.set_xlabel("times as fast as plain decoding")


def _memory_bars(axes: Any, rows: list[dict[str, Any]]) -> None:
    rows = rows[::-1]
    own = [row["own_bytes"] / 2**20 for row in rows]
    logits = [row["logits_bytes"] / 2**20 for row in rows]
    axes.barh(_names(rows), own, color=_COLOURS["auto"], label="own data")
    axes.barh(_names(rows), logits, left=own, color=_OTHER, label="rows of logits")
    axes.legend(frameon=False)
    axes.set_xlabel("MiB")


def _part_bars(axes: Any, rows: list[dict[str, Any]]) -> None:
    rows = rows[::-1]
    left = [0.0] * len(rows)
    for part in PARTS[:-1]:
        ms = [row["parts_ms"].get(part, 0.0) for row in rows]
        axes.barh(_names(rows), ms, left=left, label=part)
        left = [a + b for a, b in zip(left, ms, strict=True)]
    axes.legend(frameon=False)
    axes.set_xlabel("milliseconds per decode step")
