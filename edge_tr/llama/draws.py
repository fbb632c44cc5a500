"""Draws of the drop-in ``Llama``: the stock class's sampler chain at each visited node."""

from __future__ import annotations

from typing import Any

from edge_tr.llama.logprobs import Logprobs
from edge_tr.target import Float32


class Draws:
    """Draws once for each token, where the stock class would, and shows what it would show.

    Parameters
    ----------
    llm : its ``n_tokens`` and ``input_ids`` are right whenever a logits processor looks.
    options : sampling arguments of ``Llama.generate``.
    keep_rows : keep each row of logits in ``llm.scores``.
    logprobs : takes note of each row.
    """

    def __init__(
        self, llm: Any, options: dict[str, Any], *, keep_rows: bool, logprobs: Logprobs | None
    ) -> None:
        self._llm = llm
        self._rows = llm.scores.kept if keep_rows else None
        self._logprobs = logprobs
        self._chain = None if _takes_best(options) else llm._init_sampler(**options)
        self.row: Float32 | None = None

    def prompt_rows(self, first: int, rows: Float32) -> None:
        """See the rows of a part of the prompt."""
        if self._rows is not None:
            self._rows.put(first, rows)
        if self._logprobs is not None:
            self._logprobs.add_prompt(first, rows)

    def sample(self, batch_index: int, logits: Float32) -> int:
        llm = self._llm
        n_tokens = llm.n_tokens = llm._decoder.n_tokens
        llm._requires_eval = False
        if self._rows is not None:
            self._rows.put(n_tokens - 1, logits[None])
        self.row = logits
        if self._chain is None:
            token = int(logits.argmax())
        else:
            token = int(self._chain.sample(llm._ctx, batch_index))
        if self._logprobs is not None:
            self._logprobs.add(n_tokens - 1, logits, token)
        return token


def _takes_best(options: dict[str, Any]) -> bool:
    """Whether the chain would only take the most probable token (ties: the lowest id)."""
    return (
        options["temp"] == 0
        and options["repeat_penalty"] == 1
        and options["frequency_penalty"] == options["presence_penalty"] == 0
        and options["grammar"] is None
        and options["logits_processor"] is None
    )
