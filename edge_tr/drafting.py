"""A target with what drafting needs: its matrix, its measured costs, the decoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from edge_tr.config import DraftConfig
from edge_tr.costs.crowding import Crowding
from edge_tr.costs.running import StepCosts
from edge_tr.decode.decoder import Decoder
from edge_tr.decode.topk import default_threads
from edge_tr.drafts import compiled, history_file, matrix_file
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.draft import Drafter
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.history import History
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import CancelledError, ConfigError, MatrixDamagedError, MatrixFileError
from edge_tr.machine.idle import IdleCores, cores_now
from edge_tr.measuring.kept_costs import KnownTarget, cost_key, costs_of, forget_costs, save_costs
from edge_tr.measuring.limit import time_limit, within
from edge_tr.measuring.steps import extend_costs
from edge_tr.measuring.widths import WidthProbe, probe_widths
from edge_tr.target import widest_step

_MEASURING_S = 1.0
"""Seconds that the first session with a model may measure: what is coarse then is corrected by the
steps that are taken."""

_PROBED_WIDTH = 16
"""Widest batch that ``exact`` tries."""


def _candidates(path: Path, matrix: AdjacencyMatrix, extra: dict[str, Any]) -> Candidates:
    """What a file held.

    Raises
    ------
    MatrixDamagedError : the arrays beside the matrix are not those of one.
    """
    candidates = Candidates(matrix)
    try:
        if extra:
            candidates.load_arrays(extra)
    except ConfigError as error:
        raise MatrixDamagedError(
            f"{path} is damaged: {error}; {matrix_file.remedy(path)}"
        ) from None
    return candidates


class Drafting:
    """Loads the matrix, decides whether and how to draft, and makes the decoder.

    Parameters
    ----------
    target : the open context; its cache is cleared where costs or widths are measured.
    draft : see ``DraftConfig``.
    fingerprint : whose matrix it is; see ``matrix_file.default_path``.
    plain_reason : why this target cannot verify drafts, or an empty text.
    notice : the first of the notices, or an empty text.
    drafter : drafts in place of Token Recycling.
    progress : called with a line before something that takes seconds.

    Attributes
    ----------
    candidates, matrix : what was learned, in this run and in those before.
    history : earlier texts that automatic mode drafts from; see ``DraftConfig``.
    decoder : decodes with it.
    notices : lines worth telling the user: why drafting is off, why a matrix was not loaded.
    probe : outcome of the width probe, made only for ``exact``.

    Raises
    ------
    ConfigError : a tree with more leaves than the target has lanes, or ranks than k.
    MatrixFileError : ``draft.matrix_path`` or ``history_path`` was given and cannot be used.
    """

    def __init__(
        self,
        target: KnownTarget,
        draft: DraftConfig,
        fingerprint: str,
        *,
        plain_reason: str = "",
        notice: str = "",
        drafter: Drafter | None = None,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.fingerprint = fingerprint
        self.notices: list[str] = [notice] if notice else []
        self.probe: WidthProbe | None = None
        self._drafter = drafter
        self._progress = progress
        self.candidates = self._start_candidates()
        self.matrix = self.candidates.matrix
        self.history = self._start_history()
        self.decoder = self._make_decoder(plain_reason)

    @property
    def matrix_path(self) -> Path:
        """File of the adjacency matrix."""
        return self.draft.matrix_path or matrix_file.default_path(self.fingerprint, self.draft.k)

    def _start_candidates(self) -> Candidates:
        config, n_vocab = self.draft, self.target.n_vocab
        if config.matrix_path is not None:
            matrix_file.FILE.check_own(config.matrix_path)
        if config.start == "random":
            return Candidates(AdjacencyMatrix.random(n_vocab, config.k))
        if config.start == "inherited" and self.matrix_path.exists():
            try:
                matrix, extra = matrix_file.load_with_extra(
                    self.matrix_path, self.fingerprint, n_vocab, config.k
                )
                return _candidates(self.matrix_path, matrix, extra)
            except MatrixFileError as error:
                if config.matrix_path is not None:
                    raise
                self.notices.append(f"starting with an empty matrix: {error}")
        return Candidates(AdjacencyMatrix(n_vocab, config.k))

    def _start_history(self) -> History:
        config = self.draft
        automatic = config.speculative == "auto" and self._drafter is None
        history = History(config.n_history if automatic else 0)
        if config.history_path is not None:
            history_file.FILE.check_own(config.history_path)
            if automatic and config.history_path.exists():
                n_vocab = self.target.n_vocab
                history_file.load(config.history_path, history, self.fingerprint, n_vocab)
        return history

    def _make_decoder(self, reason: str) -> Decoder:
        config, target = self.draft, self.target
        if config.speculative == "off":
            return Decoder(target)
        if not reason and target.n_batch < 2:
            reason = "drafting is off: a batch of one token (n_batch=1) holds no draft"
        tree = config.speculative
        if not reason and isinstance(tree, TreeTemplate) and tree.n_leaves > target.n_lanes == 1:
            reason = "drafting is off: this model verifies chains only, and the tree has branches"
        max_width = None
        if config.exact and not reason:
            most = min(_PROBED_WIDTH, widest_step(target), target.n_ctx // 4)
            self.probe = probe_widths(target, max_width=most)
            max_width = self.probe.tree_width if target.can_rewind else self.probe.chain_width
            if max_width < 2:
                reason = (
                    "drafting is off: no batch width is bit-equal to one-token decoding with "
                    "this model, build and configuration"
                )
        if reason:
            self.notices.append(reason)
            return Decoder(target)
        n_threads = default_threads()
        limit_s, warning = time_limit(target)
        if warning:
            self.notices.append(warning)
            self._progress(f"{warning}; measuring them for {limit_s:.0f} s at most")
        try:
            with within(limit_s, target):
                costs, drafter = self._make_drafter(n_threads)
        except CancelledError:
            self.notices.append(
                f"drafting is off: what decode steps cost here was not known after {limit_s:.0f} s"
            )
            return Decoder(target)
        return Decoder(
            target,
            drafter,
            costs=costs,
            max_width=max_width,
            n_threads=n_threads,
            measure_behind=extend_costs if target.can_rewind else None,
            is_ready=self._compiled(drafter),
        )

    def _make_drafter(self, n_threads: int) -> tuple[StepCosts | None, Drafter]:
        config, target = self.draft, self.target
        if self._drafter is not None:
            return None, self._drafter
        harvest = config.harvest and not config.exact
        if isinstance(config.speculative, TreeTemplate):
            return None, FixedTreeDrafter(
                self.matrix, config.speculative, update=config.update, harvest=harvest
            )
        table = costs_of(
            target,
            k=config.k,
            n_threads=n_threads,
            budget_s=_MEASURING_S,
            n_tries=1,
            progress=self._progress,
        )
        key = cost_key(target, config.k, n_threads)
        crowding = None
        if getattr(target, "may_change_threads", False):
            crowding = Crowding(target.n_threads, target.set_threads, IdleCores(), cores_now)  # type: ignore[attr-defined]
        costs = StepCosts(
            table,
            table.widths[-1],
            lambda: forget_costs(key),
            partial(save_costs, key),
            crowding,
        )
        recycler = GrownTreeDrafter(
            self.candidates,
            n_ctx=target.n_ctx,
            costs=costs,
            max_nodes=table.widths[-1] - 1,
            max_lanes=target.n_lanes,
            harvest=harvest,
            history=self.history,
        )
        return costs, recycler

    def _compiled(self, drafter: Drafter) -> Callable[[], bool]:
        """Have what the drafter needs compiled; tells whether it is."""
        if not isinstance(drafter, GrownTreeDrafter):
            return lambda: True
        if compiled.compile_beside():
            self._progress("compiling the drafter beside the first answer, once on this machine")
        return compiled.is_ready

    def explain(self) -> str:
        """What automatic mode chose in the last generation and why; empty where it had no
        choice."""
        stats, drafter = self.decoder.stats, self.decoder.drafter
        if not isinstance(drafter, GrownTreeDrafter) or stats.n_steps == 0:
            return ""
        step_s = self.decoder.costs.steady(stats.n_prompt + stats.n_tokens // 2)
        prices = ", ".join(f"{n} tokens {step_s[n] / step_s[1]:.2f}" for n in (2, 4, 8)
                           if n < len(step_s))  # fmt: skip
        n_drafting = stats.n_steps - stats.n_plain_steps
        share = f"drafted in {n_drafting} of {stats.n_steps} steps"
        if n_drafting:
            share += f", {stats.n_drafted / n_drafting:.1f} nodes each"
        return f"automatic mode {share}; cost here, in plain steps: {prices}"

    def save_matrix(self) -> Path:
        """Save the adjacency matrix to its file, and the history where it has one.

        Raises
        ------
        MatrixFileError : a file cannot be written; an older one is left as it was.
        """
        extra = self.candidates.to_arrays()
        matrix_file.save(self.matrix_path, self.matrix, self.fingerprint, extra)
        self.save_history()
        return self.matrix_path

    def save_history(self) -> None:
        """Save the history, where it has a file.

        Raises
        ------
        MatrixFileError : the file cannot be written; an older one is left as it was.
        """
        path, drafter = self.draft.history_path, self.decoder.drafter
        if path is not None and isinstance(drafter, GrownTreeDrafter):
            drafter.end()
            history_file.save(path, self.history, self.fingerprint, self.target.n_vocab)
