"""How the drop-in ``Llama`` is opened and closed, and who may use it meanwhile."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import warnings
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import llama_cpp

from edge_tr.config import DraftConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.drafting import Drafting
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import ConfigError, MatrixFileError, ModelError
from edge_tr.idle import Idle
from edge_tr.llama import context
from edge_tr.llama.devices import unused_backends
from edge_tr.llama.drafter_from_stock import ModelDrafter
from edge_tr.llama.idle_stock import Natives
from edge_tr.llama.kept_rows import RecentRows, RowsView
from edge_tr.llama.servers import Servers
from edge_tr.llama.turns import Turns
from edge_tr.llama.vocabulary import constraint_vocabulary
from edge_tr.stats import Stats

_Self = TypeVar("_Self", bound="OpenedLlama")

logger = logging.getLogger("edge_tr")

_opened: weakref.WeakSet[OpenedLlama] = weakref.WeakSet()


class OpenedLlama(llama_cpp.Llama):  # type: ignore[misc]
    """The stock class with a context that has lanes, and the decoder that uses them.

    See ``Llama`` for the parameters.
    """

    def __init__(
        self,
        model_path: str,
        *,
        speculative: Literal["auto", "off"] | TreeTemplate | Iterable[Sequence[int]] = "auto",
        exact: bool = False,
        matrix_path: str | os.PathLike[str] | Literal[False] | None = None,
        n_history: int = DraftConfig.n_history,
        history_path: str | os.PathLike[str] | None = None,
        rpc_servers: str | Sequence[str] | None = None,
        idle_unload_s: float | None = None,
        **options: Any,
    ) -> None:
        interrupt = weakref.WeakMethod(self._interrupt)  # a cycle would keep the model alive
        self._idle = Idle(idle_unload_s, self._unload, self._load)
        self._natives: Natives | None = None
        self._turns = Turns(lambda: (interrupt() or bool)(), self._idle.used)
        self._drafting: Drafting | None = None
        self._decoder: Decoder | None = None
        self._target: context.OwnTarget | None = None
        self._has_learned = False
        self.notices: list[str] = []
        for name in sorted(options.keys() - context.STOCK_ARGUMENTS.keys()):
            warnings.warn(
                f"Llama has no argument {name!r}; llama_cpp.Llama ignores it without a word",
                stacklevel=2,
            )
            del options[name]
        if not isinstance(speculative, (str, TreeTemplate)):
            if not isinstance(speculative, Iterable):
                raise ConfigError(
                    f"speculative {speculative!r} is not allowed; it must be 'auto', 'off', a "
                    "TreeTemplate or a list of rank paths"
                )
            speculative = TreeTemplate(speculative)
        if not isinstance(exact, bool):
            raise ConfigError(f"exact {exact!r} is not allowed; it must be True or False")
        self._own: dict[str, Any] = {
            "speculative": speculative,
            "exact": exact,
            "matrix_path": matrix_path,
            "n_history": n_history,
            "history_path": history_path,
        }
        draft = _draft_config(**self._own)
        wanted = context.STOCK_ARGUMENTS | options
        self._servers = Servers(rpc_servers or (), wanted["n_gpu_layers"])
        try:
            if context.keeps_stock_context(wanted):
                super().__init__(model_path, **options)
            else:
                super().__init__(model_path, **options | context.small_context(wanted))
            self._open(wanted, draft)
            if idle_unload_s is not None:
                self._natives = Natives(self)
                self._idle.watch()
        except BaseException:
            self.close()
            raise
        _opened.add(self)

    @property
    def is_unloaded(self) -> bool:
        """Whether the model's memory was given back; the next call opens it again."""
        return self._idle.is_asleep

    def _unload(self) -> None:
        assert self._natives is not None
        self._natives.unload(self)

    def _load(self) -> None:
        assert self._natives is not None
        self._natives.load(self)

    @functools.cached_property
    def constraint_vocabulary(self) -> Any:
        """The vocabulary for grammars, see ``constraint_vocabulary``."""
        return constraint_vocabulary(self._model.vocab)

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
        progress = functools.partial(_tell, self.verbose)
        target, line = context.open_target(self, options, draft, reason, progress)
        self._target = target
        drafting = Drafting(
            target,
            draft,
            context.matrix_identity(self),
            plain_reason=target.plain_reason and (line or target.plain_reason),
            notice="" if target.plain_reason else line,
            drafter=self._users_drafter(target),
            progress=progress,
        )
        self._drafting, self._decoder = drafting, drafting.decoder
        self._max_width = drafting.decoder.max_width
        self.input_ids = drafting.decoder.buffer
        n_rows = target.n_ctx if self._logits_all else 1
        self.scores = RowsView(RecentRows(target.n_vocab, n_rows), target.n_ctx)
        blind = options["n_gpu_layers"] and not self._servers.names and unused_backends()
        for notice in (*filter(None, [blind]), *drafting.notices):
            self._notice(notice)

    def _users_drafter(self, target: context.OwnTarget) -> ModelDrafter | None:
        if self.draft_model is None:
            return None
        return ModelDrafter(self.draft_model, n_vocab=target.n_vocab, n_ctx=target.n_ctx)

    def _notice(self, line: str) -> None:
        """Say something once."""
        if line not in self.notices:
            self.notices.append(line)
            logger.warning("%s", line)

    @property
    def model_params(self) -> Any:
        """How the stock class opens the model, with the devices of the RPC servers."""
        return self._model_params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        self._servers.write_to(params)
        self._model_params = params

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

    def save_matrix(self) -> Path | None:
        """Write what was learned to its file now; None where nothing is kept.

        Raises
        ------
        MatrixFileError : the file cannot be written; an older one is left as it was.
        """
        if self._drafting is None or self._own["matrix_path"] is False:
            return None
        with self._turns.run():
            return self._drafting.save_matrix()

    def close(self) -> None:
        """Stop what runs, keep what was learned, free the model; closing twice does no harm."""
        if not hasattr(self, "_servers"):
            return  # the constructor failed before it had anything to free
        if not hasattr(self, "_stack"):
            self._servers.close()
            return
        if self._turns.is_forked:
            _let_go(self)
            return
        if not self._turns.close():
            return
        if self._has_learned and self._drafting is not None:
            try:
                if self._own["matrix_path"] is False:
                    self._drafting.save_history()
                else:
                    self._drafting.save_matrix()
            except MatrixFileError as error:
                logger.warning("%s", error)
        if self._target is not None:
            self._target.forget()
        if self._natives is not None:
            self._natives.close()
        super().close()
        self._servers.close()
        closed = _Closed()
        self._model = self._ctx = self._batch = self.tokenizer_ = closed

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__() | self._own
        return state | {
            "rpc_servers": self._servers.names,
            "idle_unload_s": self._idle.idle_s,
        }

    def __copy__(self: _Self) -> _Self:
        raise ModelError("an open model cannot be copied; open it again, or pickle it")

    def __deepcopy__(self: _Self, _memo: object) -> _Self:
        return self.__copy__()


