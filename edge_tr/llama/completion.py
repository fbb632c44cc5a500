"""The stock class's completion, whose ``generate`` is told what the stock class does not tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edge_tr.llama.logprobs import Logprobs

Criteria = Callable[[Any, Any], bool]


@dataclass(frozen=True)
class Told:
    """Stopping criteria of ``generate``, and what else one completion tells it.

    It goes the way of an argument, so that no other call can take it, also where a subclass
    changes ``generate``.

    Attributes
    ----------
    criteria : those of the user.
    budget : most tokens that are needed; None goes on.
    logprobs : takes note of each token.
    """

    criteria: Criteria | None = None
    budget: int | None = None
    logprobs: Logprobs | None = None

    def __call__(self, input_ids: Any, logits: Any) -> bool:
        return self.criteria is not None and bool(self.criteria(input_ids, logits))


class Completion:
    """An open model as one completion of the stock class sees it.

    Everything is the model's own, but its ``generate`` is told more.
    """

    def __init__(self, llm: Any, budget: int | None, logprobs: Logprobs | None) -> None:
        self._llm = llm
        self._budget = budget
        self._logprobs = logprobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(self, tokens: Sequence[int], **options: Any) -> Iterator[int]:
        told = Told(options.pop("stopping_criteria", None), self._budget, self._logprobs)
        found: Iterator[int] = self._llm.generate(tokens, stopping_criteria=told, **options)
        return found
