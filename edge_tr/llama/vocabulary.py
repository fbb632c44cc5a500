"""A model's vocabulary as llguidance reads it."""

from __future__ import annotations

import ctypes
from typing import Any

from edge_tr.chat.shield import ControlToken
from edge_tr.errors import ConfigError
from edge_tr.llama.library import lib

_CONTROL = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN


def has_words(vocab: Any) -> bool:
    """Whether tokens have a text; llama.cpp aborts the process where that of another is asked."""
    return bool(lib.llama_vocab_type(vocab) != lib.LLAMA_VOCAB_TYPE_NONE)


def piece(vocab: Any, token: int, *, special: bool = False) -> bytes:
    """The bytes of one token of a vocabulary; they may end in the middle of a character."""
    size = 64
    while True:
        buffer = ctypes.create_string_buffer(size)
        n = lib.llama_token_to_piece(vocab, token, buffer, size, 0, special)
        if n >= 0:
            return buffer.raw[:n]
        size = -n


def constraint_vocabulary(vocab: Any) -> Any:
    """The ``LLTokenizer`` of a vocabulary; takes a second or two for a large one.

    Control tokens, and those whose text holds a NUL, are part of no text.

    Raises
    ------
    ConfigError : the model has no text for its tokens, or none that ends a text.
    """
    import llguidance

    n_vocab = int(lib.llama_vocab_n_tokens(vocab))
    ends = [token for token in range(n_vocab) if lib.llama_vocab_is_eog(vocab, token)]
    if not has_words(vocab) or not ends:
        raise ConfigError("the model has no tokens with a text and an end, so none can be chosen")
    texts = []
    for token in range(n_vocab):
        text = piece(vocab, token, special=True)
        if lib.llama_vocab_get_attr(vocab, token) & _CONTROL or token in ends:
            text = b"\xff" + text
        texts.append(b"" if b"\0" in text else text)
    tokenizer: Any = llguidance.LLTokenizer  # its stubs leave the function out
    return tokenizer.from_llamacpp(
        tokens=texts,
        vocab_ptr=vocab,
        tokenize_fptr=ctypes.cast(lib._lib.llama_tokenize, ctypes.c_void_p).value,
        eos_token=ends,
    )


def control_tokens(vocab: Any) -> list[ControlToken]:
    """The control tokens that are read where special tokens are read."""
    found: list[ControlToken] = []
    for token in range(int(lib.llama_vocab_n_tokens(vocab)) if has_words(vocab) else 0):
        attributes = lib.llama_vocab_get_attr(vocab, token)
        if attributes & _CONTROL:
            text = lib.llama_vocab_get_text(vocab, token).decode("utf-8", "replace")
            left, right = lib.LLAMA_TOKEN_ATTR_LSTRIP, lib.LLAMA_TOKEN_ATTR_RSTRIP
            found.append(
                ControlToken(token, text, bool(attributes & left), bool(attributes & right))
            )
    return found


def find_token(vocab: Any, text: str) -> int | None:
    """The one token that a text is, special ones too; None where it is none or several."""
    if not has_words(vocab):
        return None
    data = text.encode("utf-8", "replace")
    found = (ctypes.c_int32 * 2)()
    n = lib.llama_tokenize(vocab, data, len(data), found, 2, False, True)
    return int(found[0]) if n == 1 else None