def _tell(verbose: bool, line: str) -> None:
    """Tell what takes long."""
    logger.info("%s", line)
    if verbose:
        print(f"edge_tr: {line}", file=sys.stderr)


class _Closed:
    """Stands for what a closed model had."""

    def __getattr__(self, name: str) -> Any:
        raise ModelError("the model is closed; open it again")


def _let_go(llm: OpenedLlama) -> None:
    """Free nothing in a forked process: threads and devices that it lacks would be waited for."""
    for owner in (llm._model, llm._ctx, llm._batch):
        owner._exit_stack.pop_all()
    llm._stack.pop_all()


@atexit.register
def _close_all() -> None:
    for llm in list(_opened):
        llm.close()


def _draft_config(
    *,
    speculative: Any,
    exact: bool,
    matrix_path: str | os.PathLike[str] | Literal[False] | None,
    n_history: int,
    history_path: str | os.PathLike[str] | None,
) -> DraftConfig:
    for name, path, also in (
        ("matrix_path", matrix_path, ", None or False"),
        ("history_path", history_path, " or None"),
    ):
        if not (
            path is None
            or isinstance(path, (str, os.PathLike))
            or (path is False and name == "matrix_path")
        ):
            raise ConfigError(f"{name} {path!r} is not allowed; it must be a path{also}")
    return DraftConfig(
        speculative=speculative,
        k=max(DraftConfig.k, speculative.n_ranks if isinstance(speculative, TreeTemplate) else 0),
        start="empty" if matrix_path is False else "inherited",
        matrix_path=Path(matrix_path) if matrix_path else None,
        n_history=n_history,
        history_path=Path(history_path) if history_path else None,
        exact=exact,
    )
