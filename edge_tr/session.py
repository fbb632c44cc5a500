"""An open model that answers prompts: model, context, matrix and decoder in one object."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence

from edge_tr.answer import Answer, AnswerConfig
from edge_tr.config import ContextConfig, DraftConfig, SamplingConfig
from edge_tr.drafting import Drafting
from edge_tr.files.closing import Closing
from edge_tr.gguf_file.info import inspect
from edge_tr.idle import Idle
from edge_tr.llama.devices import has_gpu, unused_backends
from edge_tr.llama.hybrids import open_target
from edge_tr.llama.kept_cells import KeptCells
from edge_tr.llama.kept_state import RecurrentState, has_state
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.llama.turns import Turns
from edge_tr.needs import require_fit
from edge_tr.stats import Stats
from edge_tr.target import Int32

logger = logging.getLogger("edge_tr")


class Session(Drafting, Closing):
    """A model opened for text generation; threads may share it, their answers take turns.

    Parameters
    ----------
    path : the GGUF file.
    context, draft : see ``ContextConfig`` and ``DraftConfig``.
    n_gpu_layers, rpc : layers on the GPU, -1 = all, and RPC servers that take some; see ``Model``.
    progress : called with a line before something that takes seconds.
    idle_unload_s : seconds without an answer after which the model's memory is given back; the next
        answer opens it again. What was learned stays, and the text in the cache; see
        ``KeptCells``. None keeps the model.

    Attributes
    ----------
    idle : tells whether the model is unloaded.
    model, target : the open model and its context; see ``Drafting`` for the others.
    stop_tokens : ids that end a text.
    turns : whose turn it is to generate.
    has_learned : whether an answer taught the drafter something.

    Raises
    ------
    ModelError and its kinds : the model cannot be opened, or would not fit in memory.
    ConfigError : a value that is not allowed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        context: ContextConfig | None = None,
        draft: DraftConfig | None = None,
        n_gpu_layers: int = 0,
        rpc: str | Sequence[str] = (),
        progress: Callable[[str], None] = lambda line: None,
        idle_unload_s: float | None = None,
    ) -> None:
        self.idle = Idle(idle_unload_s, self._unload, self._load)
        self._kept: KeptCells | None = None
        self.turns = Turns(lambda: self.decoder.cancel(), self.idle.used)
        self.has_learned = False
        self._latest: Callable[[], Answer | None] = lambda: None
        context, draft = context or ContextConfig(), draft or DraftConfig()
        if n_gpu_layers == 0 or not (rpc or has_gpu()):
            require_fit(inspect(path), context, draft)
        may_unload = idle_unload_s is not None
        self.model = Model(path, n_gpu_layers=n_gpu_layers, rpc=rpc, may_unload=may_unload)
        try:
            self.target: LlamaTarget
            self.target, line = open_target(self.model, context, draft, progress)
        except BaseException:
            self.model.close()
            raise
        try:
            super().__init__(
                self.target,
                draft,
                self.model.fingerprint(),
                plain_reason=self.target.plain_reason and (line or self.target.plain_reason),
                notice="" if self.target.plain_reason else line,
                progress=progress,
            )
            self.stop_tokens = self.model.stop_tokens()
            self._mark_prompts()
            if n_gpu_layers and not rpc and (blind := unused_backends()):
                self.notices.insert(0, blind)
        except BaseException:
            self.close()
            raise
        self.idle.watch()

    def _mark_prompts(self) -> None:
        if has_state(self.model):
            self.decoder.mark_with(RecurrentState(self.target))

    def _unload(self) -> None:
        self._kept = KeptCells(self.decoder, self.target)
        self._mark_prompts()
        self.target.close()
        self.model.unload()
        logger.info("the model is unloaded")

    def _load(self) -> None:
        try:
            self.model.load()
            self.target.open_again()
        except BaseException:
            self.model.unload()
            raise
        if self._kept is not None:
            self._kept.put_back(self.decoder, self.target)
        logger.info("the model is loaded again")

    @property
    def stats(self) -> Stats:
        """Counts and seconds of the last generation."""
        return self.decoder.stats

    def prompt_tokens(self, text: str, *, chat: bool = True) -> Int32:
        """Token ids of a prompt, int32[n].

        Parameters
        ----------
        text : what the user wrote.
        chat : wrap it in the model's chat template as one user message; a model without a
            template gets the plain text.
        """
        if chat:
            return self.model.chat_tokens(text)
        return self.model.tokenize(text, parse_special=False)

    def answer(self, prompt: Sequence[int] | Int32, config: AnswerConfig | None = None) -> Answer:
        """An answer that is not generated yet; iterating over it does that.

        Raises
        ------
        ConfigError, PromptTooLongError : see ``Answer``.
        """
        answer = Answer(self, prompt, config or AnswerConfig())
        self._latest = weakref.ref(answer)
        return answer

    def stream(
        self,
        prompt: Sequence[int] | Int32,
        *,
        max_tokens: int | None = None,
        sampling: SamplingConfig | None = None,
    ) -> Iterator[str]:
        """Generate and yield the text as it comes; a character is never cut in two, and one that
        the limit cuts is left out.

        Raises
        ------
        ConfigError, PromptTooLongError : at once.
        DecodeError, CancelledError : while iterating.
        """
        config = AnswerConfig(max_tokens=max_tokens, sampling=sampling or SamplingConfig())
        return (piece.text for piece in self.answer(prompt, config) if piece.text)

    def cancel(self) -> None:
        """Make the answer that is being generated raise CancelledError soon; from any thread. Where
        none is, the one that was asked for last ends as soon as it begins."""
        latest = self._latest()
        if not self.turns.cancel() and latest is not None:
            latest.cancel()

    def close(self) -> None:
        """Stop what runs, and free the context and the model; closing twice does no harm."""
        if self.turns.is_forked or not self.turns.close():
            return
        self.idle.close()
        if self._kept is not None:
            self._kept.close()
        self.target.close()
        self.model.close()
