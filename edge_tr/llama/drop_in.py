"""The drop-in ``Llama``: everything of ``llama_cpp.Llama``, with drafting inside."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from typing import Any

import llama_cpp
import numpy as np

from edge_tr.decode.decoder import Decoder
from edge_tr.errors import CancelledError, ConfigError, ContextFullError, ModelUnsupportedError
from edge_tr.llama import context
from edge_tr.llama.aio import iterate
from edge_tr.llama.completion import Completion, Criteria, Told
from edge_tr.llama.draws import Draws
from edge_tr.llama.logprobs import Logprobs
from edge_tr.llama.opened import OpenedLlama
from edge_tr.llama.vocabulary import has_words
from edge_tr.stats import Stats

_GENERATE = inspect.signature(llama_cpp.Llama.generate)


class Llama(OpenedLlama):
    """``llama_cpp.Llama``, faster: it drafts tokens and verifies many of them in one call.

    Every argument, method and result is that of the stock class; the text is the same. Threads
    may share one object, their calls run one after the other. An open model cannot be copied,
    or used in a fork of the process; pickling opens it anew, as with the stock class.

    Parameters
    ----------
    model_path : the GGUF file.
    speculative : "auto" drafts as many tokens as pay on this machine (what decode steps cost here
        is measured for about a second the first time), "off" decodes plainly, a ``TreeTemplate`` or
        a list of rank paths drafts that tree at every step.
    exact : draft only with batch widths whose logits are bit-equal to those of plain decoding.
    matrix_path : file of what was learned, read now and written by ``close()`` and at exit; None =
        the file of this tokenizer (and LoRA adapter) among edge_tr's data, False = keep nothing.
    n_history : tokens of earlier prompts and answers to keep in memory and draft from; 0 = none.
    history_path : file in which they are kept from run to run, read now and written as
        ``matrix_path``; None = they end with the process. It holds texts.
    rpc_servers : servers of llama.cpp's RPC back end that take layers too, a list of ``host:port``
        or a text with commas; ``n_gpu_layers`` counts their layers and must not be 0.
    idle_unload_s : seconds without a call after which the model's memory is given back; the next
        call opens it again, with what was learned and the text in the cache.
    **options : the arguments of ``llama_cpp.Llama``. A name that it does not know gives a warning.

    Attributes
    ----------
    notices : why drafting is off, why a matrix was not loaded; logged as warnings too.

    Raises
    ------
    ValueError, RuntimeError : as the stock class.
    ConfigError, MatrixFileError : a value of edge_tr's own is not allowed; ``matrix_path`` or
        ``history_path`` cannot be read.
    """

    _steps: Iterator[list[int]] | None = None
    """The generation that has the cache."""
    _n_own = 0
    """Tokens of the text before the first whose cell something else wrote; 0 = there is none."""

    @property
    def _scores(self) -> Any:
        return super()._scores if self._decoder is None else self.scores.first(self.n_tokens)

    def _sync(self, decoder: Decoder) -> None:
        """Bring the decoder to ``n_tokens`` and ``input_ids``, which anyone may have changed."""
        if self.input_ids is not decoder.buffer:
            n = min(len(self.input_ids), len(decoder.buffer))
            decoder.buffer[:n] = self.input_ids[:n]
            self.input_ids = decoder.buffer
        if self.n_tokens > decoder.n_tokens:
            if decoder.drafter is not None:
                self._notice("drafting is off for a text whose cells something else wrote")
                self._n_own = self._n_own or max(1, decoder.n_tokens)
                decoder.max_width = 1
            decoder.adopt(self.n_tokens)
        elif self.n_tokens < decoder.n_past:
            decoder.hold(self.n_tokens)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """As the stock class's, with an error where llama.cpp aborts: a model without words."""
        self._require_words()
        tokens: list[int] = super().tokenize(text, add_bos, special)
        return tokens

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """As the stock class's, with an error where llama.cpp aborts: a model without words."""
        self._require_words()
        text: bytes = super().detokenize(tokens, prev_tokens, special)
        return text

    def _require_words(self) -> None:
        if not has_words(self._model.vocab):
            raise ConfigError(f"{self.model_path} has no tokenizer; its tokens have no text")

    def reset(self) -> None:
        """Forget the text."""
        if self._decoder is None:
            super().reset()
            return
        with self._turns.run():
            self._steps = None
            self.n_tokens = 0
            self._requires_eval = True
            self._decoder.hold(0)
            self._draft_again(self._decoder)

    def _draft_again(self, decoder: Decoder) -> None:
        """Every cell will be the decoder's own."""
        self._n_own = 0
        decoder.max_width = self._max_width

    def eval(self, tokens: Sequence[int]) -> None:
        """Read tokens behind the text so far."""
        if self._decoder is None:
            super().eval(tokens)
            return
        with self._turns.run():
            self._steps = None
            self._sync(self._decoder)
            if len(tokens) > 0:
                text = np.concatenate((self._input_ids, np.asarray(tokens, dtype=np.int32)))
                try:
                    self._decoder.read(
                        text, rows=self.scores.kept.put if self._logits_all else None
                    )
                finally:
                    self.n_tokens = self._decoder.n_past
                self._requires_eval = False

    def save_state(self) -> Any:
        """The text and its cells; the stock class can load it too."""
        with self._turns.run():
            if self._decoder is not None:
                self._sync(self._decoder)
                self._decoder.hold(self.n_tokens)
            return super().save_state()

    def load_state(self, state: Any) -> None:
        """Go back to a saved state, of this class or the stock one.

        Raises
        ------
        ValueError : its text is longer than the context.
        RuntimeError : llama.cpp refused it; the object is then empty.
        """
        if self._decoder is None:
            super().load_state(state)
            return
        n_tokens = state.n_tokens
        with self._turns.run():
            if n_tokens > len(self.input_ids):
                raise ValueError(
                    f"the state holds {n_tokens} tokens; the context has {len(self.input_ids)}"
                )
            self.reset()
            context.read_state(self, state.llama_state[: state.llama_state_size])
            self.input_ids[:n_tokens] = state.input_ids[:n_tokens]
            self.n_tokens = n_tokens
            self._seed = state.seed
            if self._logits_all and state.scores.shape == (n_tokens, self._n_vocab):
                self.scores.kept.put(0, state.scores)
            self._decoder.adopt(n_tokens)

    def generate(
        self, tokens: Sequence[int], *args: Any, **kwargs: Any
    ) -> Generator[int, Any, None]:
        """Tokens that follow a prompt, one by one, past the end of the text too.

        Takes the arguments of ``llama_cpp.Llama.generate``. ``stats`` count as they come.
        """
        bound = _GENERATE.bind(self, tokens, *args, **kwargs)
        bound.apply_defaults()
        options = bound.arguments
        del options["self"]
        if self._decoder is None:
            raise ModelUnsupportedError(context.kind_of(self)[1] or "the model writes no text")
        return self._turns.stream(self._generate(self._decoder, **options))

    def _generate(
        self,
        decoder: Decoder,
        tokens: Sequence[int],
        reset: bool,
        stopping_criteria: Criteria | Told | None,
        **options: Any,
    ) -> Generator[int, Any, None]:
        told = stopping_criteria if isinstance(stopping_criteria, Told) else Told(stopping_criteria)
        criteria, budget, logprobs = told.criteria, told.budget, told.logprobs
        self._sync(decoder)
        text = list(tokens) if reset else [*self._input_ids.tolist(), *tokens]
        n_own = self._n_own
        if n_own and text[: n_own + 1] != self.input_ids[: n_own + 1].tolist():
            self._draft_again(decoder)
        if logprobs is not None:
            logprobs.begin(list(tokens))
            if logprobs.echo:
                decoder.hold(0)
        keep_rows = self._logits_all or criteria is not None
        draws = Draws(self, options, keep_rows=keep_rows, logprobs=logprobs)
        rows = draws.prompt_rows if self._logits_all else None
        self._has_learned = decoder.drafter is not None and self.draft_model is None
        stats: Stats | None = None
        while True:
            steps = self._steps = decoder.generate(
                text, max_tokens=budget, sampler=draws, one_by_one=True, rows=rows, stats=stats
            )
            stats = decoder.stats
            if self._turns.cancelled:
                raise CancelledError("the generation was cancelled")
            try:
                for (token,) in steps:
                    if criteria and criteria(self._input_ids, draws.row):
                        return
                    text.append(token)
                    if logprobs is not None:
                        logprobs.completion.append(token)
                    yield token  # what is sent back is a draft to the stock class: no change
                    if self._steps is not steps:
                        break  # another call took the cache; read the text again
                else:
                    if budget is None:
                        raise ContextFullError(f"the context of {self._n_ctx} tokens is full")
            except Exception:
                self.n_tokens = decoder.n_past
                raise
            finally:
                if self._steps is steps:
                    self._steps = None
                    if self._turns.is_usable:
                        decoder.finish()
            budget = None  # it goes on to the end of a character that the limit cuts

    def _create_completion(self, **options: Any) -> Generator[Any, Any, None]:
        return self._turns.stream(self._complete(options))

    def _complete(self, options: dict[str, Any]) -> Generator[Any, Any, None]:
        """The stock class's completion; see ``Completion``."""
        logprobs: Logprobs | None = None
        if options["logprobs"] is not None and self._logits_all and not options["stream"]:
            logprobs = Logprobs(self, options["logprobs"], echo=options["echo"])
            options = options | {"logprobs": None}
        budget = options["max_tokens"] if options["max_tokens"] > 0 else None
        stock: Any = super()._create_completion
        for item in stock.__func__(Completion(self, budget, logprobs), **options):
            if logprobs is not None:
                item["choices"][0]["logprobs"] = logprobs.result(options["prompt"])
            yield item

    def stream_completion(self, prompt: str | list[int], **options: Any) -> AsyncIterator[Any]:
        """Chunks of ``create_completion(stream=True)`` for ``async for``; the event loop goes on
        meanwhile, and a task that is cancelled cancels the generation."""
        start = functools.partial(self.create_completion, prompt, **options | {"stream": True})
        return iterate(start, self._turns.cancel)

    def stream_chat_completion(self, messages: list[Any], **options: Any) -> AsyncIterator[Any]:
        """Chunks of ``create_chat_completion(stream=True)`` for ``async for``, in the same way."""
        start = functools.partial(
            self.create_chat_completion, messages, **options | {"stream": True}
        )
        return iterate(start, self._turns.cancel)
