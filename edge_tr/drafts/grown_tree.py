"""The drafter of automatic mode: candidates of several sources, a tree grown for each step."""

from __future__ import annotations

import numpy as np

from edge_tr.costs.running import StepCosts
from edge_tr.costs.table import FIRST_ROWS, LESSON, Float64
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates, RunningText
from edge_tr.drafts.draft import MAX_HARVEST, Draft
from edge_tr.drafts.history import NOTHING, History
from edge_tr.drafts.template import MAX_LANES
from edge_tr.errors import ConfigError
from edge_tr.kernels import candidates as kernels
from edge_tr.target import Float32, Int32

_PROBE_SHARE = 0.003
"""Most of the time that goes into drafts which are only meant to correct the costs."""

_PROBE_NODES = 2

_CERTAIN = 0.6
_CERTAIN_SHARE = 0.01
"""Probability from which on drafts are nearly certain, and the share of the time that goes into
all drafts where such ones may be tried."""

_N_RESTS = 3
"""Plain steps at a time without asking, while nothing pays."""

_FIRST_PLAIN = 3
"""Plain steps before the first draft: their cost is what drafts are compared with."""

_MOST_DRAFTING = 48
"""Drafting steps in a row, before two plain ones, of which the second shows what they cost."""

_TRUST_STEPS = 16
"""Drafting steps over which expected and accepted tokens are compared."""

_TRUST_WEIGHT = 2.0
_FIRST_TRUST = 0.8
"""Expected tokens, and the share of them accepted, that a comparison starts from."""

_MOST_EXPECTED = 3.0
"""Expected tokens that one step counts for in the comparison: one long draft that failed must not
outweigh many short ones."""

_FIRST_REACH = 3
"""Least depth of the first drafts of a text, and of the next one after a draft that failed."""

_GROWTH = 3
"""A draft may be this many times as deep as the last one was right. Estimates of long paths are
wrong together, and a long draft that fails costs many steps."""

_FAST = 1.5
"""First drafts may be as deep as it takes to be this many times as fast as plain decoding where
all of them is right, so that they reach the next cheap step of the staircase; and as deep as they
like where a step costs no more than this many plain ones."""

_FORGET_TOKENS = 32
"""Tokens without a draft in which a comparison goes back to its start: texts that disappointed
must not keep later ones from being drafted."""

_HARVEST_SHARE = 0.01
"""Most of an answer's time that goes into reading the prompt's own logits."""


