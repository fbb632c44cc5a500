"""An open model that answers prompts: model, context, matrix and decoder in one object."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence

from edge_tr.answer import Answer, AnswerConfig
from edge_tr.config import ContextConfig, DraftConfig, SamplingConfig
from edge_tr.drafting import Drafting
from edge_tr.files.closing import Closing
from edge_tr.llama.hybrids import open_target
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.llama.turns import Turns
from edge_tr.stats import Stats
from edge_tr.target import Int32


class Session(Drafting, Closing):
    """A model opened for text generation; threads may share it, their answers take turns.

    Parameters
    ----------
    path : the GGUF file.
    context, draft : see ``ContextConfig`` and ``DraftConfig``.
    n_gpu_layers, rpc : layers on the GPU, -1 = all, and RPC servers that take some; see ``Model``.
    progress : called with a line before something that takes seconds.

    Attributes
    ----------
    model, target : the open model and its context; see ``Drafting`` for the others.
    stop_tokens : ids that end a text.
    turns : whose turn it is to generate.
    has_learned : whether an answer taught the drafter something.

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
        rpc: str | Sequence[str] = (),
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.turns = Turns(lambda: self.decoder.cancel())
        self.has_learned = False
        self._latest: Callable[[], Answer | None] = lambda: None
        self.model = Model(path, n_gpu_layers=n_gpu_layers, rpc=rpc)
        draft = draft or DraftConfig()
        try:
            self.target: LlamaTarget
            self.target, line = open_target(self.model, context or ContextConfig(), draft, progress)
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
        except BaseException:
            self.close()
            raise

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
        self.target.close()
        self.model.close()
