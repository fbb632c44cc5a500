"""A model's vocabulary as llguidance reads it."""

from __future__ import annotations

import ctypes
from typing import Any

from ..errors import ConfigError
from .library import lib
from .model import piece

_CONTROL = 1 << 3 | 1 << 0  # LLAMA_TOKEN_ATTR_CONTROL, _UNKNOWN


def constraint_vocabulary(vocab: Any) -> Any:
    """The ``LLTokenizer`` of a vocabulary; takes a second or two for a large one.

    Control tokens, and those whose text holds a NUL, are part of no text.

    Raises
    ------
    ConfigError : the model has no text for its tokens, or none that ends a text.
    """
    from llguidance import LLTokenizer

    n_vocab = int(lib.llama_vocab_n_tokens(vocab))
    ends = [token for token in range(n_vocab) if lib.llama_vocab_is_eog(vocab, token)]
    if lib.llama_vocab_type(vocab) == lib.LLAMA_VOCAB_TYPE_NONE or not ends:
        raise ConfigError("the model has no tokens with a text and an end, so none can be chosen")
    texts = []
    for token in range(n_vocab):
        text = piece(vocab, token, special=True)
        if lib.llama_vocab_get_attr(vocab, token) & _CONTROL or token in ends:
            text = b"\xff" + text
        texts.append(b"" if b"\0" in text else text)
    return LLTokenizer.from_llamacpp(
        tokens=texts,
        vocab_ptr=vocab,
        tokenize_fptr=ctypes.cast(lib._lib.llama_tokenize, ctypes.c_void_p).value,
        eos_token=ends,
    )
