"""The drop-in ``Llama``: everything of ``llama_cpp.Llama``, with drafting inside."""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import os
import sys
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import llama_cpp
import numpy as np

from ..aio import iterate
from ..config import DraftConfig
from ..engine import Engine
from ..errors import (
    CancelledError,
    ContextFullError,
    MatrixFileError,
    ModelError,
    ModelUnsupportedError,
)
from ..generate import Decoder
from ..rows import RecentRows, RowsView
from ..stats import Stats
from ..tree import TreeTemplate
from ..turns import Turns
from . import context
from .draws import Draws
from .logprobs import Logprobs
from .model_draft import ModelDrafter

logger = logging.getLogger("edge_tr")

_GENERATE = inspect.signature(llama_cpp.Llama.generate)

_opened: weakref.WeakSet[Llama] = weakref.WeakSet()


class Llama(llama_cpp.Llama):  # type: ignore[misc]
    """``llama_cpp.Llama``, faster: it drafts tokens and verifies many of them in one call.

    Every argument, method and result is that of the stock class; the text is the same. Threads
    may share one object, their calls run one after the other. An open model cannot be copied,
    or used in a fork of the process; pickling opens it anew, as with the stock class.

    Parameters
    ----------
    model_path : the GGUF file.
    speculative : "auto" drafts as many tokens as pay on this machine (what decode steps cost here
        is measured for some seconds the first time), "off" decodes plainly, a ``TreeTemplate`` or
        a list of rank paths drafts that tree at every step.
    exact : draft only with batch widths whose logits are bit-equal to those of plain decoding.
    matrix_path : file of what was learned, read now and written by ``close()`` and at exit; None =
        the file of this tokenizer (and LoRA adapter) among edge_tr's data, False = keep nothing.
    **options : the arguments of ``llama_cpp.Llama``. A name that it does not know gives a warning.

    Attributes
    ----------
    notices : why drafting is off, why a matrix was not loaded; logged as warnings too.

    Raises
    ------
    ValueError, RuntimeError : as the stock class.
    ConfigError, MatrixFileError : a value of edge_tr's own is not allowed; ``matrix_path`` cannot
        be read.
    """

    def __init__(
        self,
        model_path: str,
        *,
        speculative: Literal["auto", "off"] | TreeTemplate | Iterable[Sequence[int]] = "auto",
        exact: bool = False,
        matrix_path: str | os.PathLike[str] | Literal[False] | None = None,
        **options: Any,
    ) -> None:
        self._turns = Turns(self._interrupt)
        self._engine: Engine | None = None
        self._decoder: Decoder | None = None
        self._target: context.OwnTarget | None = None
        self._budget: int | None = None
        self._logprobs: Logprobs | None = None
        self._steps: Iterator[list[int]] | None = None
        self._has_learned = False
        self.notices: list[str] = []
        for name in sorted(options.keys() - context.STOCK_ARGUMENTS.keys()):
            warnings.warn(
                f"Llama has no argument {name!r}; llama_cpp.Llama ignores it without a word",
                stacklevel=2,
            )
            del options[name]
        if not isinstance(speculative, (str, TreeTemplate)):
            speculative = TreeTemplate(speculative)
        self._own: dict[str, Any] = {
            "speculative": speculative,
            "exact": exact,
            "matrix_path": matrix_path,
        }
        draft = _draft_config(**self._own)
        wanted = context.STOCK_ARGUMENTS | options
        try:
            if context.keeps_stock_context(wanted):
                super().__init__(model_path, **options)
            else:
                super().__init__(model_path, **options | context.small_context(wanted))
            self._open(wanted, draft)
        except BaseException:
            self.close()
            raise
        _opened.add(self)

    def _open(self, options: dict[str, Any], draft: DraftConfig) -> None:
        """Give the model a context with lanes, and the decoder that uses them."""
        self._kind, reason = context.kind_of(self)
        if options["embedding"]:
            reason = "drafting is off: the model was opened for embeddings"
        if not context.keeps_stock_context(options):
            tree = draft.speculative
            n_lanes = max(tree.n_leaves, 2) if isinstance(tree, TreeTemplate) else 64
            plain = bool(reason) or tree == "off"
            context.replace_context(self, options, 1 if plain else n_lanes)
        if options["vocab_only"] or self._ctx.memory is None or self._kind == "unsupported":
            return
        self._target = target = context.OwnTarget(self, reason)
        engine = Engine(
            target,
            draft,
            context.matrix_identity(self),
            plain_reason=reason,
            drafter=self._users_drafter(target),
            progress=self._tell,
        )
        self._engine, self._decoder = engine, engine.decoder
        self._max_width = engine.decoder.max_width
        self.input_ids = engine.decoder.buffer
        n_rows = target.n_ctx if self._logits_all else 1
        self.scores = RowsView(RecentRows(target.n_vocab, n_rows), target.n_ctx)
        for notice in engine.notices:
            self._notice(notice)

    def _users_drafter(self, target: context.OwnTarget) -> ModelDrafter | None:
        if self.draft_model is None:
            return None
        return ModelDrafter(self.draft_model, n_vocab=target.n_vocab, n_ctx=target.n_ctx)

    def _tell(self, line: str) -> None:
        if self.verbose:
            print(f"edge_tr: {line}", file=sys.stderr)

    def _notice(self, line: str) -> None:
        """Say something once."""
        if line not in self.notices:
            self.notices.append(line)
            logger.warning("%s", line)

    @property
    def _scores(self) -> Any:
        return super()._scores if self._decoder is None else self.scores.first(self.n_tokens)

    @property
    def stats(self) -> Stats:
        """Counts and seconds of the last call."""
        return self._decoder.stats if self._decoder is not None else Stats()

    def cancel(self) -> None:
        """Make the call or stream that is running raise CancelledError soon, in prefill too; from
        any thread. The object stays usable. Nothing happens where nothing runs."""
        self._turns.cancel()

    def _interrupt(self) -> None:
        if self._decoder is not None:
            self._decoder.cancel()

    # The text in the cache

    def _sync(self, decoder: Decoder) -> None:
        """Bring the decoder to ``n_tokens`` and ``input_ids``, which anyone may have changed."""
        if self.input_ids is not decoder.buffer:
            n = min(len(self.input_ids), len(decoder.buffer))
            decoder.buffer[:n] = self.input_ids[:n]
            self.input_ids = decoder.buffer
        if self.n_tokens > decoder.n_tokens:
            decoder.adopt(self.n_tokens)
            if decoder.drafter is not None:
                self._notice("drafting is off for a text whose cells something else wrote")
                decoder.max_width = 1
        elif self.n_tokens < decoder.n_past:
            decoder.hold(self.n_tokens)

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
            self._decoder.max_width = self._max_width

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

    # Generating

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
        stopping_criteria: Callable[[Any, Any], bool] | None,
        **options: Any,
    ) -> Generator[int, Any, None]:
        budget, self._budget = self._budget, None
        logprobs, self._logprobs = self._logprobs, None
        self._sync(decoder)
        text = list(tokens) if reset else [*self._input_ids.tolist(), *tokens]
        if logprobs is not None:
            logprobs.begin(list(tokens))
            if logprobs.echo:
                decoder.hold(0)
        keep_rows = self._logits_all or stopping_criteria is not None
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
                    if stopping_criteria and stopping_criteria(self._input_ids, draws.row):
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
                if self._steps is steps and self._turns.is_usable:
                    decoder.finish()
            budget = None  # it goes on to the end of a character that the limit cuts

    def _create_completion(self, **options: Any) -> Generator[Any, Any, None]:
        return self._turns.stream(self._complete(options))

    def _complete(self, options: dict[str, Any]) -> Generator[Any, Any, None]:
        """The stock class's completion, told to ``generate`` what it does not tell."""
        logprobs: Logprobs | None = None
        if options["logprobs"] is not None and self._logits_all and not options["stream"]:
            logprobs = Logprobs(self, options["logprobs"], echo=options["echo"])
            options = options | {"logprobs": None}
        self._budget = options["max_tokens"] if options["max_tokens"] > 0 else None
        self._logprobs = logprobs
        try:
            for item in super()._create_completion(**options):
                if logprobs is not None:
                    item["choices"][0]["logprobs"] = logprobs.result(options["prompt"])
                yield item
        finally:
            self._budget = self._logprobs = None

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

    # The end, and what must not happen to an open model

    def save_matrix(self) -> Path | None:
        """Write what was learned to its file now; None where nothing is kept.

        Raises
        ------
        MatrixFileError : the file cannot be written; an older one is left as it was.
        """
        if self._engine is None or self._own["matrix_path"] is False:
            return None
        with self._turns.run():
            return self._engine.save_matrix()

    def close(self) -> None:
        """Stop what runs, keep what was learned, free the model; closing twice does no harm."""
        if not hasattr(self, "_turns") or not hasattr(self, "_stack"):
            return  # the constructor failed before it had anything to free
        if self._turns.is_forked:
            _let_go(self)
            return
        if not self._turns.close():
            return
        if self._has_learned and self._engine is not None and self._own["matrix_path"] is not False:
            try:
                self._engine.save_matrix()
            except MatrixFileError as error:
                logger.warning("%s", error)
        if self._target is not None:
            self._target.forget()
        super().close()
        closed = _Closed()
        self._model = self._ctx = self._batch = self.tokenizer_ = closed

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__() | self._own
        return state

    def __copy__(self) -> Llama:
        raise ModelError("an open model cannot be copied; open it again, or pickle it")

    def __deepcopy__(self, _memo: object) -> Llama:
        return self.__copy__()


class _Closed:
    """Stands for what a closed model had."""

    def __getattr__(self, name: str) -> Any:
        raise ModelError("the model is closed; open it again")


def _let_go(llm: Llama) -> None:
    """Free nothing in a forked process: threads and devices that it lacks would be waited for."""
    for owner in (llm._model, llm._ctx, llm._batch):
        owner._exit_stack.pop_all()
    llm._stack.pop_all()


@atexit.register
def _close_all() -> None:
    for llm in list(_opened):
        llm.close()


def _draft_config(
    speculative: Any, exact: bool, matrix_path: str | os.PathLike[str] | Literal[False] | None
) -> DraftConfig:
    return DraftConfig(
        speculative=speculative,
        k=max(DraftConfig.k, speculative.n_ranks if isinstance(speculative, TreeTemplate) else 0),
        start="empty" if matrix_path is False else "inherited",
        matrix_path=Path(matrix_path) if matrix_path else None,
        exact=exact,
    )
