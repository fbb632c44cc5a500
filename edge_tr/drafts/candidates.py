"""What recycling has learned: candidate rows with probabilities, and how far to trust them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np

from edge_tr.drafts.adjacency import AdjacencyMatrix, check_candidates
from edge_tr.drafts.draft import Draft
from edge_tr.drafts.history import NOTHING, History
from edge_tr.drafts.prior import prior
from edge_tr.drafts.template import MAX_K
from edge_tr.errors import ConfigError
from edge_tr.kernels import candidates as kernels
from edge_tr.kernels import matches
from edge_tr.target import Float32, Int32

_PAIR_K = 4
_MAX_TRIALS = 500.0
"""Trials of a calibration cell after which its counts are halved, so that old ones fade."""

_TEMPERATURES = (0.0, 0.7)
"""Highest temperature of all calibrations but the last."""

_NO_TOKENS: Int32 = np.zeros(0, dtype=np.int32)

_LEAD = 32
"""Tokens that a part of a text in the history brings along from before it."""

_FIRST_MATCH_RATE = 0.4
"""A text's first match that fails lowers the level: most texts do not copy."""


class RunningText:
    """The committed sequence, and the places in it and in earlier texts that end with the same
    tokens (the matches).

    Parameters
    ----------
    capacity : most tokens.
    use_matches : False finds none; for measurements.

    Attributes
    ----------
    tokens, n : int32[capacity], and how many of them there are.
    matches, n_matches : int32[2, MAX_MATCHES]; see ``matches.extend``.
    match_rate : float64[2]; share of the longest matches that were right, of late.
    history : earlier texts; each text goes there when the next one begins.
    counting : whether the next step is one to calibrate with. The token after a prompt is not:
        its row was harvested.
    """

    def __init__(self, capacity: int, *, use_matches: bool = True) -> None:
        self.tokens: Int32 = np.zeros(capacity, dtype=np.int32)
        self.n = 0
        self.heads: Int32 = np.full(1 << 14, -1, dtype=np.int32)
        self.links: Int32 = np.full(capacity, -1, dtype=np.int32)
        self.matches: Int32 = np.zeros((2, kernels.MAX_MATCHES), dtype=np.int32)
        self._n_matches = 0
        self._use_matches = use_matches
        self.match_rate = np.full(2, _FIRST_MATCH_RATE)
        self.history: History = NOTHING
        self.counting = False

    @property
    def committed(self) -> tuple[Any, ...]:
        """What the kernels read, see ``kernels.Committed``."""
        return (
            self.tokens,
            self.n,
            self.matches,
            self._n_matches,
            self.match_rate,
            self.history.tokens,
        )

    @property
    def n_matches(self) -> int:
        return self._n_matches

    def begin(self, tokens: Int32, history: History) -> None:
        """Start from a prompt; the text before goes into its own history, whole where that is
        another one."""
        self.end(tokens if history is self.history else _NO_TOKENS)
        self.history = history
        self.n = 0
        self.heads.fill(-1)
        self.extend(tokens)
        self.match_rate.fill(_FIRST_MATCH_RATE)
        self.counting = False

    def extend(self, tokens: Int32) -> None:
        """Add the tokens that follow, int32[n], and look for matches."""
        index = self.heads, self.links, self.history.heads, self.history.links
        n_matches = matches.extend(
            self.tokens, self.n, tokens, index, self.history.tokens, self.matches
        )
        self.n += len(tokens)
        self._n_matches = int(n_matches) if self._use_matches else 0

    def end(self, following: Int32 = _NO_TOKENS) -> None:
        """Put into the history what the text that follows does not begin with, and some tokens
        in front of it by which it is found."""
        n = min(self.n, len(following))
        differ = np.flatnonzero(self.tokens[:n] != following[:n])
        n_shared = int(differ[0]) if len(differ) else n
        if n_shared < self.n:
            self.history.add(self.tokens[max(0, n_shared - _LEAD) : self.n])


