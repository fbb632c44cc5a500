"""The cells of a text, put aside while its model is unloaded."""

from __future__ import annotations

import ctypes
import logging
import shutil
import tempfile
import weakref
from typing import IO

import numpy as np

from edge_tr.decode.decoder import Decoder
from edge_tr.files.paths import cache_dir
from edge_tr.llama.library import lib
from edge_tr.llama.target import ContextTarget

logger = logging.getLogger("edge_tr")

MIN_TOKENS = 32
"""A shorter text is read again in the time that its file takes."""
MAX_BYTES = 2 << 30
"""A larger file is not written; its text is read again."""


class KeptCells:
    """The text that a decoder has in its cache, and the cells of lane 0 in a file.

    The file lies among edge_tr's cache and belongs to this process alone: no other user can read
    it, and the system deletes it with the process. Texts of fewer than ``MIN_TOKENS`` tokens, files
    of more than ``MAX_BYTES`` or a tenth of the free disk are not kept.

    Parameters
    ----------
    decoder : no generation of it runs.
    target : its context.
    """

    def __init__(self, decoder: Decoder, target: ContextTarget) -> None:
        self._file: IO[bytes] | None = None
        decoder.finish()
        decoder.hold(decoder.n_past)
        self.n_tokens, self._n_text = decoder.n_past, decoder.n_tokens
        if self.n_tokens >= MIN_TOKENS:
            try:
                self._write(target)
            except (OSError, MemoryError) as error:
                self.close()
                logger.info("the text is read again when the model is loaded again: %s", error)

    def _write(self, target: ContextTarget) -> None:
        size = int(lib.llama_state_seq_get_size(target.pointer, 0))
        folder = cache_dir()
        folder.mkdir(parents=True, exist_ok=True)
        if size > min(MAX_BYTES, shutil.disk_usage(folder).free // 10):
            raise OSError(f"its cells take {size >> 20} MiB")
        data = np.empty(size, dtype=np.uint8)
        n_written = int(lib.llama_state_seq_get_data(target.pointer, _bytes(data), size, 0))
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._file.write(data[:n_written])
        self._file.flush()

    def put_back(self, decoder: Decoder, target: ContextTarget) -> None:
        """Give the cells to a new context of the same model; without them the text is read again
        where it is needed."""
        n_tokens = self._read(target) if self._file is not None else 0
        self.close()
        decoder.adopt(n_tokens, self._n_text)

    def _read(self, target: ContextTarget) -> int:
        assert self._file is not None
        self._file.seek(0)
        data = np.frombuffer(self._file.read(), dtype=np.uint8).copy()
        n_read = int(lib.llama_state_seq_set_data(target.pointer, _bytes(data), len(data), 0))
        if n_read == len(data) > 0:
            return self.n_tokens
        lib.llama_memory_clear(target.memory, True)
        return 0

    def close(self) -> None:
        """Delete the file, where there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _bytes(data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> ctypes.Array[ctypes.c_uint8]:
    return (ctypes.c_uint8 * len(data)).from_buffer(data)
