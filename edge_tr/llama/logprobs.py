"""Log probabilities of a completion, taken while it is written.

The stock class keeps every row of logits of the whole context for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llama_cpp import Llama as StockLlama

from edge_tr.target import Float32


class Logprobs:
    """What the stock class reports as ``logprobs`` of a completion that is not streamed.

    Parameters
    ----------
    llm : the open model.
    n_top : most probable tokens to report at each place.
    echo : report the prompt's tokens too.
    """

    def __init__(self, llm: Any, n_top: int, *, echo: bool) -> None:
        self._llm = llm
        self._n_top = n_top
        self.echo = echo
        self._shifted = False
        self.prompt: list[int] = []
        self.completion: list[int] = []
        self._of: dict[int, tuple[float, list[tuple[int, float]]]] = {}

    def begin(self, prompt: list[int]) -> None:
        """Start with the tokens of the prompt."""
        self.prompt = prompt
        # Without a begin-of-text token in front, the stock class's echo pairs each token with
        # the row after it, and not with the one that foretold it.
        self._shifted = self.echo and prompt[:1] != [self._llm.token_bos()]

    def add_prompt(self, first: int, rows: Float32) -> None:
        """Note the rows of the prompt's tokens from position ``first`` on."""
        if self.echo:
            for position in range(first, min(first + len(rows), len(self.prompt) - 1)):
                self.add(position, rows[position - first], self.prompt[position + 1])

    def add(self, position: int, row: Float32, token: int) -> None:
        """Note the row after ``position``, and the token that followed."""
        if self._shifted:
            after = position - len(self.prompt)
            token = self.prompt[position] if after < 0 else self.completion[after]
        logprobs = StockLlama.logits_to_logprobs(row)
        best: list[tuple[int, float]] = []
        if self._n_top > 0:
            n = min(self._n_top, len(row))
            least = np.partition(logprobs, len(row) - n)[len(row) - n]
            ids = np.flatnonzero(logprobs >= least)
            order = np.lexsort((-ids, -logprobs[ids]))[:n]  # ties: the higher id, as stock
            best = [(int(i), float(logprobs[i])) for i in ids[order]]
        self._of[position] = float(logprobs[token]), best

    def result(self, prompt: str | list[int]) -> dict[str, Any]:
        """The ``logprobs`` of the choice; its shape is that of ``llama_cpp.Llama``."""
        bos, detokenize = self._llm.token_bos(), self._llm.detokenize
        if self.echo:
            tokens = self.prompt[int(self.prompt[:1] == [bos]) :] + self.completion
        else:
            tokens = self.completion
        first = 0 if self.echo else len(self.prompt) - 1
        start = 0 if self.echo else len(prompt)
        found: dict[str, list[Any]] = {
            "tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []
        }  # fmt: skip
        before = ""
        for i, token in enumerate(tokens):
            if first + i not in self._of:
                break
            text = detokenize([token], prev_tokens=tokens[:i]).decode("utf-8", "ignore")
            if token != bos:
                logprob, best = self._of[first + i]
                before = detokenize(tokens[:i]).decode("utf-8", "ignore")
                top = {detokenize([t]).decode("utf-8", "ignore"): value for t, value in best}
                found["tokens"].append(text)
                found["text_offset"].append(start + len(before))
                found["token_logprobs"].append(logprob)
                found["top_logprobs"].append(top | {text: logprob})
        if self.echo and tokens:
            found["token_logprobs"][0] = found["top_logprobs"][0] = None
        return found
