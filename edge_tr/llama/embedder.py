"""Embeddings: a context of its own over a model's file, opened on first use."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import llama_cpp

from edge_tr.errors import CancelledError, ConfigError, ModelLoadError
from edge_tr.gguf_file.info import inspect
from edge_tr.idle import Idle

_MAX_TOKENS = 2048
"""Most tokens of one text; the context takes memory for them."""


class Embedder:
    """Turns texts into vectors of length 1.

    Parameters
    ----------
    path : the GGUF file; an encoder or a model that generates text.
    n_threads, n_gpu_layers, idle_unload_s : as for generation.

    Raises
    ------
    ModelFileError : it is missing, damaged or no GGUF file.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_threads: int | None = None,
        n_gpu_layers: int = 0,
        idle_unload_s: float | None = None,
    ) -> None:
        self._path = path
        self._info = inspect(path)
        threads = {"n_threads": n_threads, "n_threads_batch": n_threads}
        self._options = {"n_gpu_layers": n_gpu_layers, **threads}
        self._llm: Any = None
        self._lock = threading.Lock()
        self._is_cancelled = False
        self.idle = Idle(idle_unload_s, self._unload, self._prepare)
        self.idle.watch()

    def embed(self, texts: list[str] | list[list[int]]) -> tuple[list[list[float]], int]:
        """The vector of each text, and the number of tokens read.

        Raises
        ------
        ConfigError : a text is empty or too long.
        ModelLoadError : the model cannot be opened for embeddings.
        """
        with self.idle.used(), self._lock:
            llm = self._open()
            self._is_cancelled = False
            given = [
                llm._model.tokenize(text.encode("utf-8", "replace"), True, False)
                if isinstance(text, str)
                else text
                for text in texts
            ]
            for i, tokens in enumerate(given):
                if not 1 <= len(tokens) <= llm.n_batch:
                    raise ConfigError(
                        f"text {i} has {len(tokens)} tokens; it must have 1 to {llm.n_batch}"
                    )
                wrong = [token for token in tokens if not 0 <= token < llm.n_vocab()]
                if wrong:
                    raise ConfigError(f"token {wrong[0]} of text {i} is not in the vocabulary")
            vectors = []
            for tokens in given:
                if self._is_cancelled:
                    raise CancelledError("the request was cancelled")
                llm.tokenize = lambda _text, tokens=tokens: (
                    tokens
                )  # the stock class reads text only
                vectors.append(llm.embed("", normalize=True))
        return vectors, sum(map(len, given))

    def cancel(self) -> None:
        """Make what runs raise CancelledError after the text that is being read."""
        self._is_cancelled = True

    def _open(self) -> Any:
        if self._llm is None:
            info = self._info
            n_ctx = min(info.n_ctx_train or _MAX_TOKENS, _MAX_TOKENS)
            is_encoder = info.kind == "unsupported"
            try:
                self._llm = llama_cpp.Llama(
                    str(self._path),
                    embedding=True,
                    n_ctx=n_ctx,
                    n_batch=n_ctx,
                    n_ubatch=n_ctx,
                    pooling_type=-1 if is_encoder else llama_cpp.LLAMA_POOLING_TYPE_MEAN,
                    verbose=False,
                    **self._options,
                )
            except ValueError as error:
                raise ModelLoadError(f"{self._path} gives no embeddings: {error}") from None
        return self._llm

    def _unload(self) -> None:
        if self._llm is not None:
            self._llm.close()
            self._llm = None

    def _prepare(self) -> None:
        """Nothing: the next use opens it."""

    def close(self) -> None:
        """Free the model, where one is open."""
        self.idle.close()
        with self._lock:
            self._unload()
