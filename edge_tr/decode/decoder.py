"""One generation after another: the prompt is read, then decode steps follow.

How a prompt is read stands in ``committed``, what a step does in ``step_loop``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from edge_tr.costs.running import StepCosts
from edge_tr.decode.committed import Committed, MeasureBehind, RowSink
from edge_tr.decode.lanes import StateCopies
from edge_tr.decode.sampling import Sampler
from edge_tr.decode.step_loop import Asked, StepLoop
from edge_tr.decode.topk import TopK
from edge_tr.drafts.draft import Drafter
from edge_tr.errors import CancelledError, ConfigError, DecodeError, PromptTooLongError
from edge_tr.stats import Stats
from edge_tr.target import Batch, Int32, TargetModel, widest_step

_WORTH_MEASURING = 32
"""Tokens of an answer from which on it is worth to measure steps behind a long prompt."""


class Decoder:
    """Generates tokens from a target model, drafted or plain; the tokens are the same.

    One generation runs at a time; a new one ends the one before. The committed sequence stays
    in the KV cache, and the next prompt reuses the prefix it shares with it.

    Parameters
    ----------
    target : the model; decoders that use it in turn each start from an empty cache.
    drafter : proposes a tree for each step; None decodes plainly.
    costs : takes note of what each step costs; a drafter that weighs costs shares it.
    max_width : most tokens in one decode step; the widths that the width probe found bit-equal
        make the text exact. None allows what the target's batch allows. May be set later.
    n_threads : threads for the top-k of large vocabularies.
    measure_behind : ``measuring.steps.extend_costs``, called before the last part of a prompt that
        is far longer than the contexts that ``costs`` were measured at; None leaves it out.
    is_ready : whether the drafter can be used yet, asked until it can; steps before are plain.

    Attributes
    ----------
    stats : counts and seconds of the last generation.

    Raises
    ------
    ConfigError : the drafter does not fit the target: its tree has more leaves than there are
        lanes, it was made for another vocabulary, or the target cannot rewind; or a value is
        out of range.
    """

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter | None = None,
        *,
        costs: StepCosts | None = None,
        max_width: int | None = None,
        n_threads: int = 1,
        measure_behind: MeasureBehind | None = None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        if max_width is not None and max_width < 1:
            raise ConfigError(f"max_width {max_width} is not allowed; it must be 1 or more")
        if drafter is not None:
            _check_fit(drafter, target)
        self.target = target
        self.drafter = drafter
        self.stats = Stats()
        self._costs = costs or StepCosts()
        widest = widest_step(target) if drafter is not None else target.n_batch
        self.max_width = min(max_width or widest, widest)
        self._measure_behind = measure_behind
        n_nodes = drafter.max_nodes if drafter else 0
        batch = Batch(max(target.n_batch, n_nodes + 1), target.n_lanes)
        topk = TopK(drafter.k if drafter else 1, n_threads)
        self._committed = Committed(target, batch, topk)
        self._steps = StepLoop(
            self._committed, drafter, self._costs, self._check_cancelled, is_ready
        )
        self._running: Stats | None = None
        self._cancelled = False

    @property
    def costs(self) -> StepCosts:
        """What each step adds to."""
        return self._costs

    @property
    def buffer(self) -> Int32:
        """int32[n_ctx]; begins with the committed sequence, prompt and answer."""
        return self._committed.tokens

    @property
    def n_tokens(self) -> int:
        """Length of the committed sequence."""
        return self._committed.n

    @property
    def n_past(self) -> int:
        """How many of its tokens the cache holds."""
        return self._committed.n_past

    @property
    def tokens(self) -> Int32:
        """int32[n], a copy of the committed sequence: prompt and answer."""
        return self.buffer[: self.n_tokens].copy()

    def mark_with(self, copies: StateCopies) -> None:
        """Keep a copy of a recurrent state near the end of each prompt: one that differs behind it
        is read from there on, as is one that follows an error. Drops the copy that there is."""
        self._committed.lanes.mark_with(copies)

    def cancel(self) -> None:
        """Make the generation that is running raise CancelledError soon; from any thread."""
        self._cancelled = True
        self.target.interrupt(True)

    def generate(
        self,
        prompt: Sequence[int] | Int32,
        *,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop_tokens: Collection[int] = frozenset(),
        one_by_one: bool = False,
        rows: RowSink | None = None,
        stats: Stats | None = None,
    ) -> Iterator[list[int]]:
        """Read the prompt and yield the tokens of each step, at least one a step.

        Parameters
        ----------
        prompt : token ids, at least one, fewer than the context has cells.
        max_tokens : most tokens to generate; None goes on until the context is full. Prompt
            and answer together never exceed the context.
        sampler : draws each token; None takes the most probable one (ties: the lowest id).
        stop_tokens : ids that end the text; the one met is yielded as the last token.
        one_by_one : yield each token of ``sampler`` alone, and draw the next one only when it is
            asked for. ``buffer`` then holds every token before it, as with plain decoding.
        rows : is called with the logits of the prompt's tokens that are read.
        stats : go on counting in these; None starts from nothing.

        Raises
        ------
        ConfigError, PromptTooLongError : at once, before anything is decoded.
        CancelledError, DecodeError : while iterating; the tokens yielded so far stay committed.
        """
        tokens = self.check_prompt(prompt, max_tokens=max_tokens)
        room = self.target.n_ctx - len(tokens)
        budget = room if max_tokens is None else min(max_tokens, room)
        self._begin(stats or Stats(n_prompt=len(tokens)))
        asked = Asked(sampler, stop_tokens, one_by_one, self.stats)
        return self._run(tokens, budget, asked, rows)

    def read(self, prompt: Sequence[int] | Int32, *, rows: RowSink | None = None) -> None:
        """Read a text and generate nothing; the last row of logits stays in the target.

        Raises
        ------
        ConfigError, PromptTooLongError, CancelledError, DecodeError : as ``generate``.
        """
        tokens = self.check_prompt(prompt, room=0)
        self._begin(Stats(n_prompt=len(tokens)))
        started = perf_counter()
        with self._recovering():
            self._prefill(tokens, self.stats, rows, budget=0)
        self.stats.prefill_s = self.stats.total_s = perf_counter() - started

    def hold(self, n_tokens: int) -> None:
        """Make the cache hold the first ``n_tokens`` tokens of ``buffer`` on lane 0, and nothing
        else; a generation that is running goes on afterwards."""
        self._steps.keep_and_recycle()
        with self._recovering():
            self._committed.hold(n_tokens)

    def finish(self) -> None:
        """Learn from the step that a caller left after some of its tokens (``one_by_one``)."""
        with self._recovering():
            self._steps.finish(self.stats)

    def adopt(self, n_tokens: int, n_text: int = 0) -> None:
        """Take the cells that something else wrote on lane 0 for ``buffer``'s first
        ``n_tokens`` tokens, of the ``n_text`` that the text has where it is longer; a generation
        that is running ends."""
        self._running = None
        self._steps.drop()
        self._committed.adopt(n_tokens, n_text)

    def check_prompt(
        self, prompt: Sequence[int] | Int32, *, max_tokens: int | None = None, room: int = 1
    ) -> Int32:
        """The prompt as int32[n], which leaves ``room`` tokens of the context for the answer.

        Raises
        ------
        ConfigError, PromptTooLongError : no answer of ``max_tokens`` can be made to it.
        """
        if max_tokens is not None and max_tokens < 0:
            raise ConfigError(f"max_tokens {max_tokens} is not allowed; it must be 0 or more")
        wide = np.asarray(prompt)
        if wide.ndim != 1 or len(wide) == 0:
            raise ConfigError("the prompt has no tokens; give a list of at least one token id")
        if wide.dtype.kind not in "iu":
            raise ConfigError("a prompt is a list of token ids; this one holds something else")
        wrong = wide[(wide < 0) | (wide >= self.target.n_vocab)]
        if len(wrong):
            raise ConfigError(
                f"token {wrong[0]} is not in the vocabulary (0 to {self.target.n_vocab - 1})"
            )
        if len(wide) > self.target.n_ctx - room:
            raise PromptTooLongError(
                f"the prompt has {len(wide)} tokens; a context of {self.target.n_ctx} holds at "
                f"most {self.target.n_ctx - 1} of them and one of the answer"
            )
        return wide.astype(np.int32)

    def _begin(self, stats: Stats) -> None:
        """End the generation before, and count in these from now on."""
        self.stats = self._running = stats
        self._cancelled = False
        self.target.interrupt(False)

    def _run(
        self, prompt: Int32, budget: int, asked: Asked, rows: RowSink | None
    ) -> Iterator[list[int]]:
        """Prefill, then the loop of decode steps; the tokens of each as they come."""
        if budget == 0:
            return
        stats = asked.stats
        self._check_running(stats)
        started = perf_counter()
        with self._recovering():
            self._prefill(prompt, stats, rows, budget)
            emitted = self._steps.first(asked)
        seconds = perf_counter() - started
        stats.prefill_s += seconds
        stats.total_s += seconds
        while True:
            stats.n_tokens += len(emitted)
            self._committed.n_kept = self._committed.n
            budget -= len(emitted)
            yield emitted
            if budget == 0 or emitted[-1] in asked.stop_tokens:
                self._steps.finish(stats)
                return
            self._check_running(stats)
            started = perf_counter()
            with self._recovering():
                emitted = self._steps.next(budget, self.max_width, asked)
            stats.total_s += perf_counter() - started

    # --- prefill ----------------------------------------------------------------------------

    def _prefill(self, prompt: Int32, stats: Stats, rows: RowSink | None, budget: int) -> None:
        """Read what the cache does not hold yet; ``budget`` tokens are to be generated then."""
        self._steps.begin()
        self._costs.begin()
        n_reused = self._committed.reuse(prompt)
        if stats.n_tokens == 0:
            stats.n_reused = n_reused

        def measure(n_past: int) -> None:
            # A long prompt is far from what was measured, and pays for it where the answer is long.
            is_worth = self._steps.drafter is not None and budget >= _WORTH_MEASURING
            if is_worth and self._measure_behind is not None and self.costs.is_far(n_past):
                committed = self._committed
                cache = committed.topk, committed.lanes, committed.tokens
                self._measure_behind(self.costs, self.target, *cache, self.max_width)

        self._committed.read(
            prompt,
            drafter=self._steps.drafter,
            rows=rows,
            check=self._check_cancelled,
            before_last=measure,
        )

    # --- what may happen in between -----------------------------------------------------------

    def _check_running(self, stats: Stats) -> None:
        if self._running is not stats:
            raise DecodeError("another generation was started on the same object")

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise CancelledError("the generation was cancelled")

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """Whatever is raised inside, only cells of the committed sequence remain."""
        n_past = self._committed.n_past
        try:
            yield
        except BaseException:
            self._steps.drop()
            self._committed.recover(n_past)
            raise


def _check_fit(drafter: Drafter, target: TargetModel) -> None:
    if not target.can_rewind and target.n_rewind == 0:
        raise ConfigError("the target cannot take rejected tokens back, so nothing can be drafted")
    if drafter.n_vocab != target.n_vocab:
        raise ConfigError(
            f"the drafter was made for a vocabulary of {drafter.n_vocab} tokens; the target has "
            f"{target.n_vocab}"
        )
    if drafter.max_lanes > target.n_lanes:
        raise ConfigError(
            f"the draft tree needs {drafter.max_lanes} lanes, one for each leaf; the context "
            f"has {target.n_lanes}"
        )
