"""What a decode step costs on this machine."""

from __future__ import annotations


class StepCosts:
    """Seconds of one decode step by its number of tokens, from the steps really taken."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Take note of one step."""
        known = self._seconds.get(n_tokens, seconds)
        self._seconds[n_tokens] = known + 0.2 * (seconds - known)

    def token_s(self) -> float:
        """Seconds that one more token in a batch costs, roughly: the slope between the
        narrowest and the widest step seen. Infinite before two widths were seen."""
        if len(self._seconds) < 2:
            return float("inf")
        low, high = min(self._seconds), max(self._seconds)
        return max(0.0, (self._seconds[high] - self._seconds[low]) / (high - low))
