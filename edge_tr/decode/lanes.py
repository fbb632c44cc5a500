"""The committed sequence in the KV cache, and the lanes of a draft tree beside it."""

from __future__ import annotations

import time
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from edge_tr.drafts.draft import Draft
from edge_tr.target import Int32, TargetModel

_USERS: WeakKeyDictionary[TargetModel, object] = WeakKeyDictionary()
"""The key of the cache that used the cells of each target last."""


class StateCopies(Protocol):
    """Copies a target's recurrent state, which only lane 0 has."""

    def copy(self) -> Any:
        """The state after the last token; None: it cannot be had."""

    def put_back(self, copy: Any, n_past: int) -> bool:
        """Return to a copy made when there were ``n_past`` cells, and drop those behind them; the
        first ``n_past`` must be there still. False: it cannot be done, the cells are of no use."""


class LaneCache:
    """Keeps the cells of a target in step with the committed sequence.

    Lane 0 is the sequence itself. The other lanes carry a prefix of it and lag behind until a
    tree needs them. Between two steps only committed cells exist, in the order of their
    positions: a path is kept where the batch holds it in one piece behind the root, and what
    is accepted beyond that is decoded again at the front of the next batch.

    Attributes
    ----------
    n_past : number of committed cells; positions 0 to n_past - 1.
    call_s : seconds of one lane call, a running mean; they scan all cells of the context.
    copies : what ``mark`` makes a copy with; None: a target that cannot rewind has no mark.
    """

    def __init__(self, target: TargetModel) -> None:
        self._target = target
        self._key = object()
        self.n_past = 0
        self.call_s = 1e-5
        self.copies: StateCopies | None = None
        self._mark: tuple[int, Any] | None = None
        self._end = [0] * target.n_lanes
        self._n_back = 0

    def claim(self) -> None:
        """Start from an empty cache where something else used the target in the meantime."""
        if _USERS.get(self._target) is not self._key:
            self.recover(0)

    def rewind(self, n_past: int) -> int:
        """Drop every cell at position ``n_past`` and later; the number of cells that remain,
        those up to the mark, or 0, where the target had to rewind and cannot as far."""
        if self._target.can_rewind:
            self._target.seq_rm(-1, n_past, -1)
        elif n_past == 0 or not self._give_up(self.n_past - n_past):
            n_past = self._back_to_mark(n_past)
        if self._mark is not None and n_past < self._mark[0]:
            self._mark = None
        self.n_past = n_past
        self._end = [min(end, n_past) for end in self._end]
        return n_past

    def undo(self, n_tokens: int) -> None:
        """Drop the batch just decoded, a chain or tree of ``n_tokens`` that starts with committed
        tokens; of it, what a target that gives up few tokens must keep is committed."""
        if self._target.can_rewind:
            self.rewind(self.n_past)
            return
        self.extend(n_tokens)
        self.rewind(self.n_past - self._n_back)

    def _give_up(self, n_tokens: int) -> bool:
        """Have lane 0 of a target that gives up few tokens drop its last ones, if it can."""
        if n_tokens > self._n_back:
            return False
        if n_tokens > 0:
            self._target.seq_rm(0, self.n_past - n_tokens, -1)
            self._n_back = 0
        return True

    def mark_with(self, copies: StateCopies) -> None:
        """Make copies of the target's state with this from now on; there is no mark yet."""
        self.copies, self._mark = copies, None

    def mark(self) -> None:
        """Have a target that cannot rewind come back to here, in place of the mark before."""
        if self.copies is not None:
            self._mark = None
            copy = self.copies.copy()
            self._mark = None if copy is None else (self.n_past, copy)

    def _back_to_mark(self, n_past: int) -> int:
        """Return to the mark if it is among the first ``n_past`` cells, else drop every cell; how
        many remain."""
        self._n_back = 0
        if self.copies is not None and self._mark is not None and self._mark[0] <= n_past:
            n_marked, copy = self._mark
            if self.copies.put_back(copy, n_marked):
                return n_marked
        self._mark = None
        self._target.seq_rm(-1, 0, -1)
        return 0

    def recover(self, n_past: int) -> None:
        """Return to ``n_past`` from an unknown state, after an error in the middle of a step;
        to the mark, or nothing, where the target cannot rewind."""
        _USERS[self._target] = self._key
        if self._target.can_rewind:
            self._target.seq_rm(-1, n_past, -1)
        else:
            n_past = self._back_to_mark(n_past)
        for lane in range(1, len(self._end)):
            self._target.seq_rm(lane, 0, -1)
        self.n_past = n_past
        self._n_back = 0
        self._end = [0] * len(self._end)

    def release(self) -> None:
        """Leave the committed cells to lane 0 alone; the other lanes lag until they are needed."""
        for lane, end in enumerate(self._end):
            if lane > 0 and end > 0:
                self._target.seq_rm(lane, 0, -1)
        self._end = [0] * len(self._end)

    def adopt(self, n_past: int) -> None:
        """Take what something else put on lane 0 as ``n_past`` committed cells."""
        _USERS[self._target] = self._key
        self._end = [0] + [1] * (len(self._end) - 1)
        self.release()
        self.n_past = n_past
        self._n_back = 0
        self._mark = None

    def extend(self, n_tokens: int) -> None:
        """A chain of ``n_tokens`` on lane 0 was decoded and is committed."""
        self.n_past += n_tokens
        self._n_back = min(n_tokens - 1, self._target.n_rewind)

    def sync(self, n_lanes: int) -> None:
        """Bring lanes 1 to ``n_lanes - 1`` up to the committed sequence."""
        for lane in range(1, n_lanes):
            if self._end[lane] < self.n_past:
                self._target.seq_cp(0, lane, self._end[lane], self.n_past)
                self._end[lane] = self.n_past

    def commit(self, n_front: int, draft: Draft, accepted: Int32, token_s: float) -> int:
        """Commit the front of the batch just decoded and what pays to keep of the path.

        Parameters
        ----------
        n_front : tokens before the first node: the chain and the root.
        draft : the tree of the batch.
        accepted : int32[n_accepted], nodes of the accepted path below the root.
        token_s : seconds that one more token in the next batch costs; a kept token costs lane
            calls instead, whichever is cheaper is taken.

        Returns
        -------
        Number of accepted nodes whose cells are kept, the first ones of the path.
        """
        base = self.n_past + n_front
        if not self._target.can_rewind:
            self.extend(n_front + draft.n - 1)
            self.rewind(base + len(accepted))
            return len(accepted)
        self.n_past = base
        if draft.n == 1:
            self._end[: draft.n_lanes] = [base] * draft.n_lanes
            return 0
        started = time.perf_counter()
        n_kept = self._best_kept(draft, accepted, token_s)
        self.n_past += n_kept
        self._target.seq_rm(-1, self.n_past, -1)
        n_calls = 1
        shared = draft.n_lanes
        for depth in range(n_kept):
            # Lanes that leave the path here keep what they share with it.
            last = int(draft.lane_last[accepted[depth]])
            for lane in range(last, shared):
                self._target.seq_rm(lane, base + depth, -1)
                self._end[lane] = base + depth
            n_calls += shared - last
            shared = last
        self._end[:shared] = [self.n_past] * shared
        self.call_s += 0.1 * ((time.perf_counter() - started) / n_calls - self.call_s)
        return n_kept

    def _best_kept(self, draft: Draft, accepted: Int32, token_s: float) -> int:
        token_s = min(token_s, 1e9)  # infinite times no token is not a number
        best, best_s = 0, len(accepted) * token_s
        for i, node in enumerate(accepted):
            if draft.slot[node] != i + 1:
                break
            n_calls = 2 * (draft.n_lanes - int(draft.lane_last[node]))
            seconds = n_calls * self.call_s + (len(accepted) - i - 1) * token_s
            if seconds <= best_s:
                best, best_s = i + 1, seconds
        return best
