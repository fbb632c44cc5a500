"""An open model that answers prompts: model, context, matrix and decoder in one object."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator, Sequence

from edge_tr.config import DraftConfig, SamplingConfig
from edge_tr.drafting import Drafting
from edge_tr.files.closing import Closing
from edge_tr.llama.model import Model
from edge_tr.llama.sampler import LlamaSampler
from edge_tr.llama.target import ContextConfig, LlamaTarget
from edge_tr.stats import Stats
from edge_tr.target import Int32


class Session(Drafting, Closing):
    """A model opened for text generation.

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
        self.model = Model(path, n_gpu_layers=n_gpu_layers, rpc=rpc)
        try:
            self.target: LlamaTarget = LlamaTarget(self.model, context or ContextConfig())
        except BaseException:
            self.model.close()
            raise
        try:
            super().__init__(
                self.target,
                draft or DraftConfig(),
                self.model.fingerprint(),
                plain_reason=self.target.plain_reason,
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
            tokens = self.model.chat_tokens([{"role": "user", "content": text}])
            if tokens is not None:
                return tokens
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

    def cancel(self) -> None:
        """Make the running generation raise CancelledError soon; from any thread."""
        self.decoder.cancel()

    def close(self) -> None:
        """Free the context and the model."""
        self.target.close()
        self.model.close()
