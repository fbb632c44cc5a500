"""The staircase T(n)/T(1) as bars of text and as a small SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from edge_tr.costs.expected import Expectation

_COLUMNS = 56
_WIDTH, _HEIGHT = 640, 400
_LEFT, _TOP, _RIGHT, _BOTTOM = 50, 20, 20, 45
_COLOURS = ("#1f77b4", "#d62728", "#9467bd", "#8c564b")


def bars(expectation: Expectation) -> list[str]:
    """One bar for each measured width; ``o`` marks the tokens that the step is expected to yield.

    Drafting pays where the ``o`` stands behind the end of the bar.
    """
    costs, mat_of = expectation.costs, expectation.mat_of
    scale = _COLUMNS / max(*costs.ratio, *mat_of)
    lines = []
    for width, ratio in zip(costs.widths, costs.ratio, strict=True):
        bar = list("#" * max(1, round(ratio * scale)))
        if width <= len(mat_of):
            at = round(mat_of[width - 1] * scale)
            bar += " " * (at + 1 - len(bar))
            bar[at] = "o"
        lines.append(f"{width:>6} |{''.join(bar)}")
    lines.append(f"{'tokens':>6} +{'-' * _COLUMNS} {_COLUMNS / scale:.1f} plain steps")
    return lines


def svg(expectations: Sequence[Expectation]) -> str:
    """The same as an image: a line for the cost at each context, and a dashed one for what a
    step is expected to yield."""
    widest = max(e.costs.widths[-1] for e in expectations)
    highest = max(max(*e.costs.ratio, *e.mat_of) for e in expectations)
    plane = _Plane(widest, highest)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *plane.axes(),
    ]
    for i, e in enumerate(expectations):
        points = list(zip(e.costs.widths, e.costs.ratio, strict=True))
        lines += plane.line(points, f"cost: {e.costs.name}", _COLOURS[i % len(_COLOURS)], i)
    yields = list(enumerate(expectations[0].mat_of, start=1))
    lines += plane.line(yields, "expected tokens", "#2ca02c", len(expectations), dashed=True)
    return "\n".join([*lines, "</svg>", ""])


class _Plane:
    """Tokens in a step to the right, on a logarithmic scale; plain steps upwards."""

    def __init__(self, widest: int, highest: float) -> None:
        self._widest = widest
        self._highest = highest

    def _x(self, tokens: float) -> float:
        share = math.log(tokens) / math.log(max(2, self._widest))
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, steps: float) -> float:
        return _HEIGHT - _BOTTOM - steps / self._highest * (_HEIGHT - _TOP - _BOTTOM)

    def axes(self) -> list[str]:
        """Grid lines with their numbers."""
        lines = []
        step = max(1, math.ceil(self._highest / 8))
        for steps in range(0, int(self._highest) + 1, step):
            y = self._y(steps)
            lines.append(
                f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{steps}</text>'
            )
        tokens = 1
        while tokens <= self._widest:
            x, y = self._x(tokens), _HEIGHT - _BOTTOM
            lines.append(f'<text x="{x:.1f}" y="{y + 16}" text-anchor="middle">{tokens}</text>')
            tokens *= 2
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        title = f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">'
        lines.append(f"{title}tokens in a step (upwards: plain steps)</text>")
        return lines

    def line(
        self,
        points: Sequence[tuple[float, float]],
        name: str,
        colour: str,
        place: int,
        *,
        dashed: bool = False,
    ) -> list[str]:
        """A line and its entry in the legend."""
        path = " ".join(f"{self._x(n):.1f},{self._y(steps):.1f}" for n, steps in points)
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        y = _TOP + 14 + 18 * place
        style = f'fill="none" stroke="{colour}" stroke-width="2"{dash}'
        return [
            f'<polyline points="{path}" {style}/>',
            f'<path d="M{_LEFT + 10} {y - 4}h24" {style}/>',
            f'<text x="{_LEFT + 40}" y="{y}">{escape(name)}</text>',
        ]
