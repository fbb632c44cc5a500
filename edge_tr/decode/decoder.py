"""The decode loop: draft, verify in one call, accept, keep or redo, recycle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from edge_tr.costs.running import StepCosts
from edge_tr.decode.lanes import LaneCache
from edge_tr.decode.plain import PlainSteps
from edge_tr.decode.sampling import Sampler
from edge_tr.decode.topk import TopK
from edge_tr.decode.verify import Step
from edge_tr.drafts.draft import Draft, Drafter
from edge_tr.errors import CancelledError, ConfigError, DecodeError, PromptTooLongError
from edge_tr.stats import Stats
from edge_tr.target import Batch, Float32, Int32, TargetModel

_MAX_PREFILL_LOGITS = 1 << 25
"""Most logits that one batch of a prompt may return (128 MiB)."""

_IDLE_STEPS = 6
"""Steps in a row without a draft after which a drafter is left alone for ``n_rests`` steps."""

_WORTH_MEASURING = 32
"""Tokens of an answer from which on it is worth to measure steps behind a long prompt."""

MeasureBehind = Callable[[StepCosts, TargetModel, TopK, LaneCache, Int32, int], None]
"""Has the costs know what steps take behind the text that the cache holds; leaves no trace."""

RowSink = Callable[[int, Float32], None]
"""Takes the position of the first of some neighbouring tokens and their rows of logits."""


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
    buffer : int32[n_ctx]; begins with the committed sequence, prompt and answer.
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
        self.max_width = min(max_width or target.n_batch, target.n_batch)
        self._draft = Draft(drafter.max_nodes if drafter else 0)
        n_nodes = self._draft.capacity
        self._batch = Batch(max(target.n_batch, n_nodes + 1), target.n_lanes)
        self._topk = TopK(drafter.k if drafter else 1, n_threads)
        self._lanes = LaneCache(target)
        self._measure_behind = measure_behind
        self.costs = costs or StepCosts()
        self.buffer = self._tokens = np.zeros(target.n_ctx, dtype=np.int32)
        self._n_tokens = 0
        self._n_kept = 0
        self._step: Step | None = None
        self._prefilled: tuple[Float32, int] | None = None
        self._n_rests = drafter.n_rests if drafter else 0
        self._plain = PlainSteps(target, self._batch, self._topk, drafter, self._n_rests + 1)
        self._n_idle = 0
        self._asking_s = 0.0
        self._running: Stats | None = None
        self._cancelled = False

    @property
    def n_tokens(self) -> int:
        """Length of the committed sequence."""
        return self._n_tokens

    @property
    def n_past(self) -> int:
        """How many of its tokens the cache holds."""
        return self._lanes.n_past

    @property
    def tokens(self) -> Int32:
        """int32[n], a copy of the committed sequence: prompt and answer."""
        return self._tokens[: self._n_tokens].copy()

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
        self.stats = self._running = stats or Stats(n_prompt=len(tokens))
        self._cancelled = False
        self.target.interrupt(False)
        return self._run(self.stats, tokens, budget, sampler, stop_tokens, one_by_one, rows)

    def read(self, prompt: Sequence[int] | Int32, *, rows: RowSink | None = None) -> None:
        """Read a text and generate nothing; the last row of logits stays in the target.

        Raises
        ------
        ConfigError, PromptTooLongError, CancelledError, DecodeError : as ``generate``.
        """
        tokens = self.check_prompt(prompt, room=0)
        self.stats = self._running = Stats(n_prompt=len(tokens))
        self._cancelled = False
        self.target.interrupt(False)
        started = perf_counter()
        with self._recovering():
            self._prefill(tokens, self.stats, rows)
        self.stats.prefill_s = self.stats.total_s = perf_counter() - started

    def hold(self, n_tokens: int) -> None:
        """Make the cache hold the first ``n_tokens`` tokens of ``buffer`` on lane 0, and nothing
        else; a generation that is running goes on afterwards."""
        self._close_step()
        self._lanes.claim()
        if self._lanes.n_past > n_tokens:
            self._prefilled = None
            self._lanes.rewind(n_tokens)
        with self._recovering():
            while self._lanes.n_past < n_tokens:
                self._prefilled = None
                n_past = self._lanes.n_past
                chunk = self._tokens[n_past : min(n_tokens, n_past + self.target.n_batch)]
                self._batch.set_chain(chunk, n_past, want_rows=1)
                self.target.decode(self._batch)
                self._lanes.extend(len(chunk))
        self._lanes.release()

    def finish(self) -> None:
        """Learn from the step that a caller left after some of its tokens (``one_by_one``)."""
        with self._recovering():
            self._close_step()
            self._plain.learn(self.stats)

    def adopt(self, n_tokens: int) -> None:
        """Take the cells that something else wrote on lane 0 for ``buffer``'s first
        ``n_tokens`` tokens; a generation that is running ends."""
        self._running = self._step = self._prefilled = None
        self._lanes.adopt(n_tokens)
        self._n_tokens = self._n_kept = n_tokens

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

    def _run(
        self,
        stats: Stats,
        prompt: Int32,
        budget: int,
        sampler: Sampler | None,
        stop_tokens: Collection[int],
        one_by_one: bool,
        rows: RowSink | None,
    ) -> Iterator[list[int]]:
        if budget == 0:
            return
        self._check_running(stats)
        started = perf_counter()
        with self._recovering():
            self._prefill(prompt, stats, rows, budget)
            if self.drafter is not None:
                self.drafter.begin(prompt)
            step = self._open_prefilled(stats)
            self._walk(step, sampler, stop_tokens, once=False)
            self._close_step()
        emitted = step.emitted
        seconds = perf_counter() - started
        stats.prefill_s += seconds
        stats.total_s += seconds
        while True:
            stats.n_tokens += len(emitted)
            self._n_kept = self._n_tokens
            budget -= len(emitted)
            yield emitted
            if budget == 0 or emitted[-1] in stop_tokens:
                self._plain.learn(stats)
                return
            self._check_running(stats)
            started = perf_counter()
            with self._recovering():
                if self._step is not None:
                    more = self._walk(step, sampler, stop_tokens, once=True)
                    emitted = step.emitted[-1:]
                elif self._may_rest() or not self._propose(budget, stats):
                    emitted, more = self._plain_step(sampler, stats), False
                    self._append(emitted)
                else:
                    step = self._open_step(budget, stats)
                    more = self._walk(step, sampler, stop_tokens, once=one_by_one)
                    emitted = step.emitted.copy()
                if not more:
                    self._close_step()
            stats.total_s += perf_counter() - started

    def _check_running(self, stats: Stats) -> None:
        if self._running is not stats:
            raise DecodeError("another generation was started on the same object")

    def _append(self, emitted: list[int]) -> None:
        self._tokens[self._n_tokens : self._n_tokens + len(emitted)] = emitted
        self._n_tokens += len(emitted)

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """Whatever is raised inside, only cells of the committed sequence remain."""
        n_past = self._lanes.n_past
        try:
            yield
        except BaseException:
            self._step = self._prefilled = None
            self._lanes.recover(min(n_past, self._lanes.n_past))
            self._n_tokens = max(self._n_kept, self._lanes.n_past)
            raise

    def _prefill(self, prompt: Int32, stats: Stats, rows: RowSink | None, budget: int = 0) -> None:
        """Read what the cache does not hold yet, at least the last token; ``budget`` tokens are
        to be generated then."""
        self._close_step()
        self._lanes.claim()
        self._n_idle = 0
        self._plain.forget()
        n_past = self._n_same(prompt)
        whole = n_past == len(prompt) == self._lanes.n_past and self._prefilled is not None
        if not whole:
            n_past = self._lanes.rewind(min(n_past, len(prompt) - 1))
        if stats.n_tokens == 0:
            stats.n_reused = n_past
        if whole:  # its last row is still there
            self._n_tokens = self._n_kept = n_past
            return
        self._prefilled = None
        self._n_tokens = self._n_kept = 0
        self._tokens[: len(prompt)] = prompt
        logits, n_front = self._read_chunks(prompt, n_past, rows, budget)
        self._n_tokens = self._n_kept = len(prompt)
        self._prefilled = logits[-1:], n_front

    def _n_same(self, prompt: Int32) -> int:
        """How many tokens of the prompt the cache holds."""
        n = min(len(prompt), self._lanes.n_past)
        differs = np.flatnonzero(prompt[:n] != self._tokens[:n])
        return int(differs[0]) if len(differs) else n

    def _read_chunks(
        self, prompt: Int32, n_past: int, rows: RowSink | None, budget: int
    ) -> tuple[Float32, int]:
        """Decode the prompt from ``n_past`` on; logits and length of the last chunk."""
        harvest = 0 if self.drafter is None else self.drafter.harvest
        most_rows = max(1, _MAX_PREFILL_LOGITS // self.target.n_vocab)
        most = self.target.n_batch if rows is None else min(self.target.n_batch, most_rows)
        while True:
            if self._cancelled:
                raise CancelledError("the generation was cancelled")
            chunk = prompt[n_past : n_past + most]
            n_after = len(prompt) - n_past - len(chunk)
            measure = self._measure_behind if self.drafter and budget >= _WORTH_MEASURING else None
            if n_after == 0 and measure is not None and self.costs.is_far(n_past):
                cache = self._lanes, self._tokens
                measure(self.costs, self.target, self._topk, *cache, self.max_width)
            n_harvest = max(0, min(harvest - n_after, most_rows, len(chunk)))
            n_rows = len(chunk) if rows else max(n_harvest, int(n_after == 0))
            self._batch.set_chain(chunk, n_past, want_rows=n_rows)
            logits = self.target.decode(self._batch)
            self._lanes.extend(len(chunk))
            if rows is not None:
                rows(n_past, logits)
            if self.drafter is not None and n_harvest > 0:
                ids, values = self._topk(logits[n_rows - n_harvest :])
                self.drafter.learn_prompt(chunk[len(chunk) - n_harvest :], ids, values)
            n_past += len(chunk)
            if n_after == 0:
                return logits, len(chunk)

    def _open_prefilled(self, stats: Stats) -> Step:
        """The step of one token that needs no decode: its row came with the prompt."""
        assert self._prefilled is not None
        logits, n_front = self._prefilled
        draft, n_tokens = self._draft, self._n_tokens
        draft.reset(int(self._tokens[n_tokens - 1]), n_past=n_tokens - 1)
        draft.plan()
        started = perf_counter()
        ids, values = self._topk(logits)
        stats.topk_s += perf_counter() - started
        self._step = Step(draft, logits, n_front, ids, values, 1, stats)
        return self._step

    def _may_rest(self) -> bool:
        """Whether the next step is plain without asking the drafter."""
        if self._n_tokens - self._lanes.n_past != 1:
            return False
        return self.drafter is None or (
            self._n_idle >= _IDLE_STEPS and 0 < self._plain.n <= self._n_rests
        )

    def _propose(self, budget: int, stats: Stats) -> bool:
        """Ask the drafter; whether the next step is more than one token."""
        self._plain.learn(stats)
        started = perf_counter()
        draft, n_past = self._draft, self._lanes.n_past
        n_front = self._n_tokens - n_past
        draft.reset(int(self._tokens[self._n_tokens - 1]), n_past=n_past, n_front=n_front)
        room = min(self.max_width, self.target.n_ctx - n_past) - n_front
        if self.drafter is not None and room > 0 and budget > 1:
            n_most = min(room, draft.capacity)
            self.drafter.propose(draft, max_nodes=n_most, max_depth=budget - 1)
        self._n_idle = self._n_idle + 1 if draft.n == 1 else 0
        self._asking_s = perf_counter() - started
        stats.draft_s += self._asking_s
        return draft.n > 1 or n_front > 1

    def _plain_step(self, sampler: Sampler | None, stats: Stats) -> list[int]:
        if self._cancelled:
            raise CancelledError("the generation was cancelled")
        self._prefilled = None
        n_past = self._lanes.n_past
        token, seconds = self._plain.step(int(self._tokens[n_past]), n_past, sampler, stats)
        self._lanes.extend(1)
        if self._asking_s:
            self.costs.observe(1, n_past, seconds + self._asking_s, 1)
            self._asking_s = 0.0
        return [token]

    def _open_step(self, budget: int, stats: Stats) -> Step:
        """Decode what was proposed; the walk stands at the root."""
        if self._cancelled:
            raise CancelledError("the generation was cancelled")
        self._prefilled = None
        draft, lanes = self._draft, self._lanes
        n_past, n_front = draft.n_past, draft.n_front
        t0 = perf_counter()
        draft.plan()
        t1 = perf_counter()
        lanes.sync(draft.n_lanes)
        draft.fill(self._batch, self._tokens[n_past : self._n_tokens])
        t2 = perf_counter()
        logits = self.target.decode(self._batch)
        t3 = perf_counter()
        ids, values = self._topk(logits)
        t4 = perf_counter()
        stats.n_steps += 1
        stats.n_plain_steps += draft.n == 1
        stats.n_drafted += draft.n - 1
        stats.n_redone += n_front - 1
        stats.draft_s += t1 - t0
        stats.lanes_s += t2 - t1
        stats.decode_s += t3 - t2
        stats.topk_s += t4 - t3
        seconds = t4 - t0 + self._asking_s
        self._asking_s = 0.0
        self._step = Step(
            draft, logits, n_front, ids, values, budget, stats, n_past, seconds=seconds
        )
        return self._step

    def _walk(
        self, step: Step, sampler: Sampler | None, stop_tokens: Collection[int], *, once: bool
    ) -> bool:
        """Choose the next tokens, only one if ``once``; whether more can follow in this step."""
        started = perf_counter()
        n_known = len(step.emitted)
        if sampler is None:
            step.follow_best(stop_tokens)
            more = False
        else:
            more = step.draw(sampler, stop_tokens)
            while more and not once:
                more = step.draw(sampler, stop_tokens)
        self._append(step.emitted[n_known:])
        seconds = perf_counter() - started
        step.seconds += seconds
        step.stats.sample_s += seconds
        step.stats.n_accepted += len(step.emitted) - n_known - 1 + more
        return more

    def _close_step(self) -> None:
        """Commit and recycle what the walk gave; a step without a token leaves its front."""
        step, draft = self._step, self._draft
        if step is None:
            return
        self._step = None
        stats, accepted = step.stats, step.accepted
        t0 = perf_counter()
        if step.n_past >= 0:
            token_s = self.costs.token_s() if draft.n > 1 else 0.0
            self._lanes.commit(step.n_front, draft, accepted, token_s)
        t1 = perf_counter()
        if self.drafter is not None and step.emitted:
            self.drafter.learn(draft, step.ids, step.values, accepted, step.emitted)
        t2 = perf_counter()
        stats.lanes_s += t1 - t0
        stats.recycle_s += t2 - t1
        if step.n_past < 0:
            return
        if draft.n > 1:
            stats.count_depths(int(draft.depth[: draft.n].max()), len(accepted))
        seconds = step.seconds + t2 - t0
        self.costs.observe(self._batch.n, step.n_past, seconds, len(step.emitted))


def _check_fit(drafter: Drafter, target: TargetModel) -> None:
    if not target.can_rewind:
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
