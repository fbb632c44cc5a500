"""Verify: follow the model's own choices down the tree of a decoded batch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from edge_tr.decode.sampling import Sampler
from edge_tr.drafts.draft import Draft
from edge_tr.errors import DecodeError
from edge_tr.kernels import tree as kernels
from edge_tr.stats import Stats
from edge_tr.target import Float32, Int32

NO_LOGIT = "the model returned a row without a single finite logit"


@dataclass
class Step:
    """A decoded batch, and how far its tree has been walked.

    Attributes
    ----------
    draft : the tree.
    logits, ids, values : the rows of its nodes and the best tokens of each row.
    n_front : tokens of the batch up to the root.
    budget : most tokens to emit.
    stats : of the generation that it belongs to.
    n_past : committed cells before the batch; -1 for the last token of a prompt, whose cell is
        committed already.
    node : where the walk stands.
    emitted : what it gave so far.
    seconds : time spent on it, without the time in which the caller held a token.
    """

    draft: Draft
    logits: Float32
    n_front: int
    ids: Int32
    values: Float32
    budget: int
    stats: Stats
    n_past: int = -1
    node: int = 0
    emitted: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._path: Int32 = np.zeros(self.draft.n, dtype=np.int32)

    @property
    def accepted(self) -> Int32:
        """int32[n_accepted]; nodes of the accepted path below the root."""
        return self._path[: max(0, len(self.emitted) - 1)]

    def follow_best(self, stop_tokens: Collection[int]) -> None:
        """Walk to the end, taking the most probable token at each node."""
        draft, ids = self.draft, self.ids
        if draft.n == 1:
            self.emitted = [int(ids[0, 0])]
        else:
            n = int(
                kernels.walk_greedy(draft.token, draft.parent, draft.slot, draft.n, ids, self._path)
            )
            path = self._path[:n]
            emitted: list[int] = draft.token[path].tolist()
            emitted.append(int(ids[draft.slot[path[-1]] if n else 0, 0]))
            self.emitted = emitted[: self.budget]
            for i, token in enumerate(self.emitted):
                if token in stop_tokens:
                    del self.emitted[i + 1 :]
                    break
        if self.emitted[-1] < 0:
            raise DecodeError(NO_LOGIT)

    def draw(self, sampler: Sampler, stop_tokens: Collection[int]) -> bool:
        """Draw where the walk stands and follow the child that was drawn; False where the step
        ends."""
        draft, emitted = self.draft, self.emitted
        slot = int(draft.slot[self.node])
        token = int(sampler.sample(self.n_front - 1 + slot, self.logits[slot]))
        emitted.append(token)
        if token in stop_tokens or len(emitted) == self.budget:
            return False
        self.node = int(kernels.find_child(draft.token, draft.parent, draft.n, self.node, token))
        if self.node < 0:
            return False
        self._path[len(emitted) - 1] = self.node
        return True