class Candidates:
    """Rows keyed by the last token and by the last two, and the calibration of both.

    Parameters
    ----------
    matrix : the one-token rows; shared, written.
    n_pairs : two-token rows to keep, a power of two of at least 4, or 0 for none. A row has
        4 possible places; a new one replaces the one that was not written for longest.
    by_rank : ignore probabilities, know candidates by their rank; for measurements.

    Attributes
    ----------
    codes : uint8[n_vocab, k]; stored probability of each candidate, see the kernel.
    pair_keys, pair_stamps, pair_rows, pair_codes : int64, int64[n_pairs], int32 and
        uint8[n_pairs, 4]. 36 bytes a row, 4.5 MiB at 2**17 rows.
    calibrations : float64[3, 2, N_CELLS]; how often the candidates of each cell were seen on the
        accepted path as the model's choice, and how often they were seen at all: where the most
        probable token is taken, where it is drawn at a temperature of at most 0.7, and above.
    calibration : the one of them in use.
    rank_counts : float64[2, N_SOURCES, 16]; the same for each rank of the two-token rows, the
        one-token rows and the matches, drafted or not.

    Raises
    ------
    ConfigError : ``n_pairs`` is not allowed.
    """

    def __init__(
        self, matrix: AdjacencyMatrix, *, n_pairs: int = 1 << 17, by_rank: bool = False
    ) -> None:
        if n_pairs and (n_pairs < 4 or n_pairs > 1 << 18 or n_pairs & (n_pairs - 1)):
            raise ConfigError(
                f"n_pairs {n_pairs} is not allowed; it must be 0 or a power of two, 4 to {1 << 18}"
            )
        self.matrix = matrix
        self.by_rank = by_rank
        self.codes = np.full(matrix.rows.shape, 4, dtype=np.uint8)
        self.pair_keys = np.full(n_pairs, -1, dtype=np.int64)
        self.pair_stamps = np.zeros(n_pairs, dtype=np.int64)
        self.pair_rows: Int32 = np.full((n_pairs, _PAIR_K), -1, dtype=np.int32)
        self.pair_codes = np.zeros((n_pairs, _PAIR_K), dtype=np.uint8)
        self.calibrations = np.stack([prior()] * (len(_TEMPERATURES) + 1))
        self.calibration = self.calibrations[0]
        self.rank_counts = np.zeros((2, kernels.N_SOURCES, MAX_K))
        self._stamp = 0

    @property
    def sources(self) -> tuple[Any, ...]:
        """The arrays that the kernels read and write, see ``kernels.Sources``."""
        return (
            self.matrix.rows,
            self.codes,
            self.pair_keys,
            self.pair_rows,
            self.pair_codes,
            self.pair_stamps,
            self.calibration,
            self.rank_counts,
        )

    @property
    def n_bytes(self) -> int:
        """Memory beside the one-token matrix."""
        rows = (self.codes, self.pair_keys, self.pair_stamps, self.pair_rows, self.pair_codes)
        return sum(array.nbytes for array in (*rows, self.calibrations, self.rank_counts))

    def use_temperature(self, temperature: float) -> None:
        """Take the calibration of texts that are drawn at this temperature."""
        self.calibration = self.calibrations[bisect_left(_TEMPERATURES, temperature)]

    def recycle(self, token: Int32, before: Int32, ids: Int32, values: Float32) -> None:
        """Overwrite the rows of neighbouring tokens, see ``kernels.recycle_rows``.

        Parameters
        ----------
        token, before : int32[n], the tokens and the one in front of each, or -1.
        ids, values : int32 and float32[n, k], the best tokens after each and their logits.
        """
        self._stamp += 1
        n = len(token)
        nodes = (token, np.arange(n, dtype=np.int32), before, n, ids, values)
        kernels.recycle_rows(self.sources, nodes, self._stamp, self.by_rank)

    def learn(
        self, text: RunningText, draft: Draft, ids: Int32, values: Float32, emitted: Int32
    ) -> None:
        """Calibrate, recycle the nodes and extend the sequence, see ``kernels.learn_step``."""
        self._stamp += 1
        kernels.learn_step(
            self.sources,
            text.committed,
            (draft.token, draft.slot, draft.parent, draft.n, ids, values),
            emitted,
            (self._stamp, self.by_rank, text.counting, _MAX_TRIALS),
        )
        text.extend(emitted)
        text.counting = True

    def to_arrays(self) -> dict[str, Any]:
        """What a file keeps beside the one-token rows; rows never seen cost nothing."""
        seen = np.flatnonzero(self.pair_keys >= 0)
        seen = seen[np.argsort(self.pair_stamps[seen], kind="stable")]
        known = np.flatnonzero(self.matrix.rows[:, 0] >= 0)
        return {
            "codes": self.codes[known],
            "pair_keys": self.pair_keys[seen],
            "pair_rows": self.pair_rows[seen],
            "pair_codes": self.pair_codes[seen],
            "calibration": self.calibrations[0],
            "calibration_drawn": self.calibrations[1:],
            "rank_counts": self.rank_counts,
        }

    def load_arrays(self, arrays: Mapping[str, Any]) -> None:
        """Take over what ``to_arrays`` gave, oldest two-token rows first.

        Raises
        ------
        ConfigError : arrays of another shape, or with values that are not allowed.
        """
        arrays = {"calibration_drawn": np.stack([prior()] * len(_TEMPERATURES)), **arrays}
        n_own = kernels.N_OWN_CELLS
        if "calibration" in arrays and arrays["calibration"].shape == (2, n_own):
            more = prior()[:, n_own:]  # a file from before there was a history
            arrays["calibration"] = np.concatenate((arrays["calibration"], more), axis=1)
        known = np.flatnonzero(self.matrix.rows[:, 0] >= 0)
        n = int(arrays["pair_keys"].size) if "pair_keys" in arrays else 0
        for name, shape, dtype in (
            ("codes", (len(known), self.matrix.k), np.uint8),
            ("pair_keys", (n,), np.int64),
            ("pair_rows", (n, _PAIR_K), np.int32),
            ("pair_codes", (n, _PAIR_K), np.uint8),
            ("calibration", self.calibrations[0].shape, np.float64),
            ("calibration_drawn", self.calibrations[1:].shape, np.float64),
            ("rank_counts", self.rank_counts.shape, np.float64),
        ):
            array = arrays.get(name)
            if array is None or array.shape != shape or array.dtype != dtype:
                raise ConfigError(f"the saved array {name} is not {np.dtype(dtype)}{list(shape)}")
        calibrations = np.stack((arrays["calibration"], *arrays["calibration_drawn"]))
        counts = np.concatenate((calibrations.ravel(), arrays["rank_counts"].ravel()))
        if not (np.isfinite(counts).all() and (counts >= 0).all() and calibrations[:, 1].all()):
            raise ConfigError("the saved calibration holds counts that are not allowed")
        for name in ("codes", "pair_codes"):
            if (arrays[name] >= kernels.N_CODES).any():
                raise ConfigError(f"the saved array {name} holds an unknown code")
        n_vocab = self.matrix.n_vocab
        check_candidates(arrays["pair_rows"], n_vocab)
        pair = np.stack((arrays["pair_keys"] >> 32, arrays["pair_keys"] & 0xFFFFFFFF))
        check_candidates(pair.astype(np.int64), n_vocab)
        self.codes[known] = arrays["codes"]
        self.calibrations[:] = calibrations
        self.rank_counts[:] = arrays["rank_counts"]
        if len(self.pair_keys):
            names = ("pair_keys", "pair_rows", "pair_codes")
            kernels.insert_pairs(self.sources, *(arrays[name] for name in names))
        self._stamp = n
