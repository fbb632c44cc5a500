"""A GGUF model: load, tokenize, detokenize, describe."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr.chat.forms import ReplyForm, learn
from edge_tr.chat.history import Message
from edge_tr.chat.reply import ReplyReader
from edge_tr.chat.shield import Shield
from edge_tr.chat.template import ChatTemplate
from edge_tr.errors import ConfigError, ModelLoadError, ModelUnsupportedError
from edge_tr.files.closing import Closing
from edge_tr.gguf_file.info import GGUFInfo, inspect
from edge_tr.llama.library import forget_errors, init_backend, lib, recent_errors
from edge_tr.llama.servers import Servers
from edge_tr.llama.vocabulary import constraint_vocabulary, control_tokens, has_words, piece
from edge_tr.target import Int32

_PROMPT_END = 16
"""Tokens at the end of a prompt that tell whether it begins the model's reasoning."""


class Model(Closing):
    """An open GGUF model.

    Parameters
    ----------
    path : the file, or the first part of a split model.
    n_gpu_layers : layers to place on the GPU; -1 = all. Without a GPU back end it does nothing.
    rpc : RPC servers, ``host:port``, that take layers too; ``n_gpu_layers`` counts theirs.
    may_unload : read the vocabulary apart, so that it is there while the weights are not.

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
        rpc: str | Sequence[str] = (),
        may_unload: bool = False,
    ) -> None:
        self.path = Path(path)
        self.info: GGUFInfo = inspect(self.path).require_text()
        if n_gpu_layers < -1:
            raise ConfigError(
                f"n_gpu_layers {n_gpu_layers} is not allowed; it must be -1 (all), 0 or more"
            )
        self.n_gpu_layers = n_gpu_layers
        init_backend()
        self._servers = Servers(rpc, n_gpu_layers)
        self.rpc = self._servers.names
        self._identity = _identity(self.path)
        self._words: Any = None
        self.pointer: Any = None
        try:
            self.load()
            self._words = self._load(vocab_only=True) if may_unload else self.pointer
        except BaseException:
            self.close()
            raise
        self.vocab: Any = lib.llama_model_get_vocab(self._words)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self.vocab))
        self._has_words = has_words(self.vocab)
        self.n_embd = int(lib.llama_model_n_embd(self.pointer))
        self.n_ctx_train = int(lib.llama_model_n_ctx_train(self.pointer))
        if lib.llama_model_is_diffusion(self.pointer):
            self.close()
            raise ModelUnsupportedError(f"{self.path.name} is a diffusion model")
        self.plain_reason = self.info.reason or plain_reason(self.pointer, self.info.architecture)

    def _load(self, *, vocab_only: bool = False) -> Any:
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0x7FFFFFFF if self.n_gpu_layers < 0 else self.n_gpu_layers
        params.vocab_only = vocab_only
        self._servers.write_to(params)
        forget_errors()
        pointer: Any = lib.llama_model_load_from_file(os.fsencode(self.path), params)
        if not pointer:
            raise ModelLoadError(f"llama.cpp could not load {self.path}: {recent_errors()}")
        return pointer

    def load(self) -> None:
        """Load the weights, after ``unload`` again.

        Raises
        ------
        ModelLoadError : llama.cpp refused the file or had no memory, or it is another file now.
        """
        if _identity(self.path) != self._identity:
            raise ModelLoadError(f"{self.path} was changed meanwhile; open it anew")
        self.pointer = self._load()

    def unload(self) -> None:
        """Give the weights back; contexts made from them must be closed first."""
        if self.pointer:
            if self.pointer is not self._words:
                lib.llama_model_free(self.pointer)
            self.pointer = None

    def close(self) -> None:
        """Free the model; contexts made from it must be closed first."""
        self.unload()
        if self._words:
            lib.llama_model_free(self._words)
            self._words = None
        self._servers.close()

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> Int32:
        """Token ids of a text, int32[n].

        Parameters
        ----------
        add_special : put the model's begin-of-text token in front, where it has one.
        parse_special : read special tokens written in the text as such.

        Raises
        ------
        ConfigError : the model has no tokenizer, or the text is too long for llama.cpp.
        """
        if not self._has_words:
            raise ConfigError(f"{self.path.name} has no tokenizer; its prompts are token ids")
        data = text.encode("utf-8", "replace")
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
        """The bytes of one token, none without a tokenizer; they may end in the middle of a
        character."""
        return b"" if not self._has_words else piece(self.vocab, token, special=special)

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
        return chat_template(self._words)

    def chat_tokens(
        self,
        messages: str | Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        *,
        must: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Int32:
        """Token ids of a conversation that the assistant is to continue, int32[n].

        Parameters
        ----------
        messages : of the conversation, or the text of the user's only one.
        tools : those that the assistant may call.
        must : raise where the model has no chat template; else the texts of the messages are
            continued there.
        options : further variables of the template, such as ``enable_thinking``.

        Raises
        ------
        ConfigError : there is no template, it cannot be read, or it refuses the messages.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if self.chat_template is not None:
            shield = self.shield
            text = self.chat_template.render(messages, tools, options=options, change=shield.mark)
            ids = shield.tokens(
                text, lambda part: self.tokenize(part, add_special=False, parse_special=False)
            )
            if ids is not None:
                return np.array(ids, dtype=np.int32)
            return self.tokenize(text, add_special=False)
        if must:
            raise ConfigError(
                f"{self.path.name} has no chat template, so it can only continue a text"
            )
        text = "\n\n".join(str(message["content"]) for message in messages)
        return self.tokenize(text, parse_special=False)

    @cached_property
    def reply_form(self) -> ReplyForm:
        """How the model writes calls of tools and its reasoning."""
        return ReplyForm() if self.chat_template is None else learn(self.chat_template)

    def reader(
        self, prompt: Int32, tools: Sequence[dict[str, Any]] = (), *, is_free: bool = True
    ) -> ReplyReader:
        """What takes the text of an answer apart.

        Parameters
        ----------
        prompt : token ids; reasoning may begin at its end.
        tools : those that the model may call.
        is_free : the text follows no schema or grammar, so it is in the model's own form.
        """
        end = self.detokenize(prompt[-_PROMPT_END:], special=True).decode("utf-8", "replace")
        return ReplyReader(self.reply_form if is_free else ReplyForm(), tools, end)

    def mark_tokens(self) -> frozenset[int]:
        """Control tokens that are part of the form of a reply."""
        marks = self.reply_form.marks()
        ids = (self.shield.id_of(text) for text in self.shield.texts if text in marks)
        return frozenset(ids) - self.stop_tokens()

    def fingerprint(self) -> str:
        """Identity of the tokenizer, see ``fingerprint``."""
        return fingerprint(self.vocab)


def _identity(path: Path) -> tuple[int, int]:
    """Tells whether a file was replaced or written."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


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
