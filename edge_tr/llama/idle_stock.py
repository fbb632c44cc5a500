"""The drop-in ``Llama`` while its model is unloaded.

The stock class asks its model for tokens and texts at any time: those come from the vocabulary
alone, which is read apart and stays. Whatever asks for the context has the model loaded again.
"""

from __future__ import annotations

from typing import Any

from llama_cpp import _internals

from edge_tr.errors import ConfigError, ModelLoadError
from edge_tr.llama.kept_cells import KeptCells
from edge_tr.llama.library import lib


class _Context:
    """In place of the stock class's context: it is there in every call."""

    def __init__(self, natives: Natives) -> None:
        self._natives = natives

    def __getattr__(self, name: str) -> Any:
        natives = self._natives
        with natives.used():
            found = getattr(natives.context, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            with natives.used():
                return getattr(natives.context, name)(*arguments, **options)

        return call


class Natives:
    """What is freed and made again of an open ``Llama``.

    Parameters
    ----------
    llm : open, with a decoder; its model and context are replaced.

    Raises
    ------
    ConfigError : it was opened in a way that cannot be unloaded.
    """

    def __init__(self, llm: Any) -> None:
        if llm._decoder is None or llm.context_params.embeddings or llm.lora_path:
            raise ConfigError(
                "idle_unload_s is not for embeddings, vocab_only, encoders and LoRA adapters",
                field="idle_unload_s",
            )
        self.used = llm._idle.used
        self._kept: KeptCells | None = None
        params = lib.llama_model_default_params()
        params.vocab_only = True
        self._words = _internals.LlamaModel(
            path_model=llm.model_path, params=params, verbose=llm.verbose
        )
        self._pointer = self._words.model
        llm._model.vocab = self._words.vocab
        self.context = llm._ctx
        llm._ctx = _Context(self)

    def unload(self, llm: Any) -> None:
        """Free context and weights; the text in the cache is put aside."""
        self._kept = KeptCells(llm._decoder, llm._target)
        llm._target.forget()
        self.context.close()
        lib.llama_model_free(llm._model.model)
        self._hand_over(llm, self._pointer)

    def _hand_over(self, llm: Any, model: Any) -> None:
        """Have the stock class use and free a model; one object at a time frees the vocabulary."""
        llm._model.model = model
        self._words.model = None if model is self._pointer else self._pointer

    def load(self, llm: Any) -> None:
        """Make them again.

        Raises
        ------
        ModelLoadError : there is no memory for them, or the file is gone.
        """
        pointer: Any = lib.llama_model_load_from_file(llm.model_path.encode(), llm.model_params)
        if not pointer:
            raise ModelLoadError(f"llama.cpp could not load {llm.model_path} again")
        self._hand_over(llm, pointer)
        try:
            self.context = _internals.LlamaContext(
                model=llm._model, params=llm.context_params, verbose=llm.verbose
            )
        except ValueError as error:
            lib.llama_model_free(pointer)
            self._hand_over(llm, self._pointer)
            raise ModelLoadError(f"{llm.model_path} cannot be opened again: {error}") from None
        llm._target.attach(self.context.ctx)
        if self._kept is not None:
            self._kept.put_back(llm._decoder, llm._target)

    def close(self) -> None:
        """Free what this object holds, before the stock class frees the rest."""
        if self._kept is not None:
            self._kept.close()
        self.context.close()
        self._words.close()