class GrownTreeDrafter:
    """Grows a tree best-first from all candidates; drafts as many nodes as pay.

    Parameters
    ----------
    candidates : learned from every step; shared, written.
    n_ctx : cells of the target's context, the longest text.
    costs : what a step costs here; None drafts ``max_nodes`` nodes at every step.
    max_nodes, max_lanes : bounds of the tree.
    use_matches : look for earlier places of the text that end with the same tokens.
    harvest : fill rows from the prompt's own logits.
    history : earlier texts to look for matches in; shared, written. None = none.

    Attributes
    ----------
    history : where the next text looks, and what it is put into when the one after it begins.

    Raises
    ------
    ConfigError : a bound that is not allowed, or above what ``costs`` covers.
    """

    def __init__(
        self,
        candidates: Candidates,
        *,
        n_ctx: int,
        costs: StepCosts | None = None,
        max_nodes: int = 80,
        max_lanes: int = 64,
        use_matches: bool = True,
        harvest: bool = True,
        history: History | None = None,
    ) -> None:
        highest = 1024 if costs is None else costs.max_width - 1
        if not 0 <= max_nodes <= highest:
            raise ConfigError(f"max_nodes {max_nodes} is not allowed; it must be 0 to {highest}")
        if not 1 <= max_lanes <= MAX_LANES:
            raise ConfigError(f"max_lanes {max_lanes} is not allowed; it must be 1 to {MAX_LANES}")
        self.candidates = candidates
        self.n_vocab = candidates.matrix.n_vocab
        self.k = candidates.matrix.k
        self.max_nodes = max_nodes
        self.max_lanes = max_lanes
        self.n_rests = _N_RESTS if costs is not None else 0
        self._harvest = harvest
        self._costs = costs
        self._scratch = kernels.make_scratch(max_nodes)
        self._chance: Float32 = np.zeros(max_nodes + 1, dtype=np.float32)
        self._free = np.zeros(max_nodes + 1, dtype=np.float64)
        self._lesson = LESSON * np.arange(max_nodes + 1)
        self.history: History = history or NOTHING
        self._text = RunningText(n_ctx + 1, use_matches=use_matches)
        self._expected = self._realised = 0.0
        self._forget(1.0)
        self._total_s = self._probe_s = self._probed_token_s = 0.0
        self._n_proposed = 0
        self._n_drafting = 0
        self._reach = 0

    @property
    def harvest(self) -> int:
        """Rows of the prompt's end that cost at most a hundredth of an answer of 100 tokens, at
        most 96; none while drafting does not pay. A multiple of 8: kernels take rows by tiles,
        and what is left over one by one."""
        if not self._harvest:
            return 0
        if self._costs is None or self._costs.table is None:
            return MAX_HARVEST
        plain_s = float(self._costs.steady(0)[1])
        if 0 < self._costs.rate * plain_s < 1.02:
            return 0
        left_s = _HARVEST_SHARE * 100 * plain_s - self._costs.table.first_rows_s
        if left_s < 0:
            return 0
        tile_s = FIRST_ROWS * max(self._costs.table.row_s, plain_s / 100)
        return FIRST_ROWS * min(1 + int(left_s / tile_s), 12)

    @property
    def trust(self) -> float:
        """Accepted over expected tokens of late, at most 1; what the estimates are multiplied
        with."""
        return min(1.0, self._realised / self._expected)

    @property
    def chances(self) -> Float32:
        """float32[max_nodes + 1]; estimated probability of the path to each node of the last
        tree, in BFS order. Sorted by it, falling, any first nodes are a tree."""
        return self._chance

    def compile(self) -> None:
        """Compile the kernels now, so that no step waits; seconds, once on a machine."""
        self._text.begin(np.zeros(3, dtype=np.int32), self.history)
        draft = Draft(self.max_nodes)
        draft.reset(0, n_past=2)
        self._grow(draft, 0, 0, self._free, 0.0)
        blank = Candidates(AdjacencyMatrix(self.n_vocab, self.k), n_pairs=4)
        ids = np.zeros((1, self.k), dtype=np.int32)
        blank.learn(self._text, draft, ids, ids.astype(np.float32), ids[0, :1])

    def learn_prompt(self, tokens: Int32, ids: Int32, values: Float32) -> None:
        before = np.empty_like(tokens)
        before[0] = -1
        before[1:] = tokens[:-1]
        self.candidates.recycle(tokens, before, ids, values)

    def begin(self, tokens: Int32, temperature: float = 0.0) -> None:
        self._text.begin(tokens, self.history)
        self.candidates.use_temperature(temperature)
        self._forget(1.0)
        self._reach = 0
        if self._costs is not None:
            self._costs.forget_rate()

    def end(self) -> None:
        """Put the text that is running into the history now."""
        self._text.end()

    def propose(self, draft: Draft, *, max_nodes: int, max_depth: int) -> None:
        costs = self._costs
        if costs is None:
            self._grow(draft, max_nodes, max_depth, self._free, 0.0)
            return
        step_s = costs.next_step(draft.n_past)[draft.n_front :]
        max_nodes = min(max_nodes, len(step_s) - 1)
        if max_nodes < 1 or self._wants_plain(costs):
            return
        max_depth = min(max_depth, max(self._reach, first_reach(step_s)))
        price = max(costs.rate, 1 / step_s[0]) / self.trust
        worth_s = step_s[: max_nodes + 1] - self._lesson[: max_nodes + 1] / price
        self._grow(draft, max_nodes, max_depth, worth_s, price)
        self._total_s += step_s[draft.n - 1]
        if draft.n == 1:
            self._n_drafting = 0
            self._probe(draft, min(_PROBE_NODES, max_nodes), max_depth, step_s, price)

    def _probe(self, draft: Draft, n: int, max_depth: int, step_s: Float64, price: float) -> None:
        """Draft a little where that is thought not to pay, now and then: a width that is thought
        too dear is never seen to have become cheap. Drafts that are nearly certain may cost more,
        and what is accepted of any is counted back."""
        self._grow(draft, n, max_depth, self._free, 0.0)
        extra_s = loss_s = float(step_s[draft.n - 1] - step_s[0])
        share = _PROBE_SHARE
        if self._chance[: draft.n].min() >= _CERTAIN:
            loss_s -= float(self._chance[1 : draft.n].sum()) / price
            share = _CERTAIN_SHARE
        if draft.n > 1 and self._probe_s + max(0.0, loss_s) > share * self._total_s:
            draft.n = self._n_proposed = 1
        elif draft.n > 1:
            self._probe_s += extra_s
            self._probed_token_s = 1 / price

    def _wants_plain(self, costs: StepCosts) -> bool:
        """Whether to see what a plain step costs: at first, and after many drafted ones."""
        self._n_drafting += 1
        if costs.n_seen(1) < _FIRST_PLAIN:
            self._n_drafting = 0
            return True
        if self._n_drafting > _MOST_DRAFTING + 1:
            self._n_drafting = 0
            return True
        return self._n_drafting > _MOST_DRAFTING

    def _grow(
        self, draft: Draft, max_nodes: int, max_depth: int, seconds: object, price: float
    ) -> None:
        draft.n = int(
            kernels.grow_tree(
                self.candidates.sources,
                self._text.committed,
                (max_nodes, max_depth, self.max_lanes),
                (seconds, price),
                self._scratch,
                (draft.token, draft.parent, draft.depth, self._chance),
            )
        )
        self._n_proposed = draft.n

    def _forget(self, share: float) -> None:
        """Bring the comparison of expected and accepted tokens back to its start."""
        self._expected += share * (_TRUST_WEIGHT - self._expected)
        self._realised += share * (_FIRST_TRUST * _TRUST_WEIGHT - self._realised)

    def learn(
        self, draft: Draft, ids: Int32, values: Float32, accepted: Int32, emitted: list[int]
    ) -> None:
        if self._n_proposed > 1:
            expected = float(self._chance[1 : self._n_proposed].sum())
            weight = _MOST_EXPECTED / max(_MOST_EXPECTED, expected)
            self._expected += weight * expected - self._expected / _TRUST_STEPS
            self._realised += weight * len(accepted) - self._realised / _TRUST_STEPS
            self._reach = _GROWTH * len(accepted)
            self._probe_s = max(0.0, self._probe_s - self._probed_token_s * len(accepted))
            self._probed_token_s = 0.0
        else:
            self._forget(min(1.0, len(emitted) / _FORGET_TOKENS))
        self._n_proposed = 0
        new = np.array(emitted, dtype=np.int32)
        self.candidates.learn(self._text, draft, ids, values, new)


def first_reach(step_s: Float64) -> int:
    """How deep a draft may be of which nothing is known, by the cost of a step with 0, 1, 2, ...
    nodes."""
    speed = np.arange(1, len(step_s) + 1) * step_s[0] / step_s
    fast = np.flatnonzero(speed >= _FAST)
    n_fast = int(fast[0]) if len(fast) else int(np.argmax(speed))
    n_nearly_free = int(np.searchsorted(step_s, _FAST * step_s[0])) - 1
    return max(_FIRST_REACH, n_fast, n_nearly_free)
