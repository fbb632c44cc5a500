"""The committed sequence: its tokens, the cells that hold them, and how a prompt is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edge_tr.costs.running import StepCosts
from edge_tr.decode.lanes import LaneCache
from edge_tr.decode.topk import TopK
from edge_tr.drafts.draft import Drafter
from edge_tr.target import Batch, Float32, Int32, TargetModel

_MAX_PREFILL_LOGITS = 1 << 25
"""Most logits that one batch of a prompt may return (128 MiB)."""

_MARKED_TOKENS = 64
"""A shorter prompt is read again as fast as a mark is set."""
_BEHIND_MARK = 16
"""Tokens of a prompt behind the mark. The next prompt of a conversation often leaves out the last
few, with which a chat template begins the answer or its reasoning."""

MeasureBehind = Callable[[StepCosts, TargetModel, TopK, LaneCache, Int32, int], None]
"""Has the costs know what steps take behind the text that the cache holds; leaves no trace."""

RowSink = Callable[[int, Float32], None]
"""Takes the position of the first of some neighbouring tokens and their rows of logits."""


class Committed:
    """Tokens, the first of which the cache holds; the others are decoded with the next step.

    Parameters
    ----------
    target, batch, topk : the model, what it decodes, and the reader of its rows; whoever adds
        to the sequence uses the same ones.

    Attributes
    ----------
    tokens : int32[n_ctx]; begins with the sequence, prompt and answer.
    n : length of the sequence.
    n_kept : how much of it the caller has seen; what an error may not take back.
    lanes : the cells.
    last_row : float32[1, n_vocab], logits after the last token, and its place in the batch; known
        as long as nothing was decoded since a prompt was read.
    """

    def __init__(self, target: TargetModel, batch: Batch, topk: TopK) -> None:
        self.target = target
        self.batch = batch
        self.topk = topk
        self.lanes = LaneCache(target)
        self.tokens: Int32 = np.zeros(target.n_ctx, dtype=np.int32)
        self.n = 0
        self.n_kept = 0
        self.last_row: tuple[Float32, int] | None = None

    @property
    def n_past(self) -> int:
        """How many tokens the cache holds."""
        return self.lanes.n_past

    def append(self, emitted: list[int]) -> None:
        """Tokens that have no cells yet."""
        self.tokens[self.n : self.n + len(emitted)] = emitted
        self.n += len(emitted)

    def recover(self, n_past: int) -> None:
        """After an error: keep no cell beyond the first ``n_past``, and no token beyond those
        that the caller has seen or that have one."""
        self.last_row = None
        self.lanes.recover(min(n_past, self.lanes.n_past))
        self.n = max(self.n_kept, self.lanes.n_past)

    def adopt(self, n: int, n_text: int = 0) -> None:
        """Take the cells that something else wrote on lane 0 for the first ``n`` tokens of a text
        of ``n_text``, or of no more."""
        self.last_row = None
        self.lanes.adopt(n)
        self.n = self.n_kept = max(n, n_text)

    def hold(self, n: int) -> None:
        """Make the cache hold the first ``n`` tokens on lane 0, and nothing else."""
        self.lanes.claim()
        if self.lanes.n_past > n:
            self.last_row = None
            self.lanes.rewind(n)
        while self.lanes.n_past < n:
            self.last_row = None
            n_past = self.lanes.n_past
            chunk = self.tokens[n_past : min(n, n_past + self.target.n_batch)]
            self.batch.set_chain(chunk, n_past, want_rows=1)
            self.target.decode(self.batch)
            self.lanes.extend(len(chunk))
        self.lanes.release()

    def reuse(self, prompt: Int32) -> int:
        """Start from the cells that a prompt shares with the sequence so far; their number.

        At least the last token is to be read again, unless its row of logits is still there.
        """
        self.lanes.claim()
        n_same = min(len(prompt), self.n_past)
        differs = np.flatnonzero(prompt[:n_same] != self.tokens[:n_same])
        n_past = int(differs[0]) if len(differs) else n_same
        if n_past == len(prompt) == self.n_past and self.last_row is not None:
            self.n = self.n_kept = n_past
            return n_past
        self.last_row = None
        n_past = self.lanes.rewind(min(n_past, len(prompt) - 1))
        self.n = self.n_kept = 0
        self.tokens[: len(prompt)] = prompt
        return n_past

    def read(
        self,
        prompt: Int32,
        *,
        drafter: Drafter | None,
        rows: RowSink | None,
        check: Callable[[], None],
        before_last: Callable[[int], None],
    ) -> None:
        """Decode what ``reuse`` left of the prompt, a batch at a time.

        Parameters
        ----------
        drafter : learns from the rows of the prompt's end that it wants.
        rows : is called with the logits of every token that is read.
        check : raises where the user has cancelled; called before each batch.
        before_last : called with the number of cells before the last batch.
        """
        harvest = 0 if drafter is None else drafter.harvest
        most_rows = max(1, _MAX_PREFILL_LOGITS // self.target.n_vocab)
        most = self.target.n_batch if rows is None else min(self.target.n_batch, most_rows)
        mark_at = len(prompt) - _BEHIND_MARK
        if self.lanes.copies is None or len(prompt) < _MARKED_TOKENS:
            mark_at = 0
        while self.last_row is None:
            check()
            n_past = self.n_past
            end = min(n_past + most, mark_at if n_past < mark_at else len(prompt))
            chunk = prompt[n_past:end]
            n_after = len(prompt) - n_past - len(chunk)
            if n_after == 0:
                before_last(n_past)
            n_harvest = max(0, min(harvest - n_after, most_rows, len(chunk)))
            n_rows = len(chunk) if rows else max(n_harvest, int(n_after == 0))
            self.batch.set_chain(chunk, n_past, want_rows=n_rows)
            logits = self.target.decode(self.batch)
            self.lanes.extend(len(chunk))
            if end == mark_at:
                self.lanes.mark()
            if rows is not None:
                rows(n_past, logits)
            if drafter is not None and n_harvest > 0:
                ids, values = self.topk(logits[n_rows - n_harvest :])
                drafter.learn_prompt(chunk[len(chunk) - n_harvest :], ids, values)
            if n_after == 0:
                self.n = self.n_kept = len(prompt)
                self.last_row = logits[-1:], len(chunk)
