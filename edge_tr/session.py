"""An open model that answers prompts: model, context, matrix and decoder in one object."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from . import store
from .adjacency import AdjacencyMatrix
from .candidates import Candidates
from .closing import Closing
from .config import DraftConfig, SamplingConfig
from .cost import StepCosts
from .cost_cache import costs_of
from .draft import RecyclingDrafter
from .errors import ConfigError, MatrixFileError
from .generate import Decoder
from .llama.model import Model
from .llama.sampler import LlamaSampler
from .llama.target import ContextConfig, LlamaTarget
from .probe import WidthProbe, probe_widths
from .recycler import Recycler
from .stats import Stats
from .target import Int32
from .topk import default_threads
from .tree import TreeTemplate


class Session(Closing):
    """A model opened for text generation.

    Parameters
    ----------
    path : the GGUF file.
    context, draft : see ``ContextConfig`` and ``DraftConfig``.
    n_gpu_layers : layers on the GPU, -1 = all.
    progress : called with a line before something that takes seconds.

    Attributes
    ----------
    notices : lines worth telling the user: why drafting is off, why a matrix was not loaded.
    probe : outcome of the width probe, made only for ``exact``.

    Raises
    ------
    ModelError and its kinds : the model cannot be opened.
    ConfigError : a value that is not allowed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        context: ContextConfig | None = None,
        draft: DraftConfig | None = None,
        n_gpu_layers: int = 0,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._progress = progress
        self.draft = draft or DraftConfig()
        self.notices: list[str] = []
        self.probe: WidthProbe | None = None
        self.model = Model(path, n_gpu_layers=n_gpu_layers)
        try:
            self.target = LlamaTarget(self.model, context or ContextConfig())
        except BaseException:
            self.model.close()
            raise
        try:
            self._fingerprint = self.model.fingerprint()
            self.candidates = self._start_candidates()
            self.matrix = self.candidates.matrix
            self.decoder = self._make_decoder()
            self.stop_tokens = self.model.stop_tokens()
        except BaseException:
            self.close()
            raise

    @property
    def stats(self) -> Stats:
        """Counts and seconds of the last generation."""
        return self.decoder.stats

    @property
    def matrix_path(self) -> Path:
        """File of the adjacency matrix."""
        return self.draft.matrix_path or store.default_path(self._fingerprint, self.draft.k)

    def _start_candidates(self) -> Candidates:
        config, n_vocab = self.draft, self.model.n_vocab
        if config.start == "random":
            return Candidates(AdjacencyMatrix.random(n_vocab, config.k))
        if config.start == "inherited" and self.matrix_path.exists():
            try:
                matrix, extra = store.load_with_extra(
                    self.matrix_path, self._fingerprint, n_vocab, config.k
                )
                candidates = Candidates(matrix)
                if extra:
                    candidates.load_arrays(extra)
                return candidates
            except (MatrixFileError, ConfigError) as error:
                if config.matrix_path is not None:
                    raise
                self.notices.append(f"starting with an empty matrix: {error}")
        return Candidates(AdjacencyMatrix(n_vocab, config.k))

    def _make_decoder(self) -> Decoder:
        config = self.draft
        reason = self.target.plain_reason
        if not reason and self.target.n_batch < 2:
            reason = "drafting is off: a batch of one token (n_batch=1) holds no draft"
        max_width = None
        if config.exact and not reason and config.speculative != "off":
            most = min(16, self.target.n_batch, self.target.n_ctx // 4)
            self.probe = probe_widths(self.target, max_width=most)
            max_width = self.probe.tree_width
            if max_width < 2:
                reason = (
                    "drafting is off: no batch width is bit-equal to one-token decoding with "
                    "this model, build and configuration"
                )
        if config.speculative == "off" or reason:
            if config.speculative != "off":
                self.notices.append(reason)
            return Decoder(self.target)
        n_threads = default_threads()
        harvest = config.harvest and not config.exact
        if isinstance(config.speculative, TreeTemplate):
            drafter = RecyclingDrafter(
                self.matrix, config.speculative, update=config.update, harvest=harvest
            )
            return Decoder(self.target, drafter, max_width=max_width, n_threads=n_threads)
        table = costs_of(self.target, k=config.k, n_threads=n_threads, progress=self._progress)
        costs = StepCosts(table, table.widths[-1])
        recycler = Recycler(
            self.candidates,
            n_ctx=self.target.n_ctx,
            costs=costs,
            max_nodes=table.widths[-1] - 1,
            max_lanes=self.target.n_lanes,
            harvest=harvest,
        )
        recycler.compile()
        return Decoder(self.target, recycler, costs=costs, max_width=max_width, n_threads=n_threads)

    def prompt_tokens(self, text: str, *, chat: bool = True) -> Int32:
        """Token ids of a prompt, int32[n].

        Parameters
        ----------
        text : what the user wrote.
        chat : wrap it in the model's chat template as one user message; a model without a
            template gets the plain text.
        """
        if chat:
            wrapped = self.model.chat_prompt([{"role": "user", "content": text}])
            if wrapped is not None:
                return self.model.tokenize(wrapped, add_special=False)
        return self.model.tokenize(text, parse_special=False)

    def stream(
        self,
        prompt: Sequence[int] | Int32,
        *,
        max_tokens: int | None = None,
        sampling: SamplingConfig | None = None,
    ) -> Iterator[str]:
        """Generate and yield the text of each step; a character is never cut in two, and one
        that the limit cuts is left out.

        Raises
        ------
        ConfigError, PromptTooLongError, DecodeError, CancelledError : see ``Decoder.generate``.
        """
        sampling = sampling or SamplingConfig()
        sampler = None if sampling.greedy else LlamaSampler(self.target, sampling)
        steps = self.decoder.generate(
            prompt, max_tokens=max_tokens, sampler=sampler, stop_tokens=self.stop_tokens
        )
        return self._texts(steps)

    def _texts(self, steps: Iterator[list[int]]) -> Iterator[str]:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for tokens in steps:
            text = decode(self.model.detokenize(tokens))
            if text:
                yield text

    def explain(self) -> str:
        """What automatic mode chose in the last generation and why; empty where it had no
        choice."""
        stats, drafter = self.stats, self.decoder.drafter
        if not isinstance(drafter, Recycler) or stats.n_steps == 0:
            return ""
        step_s = self.decoder.costs.seconds(stats.n_prompt + stats.n_tokens // 2)
        prices = ", ".join(f"{n} tokens {step_s[n] / step_s[1]:.2f}" for n in (2, 4, 8)
                           if n < len(step_s))  # fmt: skip
        n_drafting = stats.n_steps - stats.n_plain_steps
        share = f"drafted in {n_drafting} of {stats.n_steps} steps"
        if n_drafting:
            share += f", {stats.n_drafted / n_drafting:.1f} nodes each"
        return f"automatic mode {share}; cost here, in plain steps: {prices}"

    def cancel(self) -> None:
        """Make the running generation raise CancelledError soon; from any thread."""
        self.decoder.cancel()

    def save_matrix(self) -> Path:
        """Save the adjacency matrix to its file.

        Raises
        ------
        MatrixFileError : the file cannot be written; an older one is left as it was.
        """
        extra = self.candidates.to_arrays()
        store.save(self.matrix_path, self.matrix, self._fingerprint, extra)
        return self.matrix_path

    def close(self) -> None:
        """Free the context and the model."""
        self.target.close()
        self.model.close()
