"""The decode loop: draft, verify in one call, accept, keep or redo, recycle."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from .cost import StepCosts
from .draft import Draft, Drafter
from .errors import CancelledError, ConfigError, DecodeError, PromptTooLongError
from .kernels import tree as kernels
from .lanes import LaneCache
from .plain import PlainRun
from .sampling import Sampler
from .stats import Stats
from .target import Batch, Float32, Int32, TargetModel
from .topk import TopK

_MAX_PREFILL_LOGITS = 1 << 25
"""Most logits that one batch of a prompt may return (128 MiB)."""

_IDLE_STEPS = 6
"""Steps in a row without a draft after which a drafter is left alone for ``n_rests`` steps."""

_NO_LOGIT = "the model returned a row without a single finite logit"


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
        make the text exact. None allows what the target's batch allows.
    n_threads : threads for the top-k of large vocabularies.

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
    ) -> None:
        if max_width is not None and max_width < 1:
            raise ConfigError(f"max_width {max_width} is not allowed; it must be 1 or more")
        if drafter is not None:
            _check_fit(drafter, target)
        self.target = target
        self.drafter = drafter
        self.stats = Stats()
        self._max_width = min(max_width or target.n_batch, target.n_batch)
        self._draft = Draft(drafter.max_nodes if drafter else 0)
        n_nodes = self._draft.capacity
        self._batch = Batch(max(target.n_batch, n_nodes + 1), target.n_lanes)
        self._topk = TopK(drafter.k if drafter else 1, n_threads)
        self._lanes = LaneCache(target)
        self.costs = costs or StepCosts()
        self._tokens: Int32 = np.zeros(target.n_ctx, dtype=np.int32)
        self._n_tokens = 0
        self._accepted: Int32 = np.zeros(n_nodes + 1, dtype=np.int32)
        self._n_rests = drafter.n_rests if drafter else 0
        self._plain = PlainRun(drafter, self._n_rests) if drafter else None
        self._n_idle = 0
        self._running: Stats | None = None
        self._cancelled = False

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
    ) -> Iterator[list[int]]:
        """Read the prompt and yield the tokens of each step, at least one a step.

        Parameters
        ----------
        prompt : token ids, at least one, fewer than the context has cells.
        max_tokens : most tokens to generate; None goes on until the context is full. Prompt
            and answer together never exceed the context.
        sampler : draws each token; None takes the most probable one (ties: the lowest id).
        stop_tokens : ids that end the text; the one met is yielded as the last token.

        Raises
        ------
        ConfigError, PromptTooLongError : at once, before anything is decoded.
        CancelledError, DecodeError : while iterating; the tokens yielded so far stay committed.
        """
        tokens = self._check_prompt(prompt)
        if max_tokens is not None and max_tokens < 0:
            raise ConfigError(f"max_tokens {max_tokens} is not allowed; it must be 0 or more")
        room = self.target.n_ctx - len(tokens)
        budget = room if max_tokens is None else min(max_tokens, room)
        self.stats = self._running = Stats(n_prompt=len(tokens))
        self._cancelled = False
        self.target.interrupt(False)
        return self._run(self.stats, tokens, budget, sampler, stop_tokens)

    def _check_prompt(self, prompt: Sequence[int] | Int32) -> Int32:
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
        if len(wide) >= self.target.n_ctx:
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
    ) -> Iterator[list[int]]:
        if budget == 0:
            return
        self._check_running(stats)
        started = perf_counter()
        with self._recovering():
            logits, n_front = self._prefill(prompt, stats)
            if self.drafter is not None:
                self.drafter.begin(prompt)
            emitted = self._verify(logits, n_front, sampler, stop_tokens, 1, stats)
            self._append(emitted)
        stats.prefill_s = stats.total_s = perf_counter() - started
        while True:
            stats.n_tokens += len(emitted)
            budget -= len(emitted)
            yield emitted
            if budget == 0 or emitted[-1] in stop_tokens:
                self._learn_plain_run()
                return
            self._check_running(stats)
            started = perf_counter()
            with self._recovering():
                if self._may_rest():
                    emitted = self._plain_step(sampler, stats)
                else:
                    emitted = self._step(sampler, stop_tokens, budget, stats)
                self._append(emitted)
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
            self._lanes.recover(min(n_past, self._lanes.n_past))
            self._n_tokens = max(self._n_tokens, self._lanes.n_past)
            raise

    def _prefill(self, prompt: Int32, stats: Stats) -> tuple[Float32, int]:
        """Read what the cache does not hold yet; logits of the last token and its chunk."""
        self._lanes.claim()
        n_same = min(len(prompt) - 1, self._lanes.n_past)
        differs = np.flatnonzero(prompt[:n_same] != self._tokens[:n_same])
        n_past = int(differs[0]) if len(differs) else n_same
        self._n_tokens = self._n_idle = 0
        if self._plain is not None:
            self._plain.forget()
        n_past = self._lanes.rewind(n_past)
        self._tokens[: len(prompt)] = prompt
        stats.n_reused = n_past
        harvest = 0 if self.drafter is None else self.drafter.harvest
        most_rows = max(1, _MAX_PREFILL_LOGITS // self.target.n_vocab)
        while True:
            if self._cancelled:
                raise CancelledError("the generation was cancelled")
            chunk = prompt[n_past : n_past + self.target.n_batch]
            last = n_past + len(chunk) == len(prompt)
            n_after = len(prompt) - n_past - len(chunk)
            n_harvest = max(0, min(harvest - n_after, most_rows, len(chunk)))
            n_rows = max(n_harvest, int(last))
            self._batch.set_chain(chunk, n_past, want_rows=n_rows)
            logits = self.target.decode(self._batch)
            self._lanes.extend(len(chunk))
            if self.drafter is not None and n_harvest > 0:
                self.drafter.learn_prompt(chunk[len(chunk) - n_rows :], *self._topk(logits))
            n_past += len(chunk)
            if last:
                break
        self._n_tokens = len(prompt)
        self._draft.reset(int(prompt[-1]), n_past=n_past - 1)
        self._draft.plan()
        return logits[-1:], len(chunk)

    def _may_rest(self) -> bool:
        """Whether the next step is plain without asking the drafter."""
        if self._n_tokens - self._lanes.n_past != 1:
            return False
        return self._plain is None or (
            self._n_idle >= _IDLE_STEPS and self._plain.n < self._n_rests
        )

    def _learn_plain_run(self) -> None:
        if self._plain is not None:
            self._plain.learn()

    def _plain_step(self, sampler: Sampler | None, stats: Stats) -> list[int]:
        """One decode step of one token, with as little around it as can be."""
        if self._cancelled:
            raise CancelledError("the generation was cancelled")
        n_past = self._lanes.n_past
        root = int(self._tokens[n_past])
        self._batch.set_one(root, n_past)
        t0 = perf_counter()
        logits = self.target.decode(self._batch)
        t1 = perf_counter()
        ids, values = self._topk(logits)
        token = int(ids[0, 0]) if sampler is None else sampler.sample(0, logits[0])
        if token < 0:
            raise DecodeError(_NO_LOGIT)
        self._lanes.extend(1)
        if self._plain is not None:
            self._plain.add(root, ids[0], values[0], token)
        stats.n_steps += 1
        stats.n_plain_steps += 1
        stats.decode_s += t1 - t0
        stats.topk_s += perf_counter() - t1
        return [token]

    def _step(
        self, sampler: Sampler | None, stop_tokens: Collection[int], budget: int, stats: Stats
    ) -> list[int]:
        """One decode step: the tokens it emits, 1 to ``budget`` of them."""
        if self._cancelled:
            raise CancelledError("the generation was cancelled")
        self._learn_plain_run()
        draft, lanes = self._draft, self._lanes
        n_past = lanes.n_past
        n_front = self._n_tokens - n_past
        t0 = perf_counter()
        draft.reset(int(self._tokens[self._n_tokens - 1]), n_past=n_past, n_front=n_front)
        room = min(self._max_width, self.target.n_ctx - n_past) - n_front
        if self.drafter is not None and room > 0 and budget > 1:
            n_most = min(room, draft.capacity)
            self.drafter.propose(draft, max_nodes=n_most, max_depth=budget - 1)
        draft.plan()
        self._n_idle = self._n_idle + 1 if draft.n == 1 else 0
        t1 = perf_counter()
        lanes.sync(draft.n_lanes)
        draft.fill(self._batch, self._tokens[n_past : self._n_tokens])
        t2 = perf_counter()
        logits = self.target.decode(self._batch)
        t3 = perf_counter()
        emitted = self._verify(logits, n_front, sampler, stop_tokens, budget, stats)
        stats.n_steps += 1
        stats.n_plain_steps += draft.n == 1
        stats.n_drafted += draft.n - 1
        stats.n_accepted += len(emitted) - 1
        stats.n_redone += n_front - 1
        stats.draft_s += t1 - t0
        stats.lanes_s += t2 - t1
        stats.decode_s += t3 - t2
        if draft.n > 1:
            stats.count_depths(int(draft.depth[: draft.n].max()), len(emitted) - 1)
        self.costs.observe(self._batch.n, n_past, perf_counter() - t0, len(emitted))
        return emitted

    def _verify(
        self,
        logits: Float32,
        n_front: int,
        sampler: Sampler | None,
        stop_tokens: Collection[int],
        budget: int,
        stats: Stats,
    ) -> list[int]:
        """Walk the tree of the batch just decoded, commit and recycle; the emitted tokens.

        ``n_front`` cells before the first node are new; prefill has committed them already and
        has no nodes.
        """
        draft = self._draft
        t0 = perf_counter()
        ids, values = self._topk(logits)
        t1 = perf_counter()
        if sampler is None:
            emitted, accepted = self._walk_greedy(ids, stop_tokens, budget)
        else:
            emitted, accepted = self._walk_sampled(logits, n_front, sampler, stop_tokens, budget)
        t2 = perf_counter()
        if self._n_tokens > self._lanes.n_past:
            token_s = self.costs.token_s() if draft.n > 1 else 0.0
            self._lanes.commit(n_front, draft, accepted, token_s)
        t3 = perf_counter()
        if self.drafter is not None:
            self.drafter.learn(draft, ids, values, accepted, emitted)
        stats.topk_s += t1 - t0
        stats.sample_s += t2 - t1
        stats.lanes_s += t3 - t2
        stats.recycle_s += perf_counter() - t3
        return emitted

    def _walk_greedy(
        self, ids: Int32, stop_tokens: Collection[int], budget: int
    ) -> tuple[list[int], Int32]:
        draft = self._draft
        if draft.n == 1:
            token = int(ids[0, 0])
            if token < 0:
                raise DecodeError(_NO_LOGIT)
            return [token], self._accepted[:0]
        n = int(
            kernels.walk_greedy(draft.token, draft.parent, draft.slot, draft.n, ids, self._accepted)
        )
        path = self._accepted[:n]
        emitted: list[int] = draft.token[path].tolist()
        emitted.append(int(ids[draft.slot[path[-1]] if n else 0, 0]))
        for i, token in enumerate(emitted[:budget]):
            if token in stop_tokens:
                budget = i + 1
                break
        if emitted[:budget][-1] < 0:
            raise DecodeError(_NO_LOGIT)
        return emitted[:budget], path[: budget - 1]

    def _walk_sampled(
        self,
        logits: Float32,
        n_front: int,
        sampler: Sampler,
        stop_tokens: Collection[int],
        budget: int,
    ) -> tuple[list[int], Int32]:
        draft = self._draft
        node, n = 0, 0
        emitted: list[int] = []
        while True:
            slot = int(draft.slot[node])
            token = int(sampler.sample(n_front - 1 + slot, logits[slot]))
            emitted.append(token)
            if token in stop_tokens or len(emitted) == budget:
                break
            node = int(kernels.find_child(draft.token, draft.parent, draft.n, node, token))
            if node < 0:
                break
            self._accepted[n] = node
            n += 1
        return emitted, self._accepted[:n]


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
