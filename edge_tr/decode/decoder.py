"""The decode loop: draft, verify in one call, accept, keep or redo, recycle.

What came before the loop, the prompt, is read in ``committed``; how an accepted path is followed
stands in ``verify``, what becomes of its cells in ``lanes``, and what is drafted and learned in the
drafter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from edge_tr.costs.running import StepCosts
from edge_tr.decode.committed import Committed, MeasureBehind, RowSink
from edge_tr.decode.plain import PlainSteps
from edge_tr.decode.sampling import Sampler
from edge_tr.decode.topk import TopK
from edge_tr.decode.verify import Step
from edge_tr.drafts.draft import Draft, Drafter
from edge_tr.errors import CancelledError, ConfigError, DecodeError, PromptTooLongError
from edge_tr.stats import Stats
from edge_tr.target import Batch, Int32, TargetModel, widest_step

_IDLE_STEPS = 6
"""Steps in a row without a draft after which a drafter is left alone for ``n_rests`` steps."""

_WORTH_MEASURING = 32
"""Tokens of an answer from which on it is worth to measure steps behind a long prompt."""


@dataclass(frozen=True)
class _Asked:
    """What ``generate`` was asked for, and the generation's own statistics."""

    sampler: Sampler | None
    stop_tokens: Collection[int]
    one_by_one: bool
    rows: RowSink | None
    stats: Stats


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
    ) -> None:
        if max_width is not None and max_width < 1:
            raise ConfigError(f"max_width {max_width} is not allowed; it must be 1 or more")
        if drafter is not None:
            _check_fit(drafter, target)
        self.target = target
        self.drafter = drafter
        self.stats = Stats()
        self.costs = costs or StepCosts()
        widest = widest_step(target) if drafter is not None else target.n_batch
        self.max_width = min(max_width or widest, widest)
        self._measure_behind = measure_behind
        self._draft = Draft(drafter.max_nodes if drafter else 0)
        self._batch = Batch(max(target.n_batch, self._draft.capacity + 1), target.n_lanes)
        self._topk = TopK(drafter.k if drafter else 1, n_threads)
        self._committed = Committed(target, self._batch, self._topk)
        n_rests = drafter.n_rests if drafter else 0
        self._plain = PlainSteps(target, self._batch, self._topk, drafter, n_rests + 1)
        self._n_idle = 0
        self._step: Step | None = None
        self._running: Stats | None = None
        self._cancelled = False

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
        asked = _Asked(sampler, stop_tokens, one_by_one, rows, self.stats)
        return self._run(tokens, budget, asked)

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
        self._keep_and_recycle()
        with self._recovering():
            self._committed.hold(n_tokens)

    def finish(self) -> None:
        """Learn from the step that a caller left after some of its tokens (``one_by_one``)."""
        with self._recovering():
            self._keep_and_recycle()
            self._plain.learn(self.stats)

    def adopt(self, n_tokens: int) -> None:
        """Take the cells that something else wrote on lane 0 for ``buffer``'s first
        ``n_tokens`` tokens; a generation that is running ends."""
        self._running = self._step = None
        self._committed.adopt(n_tokens)

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

    def _run(self, prompt: Int32, budget: int, asked: _Asked) -> Iterator[list[int]]:
        """Prefill, then the loop of decode steps; the tokens of each as they come."""
        if budget == 0:
            return
        stats = asked.stats
        self._check_running(stats)
        started = perf_counter()
        with self._recovering():
            self._prefill(prompt, stats, asked.rows, budget)
            if self.drafter is not None:
                self.drafter.begin(prompt, asked.sampler.temperature if asked.sampler else 0.0)
            emitted = self._first_token(asked)
        seconds = perf_counter() - started
        stats.prefill_s += seconds
        stats.total_s += seconds
        while True:
            stats.n_tokens += len(emitted)
            self._committed.n_kept = self._committed.n
            budget -= len(emitted)
            yield emitted
            if budget == 0 or emitted[-1] in asked.stop_tokens:
                self._plain.learn(stats)
                return
            self._check_running(stats)
            started = perf_counter()
            with self._recovering():
                emitted = self._next_tokens(budget, asked)
            stats.total_s += perf_counter() - started

    def _next_tokens(self, budget: int, asked: _Asked) -> list[int]:
        """One decode step: draft, verify, accept, keep or redo, recycle.

        A caller who takes tokens one by one (``one_by_one``) gets what is left of an open step
        first: the walk down its tree goes on where it stands.
        """
        if self._step is not None:
            more = self._accept(self._step, asked, once=True)
            emitted = self._step.emitted[-1:]
            if not more:
                self._keep_and_recycle()
            return emitted
        if self._may_rest():
            return self._plain_step(asked)
        asking_s = self._propose(budget, asked.stats)
        if self._draft.n == 1 and self._draft.n_front == 1:
            return self._plain_step(asked, asking_s)
        step = self._step = self._verify(budget, asked.stats, asking_s)
        more = self._accept(step, asked, once=asked.one_by_one)
        emitted = step.emitted.copy()
        if not more:
            self._keep_and_recycle()
        return emitted

    # --- prefill ----------------------------------------------------------------------------

    def _prefill(self, prompt: Int32, stats: Stats, rows: RowSink | None, budget: int) -> None:
        """Read what the cache does not hold yet; ``budget`` tokens are to be generated then."""
        self._keep_and_recycle()
        self._n_idle = 0
        self._plain.forget()
        n_reused = self._committed.reuse(prompt)
        if stats.n_tokens == 0:
            stats.n_reused = n_reused

        def measure(n_past: int) -> None:
            # A long prompt is far from what was measured, and pays for it where the answer is long.
            is_worth = self.drafter is not None and budget >= _WORTH_MEASURING
            if is_worth and self._measure_behind is not None and self.costs.is_far(n_past):
                cache = self._committed.lanes, self._committed.tokens
                width = self.max_width
                self._measure_behind(self.costs, self.target, self._topk, *cache, width)

        self._committed.read(
            prompt,
            drafter=self.drafter,
            rows=rows,
            check=self._check_cancelled,
            before_last=measure,
        )

    def _first_token(self, asked: _Asked) -> list[int]:
        """The token that needs no decode step: its row came with the prompt."""
        assert self._committed.last_row is not None
        logits, n_front = self._committed.last_row
        n_tokens = self._committed.n
        self._draft.reset(int(self.buffer[n_tokens - 1]), n_past=n_tokens - 1)
        self._draft.plan()
        started = perf_counter()
        ids, values = self._topk(logits)
        asked.stats.topk_s += perf_counter() - started
        step = self._step = Step(self._draft, logits, n_front, ids, values, 1, asked.stats)
        self._accept(step, asked, once=False)
        self._keep_and_recycle()
        return step.emitted

    # --- draft ------------------------------------------------------------------------------

    def _may_rest(self) -> bool:
        """Whether the next step is plain without asking the drafter, who found nothing lately."""
        if self._committed.n - self._committed.n_past != 1:
            return False  # tokens wait to be redone with the next tree
        if self.drafter is None:
            return True
        return self._n_idle >= _IDLE_STEPS and 0 < self._plain.n <= self.drafter.n_rests

    def _propose(self, budget: int, stats: Stats) -> float:
        """Ask the drafter for the next tree; seconds that it took."""
        self._plain.learn(stats)
        started = perf_counter()
        draft, n_past = self._draft, self._committed.n_past
        n_tokens = self._committed.n
        n_front = n_tokens - n_past
        draft.reset(int(self.buffer[n_tokens - 1]), n_past=n_past, n_front=n_front)
        room = min(self.max_width, self.target.n_ctx - n_past) - n_front
        if self.drafter is not None and room > 0 and budget > 1:
            n_most = min(room, draft.capacity)
            self.drafter.propose(draft, max_nodes=n_most, max_depth=budget - 1)
        self._n_idle = self._n_idle + 1 if draft.n == 1 else 0
        asking_s = perf_counter() - started
        stats.draft_s += asking_s
        return asking_s

    def _plain_step(self, asked: _Asked, asking_s: float | None = None) -> list[int]:
        """A step of one token. Its cost is noted where the drafter was asked, since only those
        steps are compared with drafted ones."""
        self._check_cancelled()
        committed = self._committed
        committed.last_row = None
        n_past = committed.n_past
        root = int(self.buffer[n_past])
        token, seconds = self._plain.step(root, n_past, asked.sampler, asked.stats)
        committed.lanes.extend(1)
        committed.append([token])
        if asking_s is not None:
            self.costs.observe(1, n_past, seconds + asking_s, 1)
        return [token]

    # --- verify -----------------------------------------------------------------------------

    def _verify(self, budget: int, stats: Stats, asking_s: float) -> Step:
        """Decode front and tree in one batch; the walk stands at the root."""
        self._check_cancelled()
        draft, committed = self._draft, self._committed
        committed.last_row = None
        t0 = perf_counter()
        draft.plan()
        t1 = perf_counter()
        committed.lanes.sync(draft.n_lanes)
        draft.fill(self._batch, committed.tokens[draft.n_past : committed.n])
        t2 = perf_counter()
        logits = self.target.decode(self._batch)
        t3 = perf_counter()
        ids, values = self._topk(logits)
        t4 = perf_counter()
        stats.n_steps += 1
        stats.n_plain_steps += draft.n == 1
        stats.n_drafted += draft.n - 1
        stats.n_redone += draft.n_front - 1
        stats.draft_s += t1 - t0
        stats.lanes_s += t2 - t1
        stats.decode_s += t3 - t2
        stats.topk_s += t4 - t3
        step = Step(draft, logits, draft.n_front, ids, values, budget, stats, draft.n_past)
        step.seconds = t4 - t0 + asking_s
        return step

    # --- accept -----------------------------------------------------------------------------

    def _accept(self, step: Step, asked: _Asked, *, once: bool) -> bool:
        """Choose the next tokens, only one if ``once``; whether more can follow in this step.

        Each token is what plain decoding would have chosen: the draft only saves the calls.
        """
        started = perf_counter()
        n_known = len(step.emitted)
        if asked.sampler is None:
            step.follow_best(asked.stop_tokens)
            more = False
        else:
            more = step.draw(asked.sampler, asked.stop_tokens)
            while more and not once:
                more = step.draw(asked.sampler, asked.stop_tokens)
        self._committed.append(step.emitted[n_known:])
        seconds = perf_counter() - started
        step.seconds += seconds
        step.stats.sample_s += seconds
        step.stats.n_accepted += len(step.emitted) - n_known - 1 + more
        return more

    # --- keep or redo, recycle --------------------------------------------------------------

    def _keep_and_recycle(self) -> None:
        """Close the open step: keep the cells that are worth it, learn from every node.

        Accepted tokens whose cells are not kept are decoded again at the front of the next batch.
        A step that was left without a token leaves its front.
        """
        step, draft = self._step, self._draft
        if step is None:
            return
        self._step = None
        stats, accepted = step.stats, step.accepted
        is_decoded = step.n_past >= 0  # the row of a prompt's last token has its cell already
        t0 = perf_counter()
        if is_decoded:
            token_s = self.costs.token_s() if draft.n > 1 else 0.0
            self._committed.lanes.commit(step.n_front, draft, accepted, token_s)
        t1 = perf_counter()
        if self.drafter is not None and step.emitted:
            self.drafter.learn(draft, step.ids, step.values, accepted, step.emitted)
        t2 = perf_counter()
        stats.lanes_s += t1 - t0
        stats.recycle_s += t2 - t1
        if not is_decoded:
            return
        if draft.n > 1:
            stats.count_depths(int(draft.depth[: draft.n].max()), len(accepted))
        seconds = step.seconds + t2 - t0
        self.costs.observe(self._batch.n, step.n_past, seconds, len(step.emitted))

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
            self._step = None
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
