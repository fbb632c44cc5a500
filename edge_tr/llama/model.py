"""A GGUF model: load, tokenize, detokenize, describe."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr.chat.shield import Shield
from edge_tr.chat.template import ChatTemplate
from edge_tr.errors import ConfigError, ModelLoadError, ModelUnsupportedError
from edge_tr.files.closing import Closing
from edge_tr.gguf_file.info import GGUFInfo, inspect
from edge_tr.llama.library import forget_errors, init_backend, lib, recent_errors
from edge_tr.llama.servers import Servers
from edge_tr.llama.vocabulary import constraint_vocabulary, control_tokens, piece
from edge_tr.target import Int32


class Model(Closing):
    """An open GGUF model.

    Parameters
    ----------
    path : the file, or the first part of a split model.
    n_gpu_layers : layers to place on the GPU; -1 = all. Without a GPU back end it does nothing.
    use_mmap : map the file instead of reading it.
    rpc : RPC servers, ``host:port``, that take layers too; ``n_gpu_layers`` counts theirs.

    Raises
    ------
    ModelFileError, ModelUnsupportedError : before loading, see ``edge_tr.gguf_file.info.inspect``.
    ModelLoadError : llama.cpp refused the file or had no memory; the text quotes its log. Or an
        RPC server does not answer.
    ConfigError, NativeBuildError : see ``Servers``; ``n_gpu_layers`` below -1.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_gpu_layers: int = 0,
        use_mmap: bool = True,
        rpc: str | Sequence[str] = (),
    ) -> None:
        self.path = Path(path)
        self.info: GGUFInfo = inspect(self.path).require_text()
        if n_gpu_layers < -1:
            raise ConfigError(
                f"n_gpu_layers {n_gpu_layers} is not allowed; it must be -1 (all), 0 or more"
            )
        self.n_gpu_layers = n_gpu_layers
        init_backend()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0x7FFFFFFF if n_gpu_layers < 0 else n_gpu_layers
        if not use_mmap:
            params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        self._servers = Servers(rpc, n_gpu_layers)
        self.rpc = self._servers.names
        self._servers.write_to(params)
        forget_errors()
        self.pointer: Any = lib.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self.pointer:
            self._servers.close()
            raise ModelLoadError(f"llama.cpp could not load {self.path}: {recent_errors()}")
        self.vocab: Any = lib.llama_model_get_vocab(self.pointer)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self.vocab))
        self.n_ctx_train = int(lib.llama_model_n_ctx_train(self.pointer))
        if lib.llama_model_is_diffusion(self.pointer):
            self.close()
            raise ModelUnsupportedError(f"{self.path.name} is a diffusion model")
        self.plain_reason = self.info.reason or plain_reason(self.pointer, self.info.architecture)

    def close(self) -> None:
        """Free the model; contexts made from it must be closed first."""
        if self.pointer:
            lib.llama_model_free(self.pointer)
            self.pointer = None
            self._servers.close()

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> Int32:
        """Token ids of a text, int32[n].

        Parameters
        ----------
        add_special : put the model's begin-of-text token in front, where it has one.
        parse_special : read special tokens written in the text as such.
        """
        data = text.encode("utf-8", "surrogatepass")
        size = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * size)()
            n = lib.llama_tokenize(
                self.vocab, data, len(data), buffer, size, add_special, parse_special
            )
            if n >= 0:
                return np.array(buffer[:n], dtype=np.int32)
            if n == -(2**31):
                raise ConfigError(f"a text of {len(data)} bytes is too long to tokenize")
            size = -n

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token; they may end in the middle of a character."""
        return piece(self.vocab, token, special=special)

    def detokenize(self, tokens: Iterable[int], *, special: bool = False) -> bytes:
        """The bytes of several tokens."""
        return b"".join(self.piece(int(token), special=special) for token in tokens)

    def stop_tokens(self) -> frozenset[int]:
        """Ids that end a text: end of text, end of turn and their kind."""
        is_stop = lib.llama_vocab_is_eog
        return frozenset(t for t in range(self.n_vocab) if is_stop(self.vocab, t))

    @cached_property
    def constraint_vocabulary(self) -> Any:
        """The vocabulary for schemas and grammars, see ``constraint_vocabulary``."""
        return constraint_vocabulary(self.vocab)

    @cached_property
    def shield(self) -> Shield:
        """Keeps foreign text from becoming control tokens."""
        return Shield(control_tokens(self.vocab))

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own chat template, or None where it has none."""
        return chat_template(self.pointer)

    def chat_tokens(self, messages: list[dict[str, str]]) -> Int32 | None:
        """Token ids of the messages in the model's own chat template, int32[n]; None where it has
        none.

        Raises
        ------
        ConfigError : the template refuses the messages.
        """
        if self.chat_template is None:
            return None
        return self.tokenize(self.chat_template.render(messages), add_special=False)

    def fingerprint(self) -> str:
        """Identity of the tokenizer, see ``fingerprint``."""
        return fingerprint(self.vocab)


def chat_template(model: Any) -> ChatTemplate | None:
    """The chat template of a model of llama.cpp, or None where it has none.

    Raises
    ------
    ConfigError : it cannot be read.
    """
    source = lib.llama_model_chat_template(model, None)
    if not source:
        return None
    vocab = lib.llama_model_get_vocab(model)
    bos, eos = (
        "" if token < 0 else lib.llama_vocab_get_text(vocab, token).decode("utf-8", "replace")
        for token in (lib.llama_vocab_bos(vocab), lib.llama_vocab_eos(vocab))
    )
    return ChatTemplate(source.decode("utf-8", "replace"), bos=bos, eos=eos)


def plain_reason(model: Any, architecture: str) -> str:
    """Why drafting cannot be used with a loaded model, or an empty text."""
    if lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model):
        return (
            f"drafting is off: {architecture} keeps a recurrent state, which cannot hold a draft "
            "tree"
        )
    return ""


def fingerprint(vocab: Any) -> str:
    """Identity of a tokenizer: 32 hex digits from the text and kind of every token."""
    n_vocab = int(lib.llama_vocab_n_tokens(vocab))
    digest = hashlib.sha256(f"{lib.llama_vocab_type(vocab)} {n_vocab}".encode())
    if lib.llama_vocab_type(vocab) != lib.LLAMA_VOCAB_TYPE_NONE:
        text, attr = lib.llama_vocab_get_text, lib.llama_vocab_get_attr
        for token in range(n_vocab):
            digest.update(text(vocab, token))
            digest.update(b"\0%d" % attr(vocab, token))
    return digest.hexdigest()[:32]
