"""Which batch widths give logits that are bit-equal to one-token decoding here.

Kernels choose their method by the number of tokens in a batch, so that the same token can get
slightly different logits in a wider batch. Where they do not, drafting is exact to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_tr.errors import ConfigError
from edge_tr.measuring.trial import Trial, random_text
from edge_tr.target import Float32, TargetModel


@dataclass(frozen=True)
class WidthProbe:
    """Outcome of ``probe_widths``.

    Attributes
    ----------
    n_probed : widest batch that was tried.
    chain_width : widest batch up to which a chain is bit-equal at every width; 1 = none is.
    tree_width : the same for trees of two branches, where cells of one branch lie between
        those of the other.
    contexts : numbers of past tokens at which it was tried.
    """

    n_probed: int
    chain_width: int
    tree_width: int
    contexts: tuple[int, ...]


def probe_widths(
    target: TargetModel,
    *,
    max_width: int = 16,
    contexts: tuple[int, ...] = (32, 600),
) -> WidthProbe:
    """Compare batches of 2 to ``max_width`` tokens with one-token decoding, bit for bit.

    Clears the target's cache. Past 512 cells some attention kernels split their work, so that
    a short and a long context are tried, as far as the target's context allows.

    Raises
    ------
    ConfigError : a ``max_width`` below 2, or above the batch or a quarter of the context.
    """
    highest = min(target.n_batch, target.n_ctx // 4)
    if not 2 <= max_width <= highest:
        raise ConfigError(f"max_width {max_width} is not allowed; it must be 2 to {highest}")
    prober = _Prober(target, max_width)
    most = target.n_ctx - prober.n_rows - 1
    tried = tuple(sorted({min(n, most) for n in contexts}))
    chain_width = tree_width = max_width
    for n_past in tried:
        prober.read_past(n_past)
        chain_width = prober.widest_equal(chain_width, branches=1)
        tree_width = prober.widest_equal(min(tree_width, chain_width), branches=2)
    prober.lanes.recover(0)
    return WidthProbe(max_width, chain_width, tree_width if target.n_lanes > 1 else 1, tried)


class _Prober(Trial):
    def __init__(self, target: TargetModel, max_width: int) -> None:
        super().__init__(target, max_width, *random_text(target))
        self.reference: list[Float32] = []
        # Where steps leave a token behind, the next one starts further on.
        self.n_rows = max_width * (1 if target.can_rewind else 2)

    def read_past(self, n_past: int) -> None:
        """Read the past, then the next tokens one at a time for their rows."""
        self.lanes.recover(0)
        self.reference.clear()
        self.read(n_past)
        for i in range(n_past, n_past + self.n_rows):
            self.batch.set_one(int(self.tokens[i]), i)
            self.reference.append(self.target.decode(self.batch)[0].copy())
            self.lanes.extend(1)
        if self.lanes.rewind(n_past) == 0:
            self.read(n_past)

    def widest_equal(self, limit: int, *, branches: int) -> int:
        """Widest width up to which every width is bit-equal."""
        if branches > self.target.n_lanes:
            return 1
        for width in range(2, limit + 1):
            if not self._equal(width, branches):
                return width - 1
        return limit

    def _equal(self, width: int, branches: int) -> bool:
        """Decode a tree whose last branch is the reference text; compare its rows."""
        draft, n_past = self.draft, self.lanes.n_past
        text = self.tokens[n_past : n_past + width]
        draft.reset(int(text[0]), n_past=n_past)
        n_text = (width - 1 + branches - 1) // branches
        n_other = width - 1 - n_text
        # BFS order: at each depth the other branch stands before the text.
        ends = [0, 0]
        for depth in range(1, max(n_text, n_other) + 1):
            for branch, n_nodes in ((0, n_other), (1, n_text)):
                if depth <= n_nodes:
                    token = int(text[depth])
                    other = (token + 1) % self.target.n_vocab
                    draft.token[draft.n] = token if branch else other
                    draft.parent[draft.n] = ends[branch]
                    draft.depth[draft.n] = depth
                    ends[branch] = draft.n
                    draft.n += 1
        self.plant()
        rows = self.target.decode(self.batch)
        reference = self.reference[n_past - self.base :]
        node, same = ends[1], True
        while node >= 0:
            same &= np.array_equal(rows[draft.slot[node]], reference[draft.depth[node]])
            node = int(draft.parent[node])
        self.lanes.undo(width)
        return same
