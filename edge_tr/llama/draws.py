"""Draws of the drop-in ``Llama``: the stock class's sampler chain at each visited node."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_tr.constrain.constraint import Constraint
from edge_tr.constrain.gbnf import grammar_rules
from edge_tr.llama.chain import apply_chain
from edge_tr.llama.logprobs import Logprobs
from edge_tr.llama.vocabulary import find_token
from edge_tr.target import Float32


class Draws:
    """Draws once for each token, where the stock class would, and shows what it would show.

    Logits processors and the grammar come before llama.cpp's samplers, as in the stock class; an
    exception of a processor reaches whoever asked for the token.

    Parameters
    ----------
    llm : its ``n_tokens`` and ``input_ids`` are right whenever a logits processor looks.
    options : sampling arguments of ``Llama.generate``.
    keep_rows : keep each row of logits in ``llm.scores``.
    logprobs : takes note of each row.

    Raises
    ------
    ConfigError : the grammar cannot be followed.
    """

    def __init__(
        self, llm: Any, options: dict[str, Any], *, keep_rows: bool, logprobs: Logprobs | None
    ) -> None:
        self._llm = llm
        self.temperature = max(0.0, float(options["temp"]))
        self._rows = llm.scores.kept if keep_rows else None
        self._logprobs = logprobs
        self._processors = list(options["logits_processor"] or ())
        self._constraint: Constraint | None = None
        if options["grammar"] is not None:
            vocab = llm._model.vocab
            rules = grammar_rules(options["grammar"]._grammar, lambda text: find_token(vocab, text))
            self._constraint = Constraint(llm.constraint_vocabulary, rules)
        plain = options | {"logits_processor": None, "grammar": None}
        self._chain = None if _takes_best(plain) else llm._init_sampler(**plain)
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
        if self._processors or self._constraint is not None:
            token = self._choose(self._changed(logits))
        elif self._chain is None:
            token = int(logits.argmax())
        else:
            token = int(self._chain.sample(llm._ctx, batch_index))
        if self._constraint is not None:
            self._constraint.accept(token)
        if self._logprobs is not None:
            self._logprobs.add(n_tokens - 1, logits, token)
        return token

    def _changed(self, logits: Float32) -> Float32:
        """A copy of a row after the processors and the grammar."""
        row: Float32 = np.array(logits, dtype=np.float32)
        for process in self._processors:
            row[:] = process(self._llm._input_ids, row)
        if self._constraint is not None:
            row[~self._constraint.allowed()] = -np.inf
        return row

    def _choose(self, row: Float32) -> int:
        if self._chain is None:
            return int(row.argmax())
        return apply_chain(self._chain.sampler, row)


def _takes_best(options: dict[str, Any]) -> bool:
    """Whether the chain would only take the most probable token (ties: the lowest id)."""
    return bool(
        options["temp"] == 0
        and options["repeat_penalty"] == 1
        and options["frequency_penalty"] == options["presence_penalty"] == 0
    )
