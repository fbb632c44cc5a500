"""Decode steps: draft, verify in one call, accept, keep or redo, recycle.

How an accepted path is followed stands in ``verify``, what becomes of its cells in ``lanes``, and
what is drafted and learned in the drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import perf_counter

from edge_tr.costs.running import StepCosts
from edge_tr.decode.committed import Committed
from edge_tr.decode.plain import PlainSteps
from edge_tr.decode.sampling import Sampler
from edge_tr.decode.verify import Step
from edge_tr.drafts.draft import Draft, Drafter
from edge_tr.stats import Stats

_IDLE_STEPS = 6
"""Steps in a row without a draft after which a drafter is left alone for ``n_rests`` steps."""


@dataclass(frozen=True)
class Asked:
    """How tokens are chosen, and the statistics of the generation that asks for them.

    ``sampler``, ``stop_tokens`` and ``one_by_one`` are those of ``Decoder.generate``.
    """

    sampler: Sampler | None
    stop_tokens: Collection[int]
    one_by_one: bool
    stats: Stats


class StepLoop:
    """Takes one decode step after another behind the committed sequence.

    Parameters
    ----------
    committed : the sequence; each step adds to it.
    drafter : proposes a tree for each step; None decodes plainly.
    costs : takes note of what each step costs.
    check : raises where the user has cancelled; called before each call of the target.
    is_ready : whether the drafter can be used yet; until then steps are plain.

    Attributes
    ----------
    drafter : the drafter of the text that is running; None while it cannot be used.
    """

    def __init__(
        self,
        committed: Committed,
        drafter: Drafter | None,
        costs: StepCosts,
        check: Callable[[], None],
        is_ready: Callable[[], bool],
    ) -> None:
        self._committed = committed
        self._own_drafter = drafter
        self.drafter: Drafter | None = None
        self._costs = costs
        self._check = check
        self._is_ready = is_ready
        self._draft = Draft(drafter.max_nodes if drafter else 0)
        self._plain = PlainSteps(committed, (drafter.n_rests if drafter else 0) + 1)
        self._n_idle = 0
        self._step: Step | None = None

    def begin(self) -> None:
        """Close what an earlier generation left; another text follows."""
        self.keep_and_recycle()
        self._plain.forget()
        self._n_idle = 0
        self.drafter = self._own_drafter if self._is_ready() else None

    def first(self, asked: Asked) -> list[int]:
        """The token that needs no decode step: its row came with the prompt."""
        committed = self._committed
        if self.drafter is not None:
            self._start_drafting(self.drafter, asked)
        assert committed.last_row is not None
        logits, n_front = committed.last_row
        self._draft.reset(int(committed.tokens[committed.n - 1]), n_past=committed.n - 1)
        self._draft.plan()
        started = perf_counter()
        ids, values = committed.topk(logits)
        asked.stats.topk_s += perf_counter() - started
        step = self._step = Step(self._draft, logits, n_front, ids, values, 1, asked.stats)
        self._accept(step, asked, once=False)
        self.keep_and_recycle()
        return step.emitted

    def next(self, budget: int, max_width: int, asked: Asked) -> list[int]:
        """One decode step of at most ``max_width`` tokens: draft, verify, accept, keep or redo,
        recycle. Its tokens, at most ``budget``.

        A caller who takes tokens one by one (``one_by_one``) gets what is left of an open step
        first: the walk down its tree goes on where it stands.
        """
        step = self._step
        if step is not None:
            more = self._accept(step, asked, once=True)
            emitted = step.emitted[-1:]
        else:
            if self.drafter is None and self._own_drafter is not None and self._is_ready():
                self._start_drafting(self._own_drafter, asked)
            if self._may_rest():
                is_waiting = self.drafter is not self._own_drafter
                return self._plain_step(asked, 0.0 if is_waiting else None)
            asking_s = self._propose(budget, max_width, asked.stats)
            if self._draft.n == 1 and self._draft.n_front == 1:
                return self._plain_step(asked, asking_s)
            step = self._step = self._verify(budget, asked.stats, asking_s)
            more = self._accept(step, asked, once=asked.one_by_one)
            emitted = step.emitted.copy()
        if not more:
            self.keep_and_recycle()
        return emitted

    def finish(self, stats: Stats) -> None:
        """No step follows: learn from what is open."""
        self.keep_and_recycle()
        self._plain.learn(self.drafter, stats)

    def drop(self) -> None:
        """Forget the open step, whose cells are gone."""
        self._step = None

    # --- draft ------------------------------------------------------------------------------

    def _start_drafting(self, drafter: Drafter, asked: Asked) -> None:
        """The drafter takes what is committed for its prompt."""
        committed = self._committed
        temperature = asked.sampler.temperature if asked.sampler else 0.0
        drafter.begin(committed.tokens[: committed.n].copy(), temperature)
        self.drafter = drafter

    def _may_rest(self) -> bool:
        """Whether the next step is plain without asking the drafter, who found nothing lately."""
        if self._committed.n - self._committed.n_past != 1:
            return False  # tokens wait to be redone with the next tree
        if self.drafter is None:
            return True
        return self._n_idle >= _IDLE_STEPS and 0 < self._plain.n <= self.drafter.n_rests

    def _propose(self, budget: int, max_width: int, stats: Stats) -> float:
        """Ask the drafter for the next tree; seconds that it took."""
        self._plain.learn(self.drafter, stats)
        started = perf_counter()
        draft, committed = self._draft, self._committed
        n_past = committed.n_past
        n_front = committed.n - n_past
        draft.reset(int(committed.tokens[committed.n - 1]), n_past=n_past, n_front=n_front)
        room = min(max_width, committed.target.n_ctx - n_past) - n_front
        if self.drafter is not None and room > 0 and budget > 1:
            n_most = min(room, draft.capacity)
            self.drafter.propose(draft, max_nodes=n_most, max_depth=budget - 1)
        self._n_idle = self._n_idle + 1 if draft.n == 1 else 0
        asking_s = perf_counter() - started
        stats.draft_s += asking_s
        return asking_s

    def _plain_step(self, asked: Asked, asking_s: float | None = None) -> list[int]:
        """A step of one token. Its cost is noted where the drafter was asked, since only those
        steps are compared with drafted ones, or cannot be asked yet."""
        self._check()
        n_past = self._committed.n_past
        token, seconds = self._plain.step(asked.sampler, asked.stats, keep=self.drafter is not None)
        if asking_s is not None:
            self._costs.observe(1, n_past, seconds + asking_s, 1)
        return [token]

    # --- verify -----------------------------------------------------------------------------

    def _verify(self, budget: int, stats: Stats, asking_s: float) -> Step:
        """Decode front and tree in one batch; the walk stands at the root."""
        self._check()
        draft, committed = self._draft, self._committed
        committed.last_row = None
        t0 = perf_counter()
        draft.plan()
        t1 = perf_counter()
        committed.lanes.sync(draft.n_lanes)
        draft.fill(committed.batch, committed.tokens[draft.n_past : committed.n])
        t2 = perf_counter()
        logits = committed.target.decode(committed.batch)
        t3 = perf_counter()
        ids, values = committed.topk(logits)
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

    def _accept(self, step: Step, asked: Asked, *, once: bool) -> bool:
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

    def keep_and_recycle(self) -> None:
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
            token_s = self._costs.token_s() if draft.n > 1 else 0.0
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
        self._costs.observe(self._committed.batch.n, step.n_past, seconds, len(step.emitted))
