"""Embeddings: a context of its own over a model's file, opened on first use."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import llama_cpp

from edge_tr.errors import ConfigError, ModelLoadError
from edge_tr.gguf_file.info import inspect

_MAX_TOKENS = 2048
"""Most tokens of one text; the context takes memory for them."""


class Embedder:
    """Turns texts into vectors of length 1.

    Parameters
    ----------
    path : the GGUF file; an encoder or a model that generates text.
    n_threads, n_gpu_layers : as for generation.

    Raises
    ------
    ModelFileError : it is missing, damaged or no GGUF file.
    """

    def __init__(self, path: Path, *, n_threads: int | None = None, n_gpu_layers: int = 0) -> None:
        self._path = path
        self._info = inspect(path)
        threads = {"n_threads": n_threads, "n_threads_batch": n_threads}
        self._options = {"n_gpu_layers": n_gpu_layers, **threads}
        self._llm: Any = None
        self._lock = threading.Lock()

    def embed(self, texts: list[str]) -> tuple[list[list[float]], int]:
        """The vector of each text, and the number of tokens read.

        Raises
        ------
        ConfigError : a text is empty or too long.
        ModelLoadError : the model cannot be opened for embeddings.
        """
        with self._lock:
            llm = self._open()
            n_tokens = [len(llm.tokenize(text.encode("utf-8", "replace"))) for text in texts]
            for i, n in enumerate(n_tokens):
                if not 1 <= n <= llm.n_batch:
                    raise ConfigError(f"text {i} has {n} tokens; it must have 1 to {llm.n_batch}")
            vectors = [llm.embed(text, normalize=True) for text in texts]
        return vectors, sum(n_tokens)

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

    def close(self) -> None:
        """Free the model, where one is open."""
        with self._lock:
            if self._llm is not None:
                self._llm.close()
                self._llm = None
