"""Every error that edge_tr raises on purpose.

::

    EdgeTRError
    |-- ConfigError              a value given by the caller is not allowed (also ValueError)
    |   `-- PromptTooLongError   the prompt does not fit the context
    |-- ModelError
    |   |-- ModelFileError       missing, truncated, not GGUF, or a part of a split model
    |   |-- ModelUnsupportedError  encoder-only and diffusion models
    |   `-- ModelLoadError       llama.cpp could not load it or had no memory for its context
    |-- DecodeError              llama_decode failed; the committed sequence is intact
    |   `-- ContextFullError     no free cell is left for one more token
    |-- CancelledError           the caller cancelled the call; the object is usable
    |-- MatrixFileError
    |   |-- MatrixDamagedError   cut short, changed, or not a matrix file
    |   `-- MatrixMismatchError  of another tokenizer, format version or number of candidates
    `-- NativeBuildError         a native build failed, or would crash on this machine
"""

from __future__ import annotations


class EdgeTRError(Exception):
    """Root of the tree."""


class ConfigError(EdgeTRError, ValueError):
    """A value given by the caller is not allowed; the text names it and what is allowed.

    Parameters
    ----------
    message : the text; where there is a ``field`` it begins with its name.
    field : name of the setting that has the value.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLongError(ConfigError):
    """The prompt does not fit the context."""


class ModelError(EdgeTRError):
    """Something about the model."""


class ModelFileError(ModelError, OSError):
    """The model file is missing, truncated, not GGUF, or a part of a split model."""


class ModelUnsupportedError(ModelError):
    """The model cannot generate text from left to right."""


class ModelLoadError(ModelError, RuntimeError):
    """llama.cpp could not load the model or had no memory for its context."""


class DecodeError(EdgeTRError, RuntimeError):
    """llama_decode failed; the committed sequence is intact."""


class ContextFullError(DecodeError):
    """No free cell is left for one more token."""


class CancelledError(EdgeTRError):
    """The caller cancelled the call; the object stays usable."""


class MatrixFileError(EdgeTRError):
    """Something about a saved adjacency matrix."""


class MatrixDamagedError(MatrixFileError):
    """The file is cut short, changed, or not a matrix file."""


class MatrixMismatchError(MatrixFileError):
    """The file belongs to another tokenizer, format version or number of candidates."""


class NativeBuildError(EdgeTRError):
    """A native build failed, or would crash on this machine."""
