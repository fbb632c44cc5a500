"""Read the header of a GGUF file fast and without trusting a single number in it.

``gguf.GGUFReader`` builds an array for each string of the vocabulary, which takes seconds; here
arrays are skipped and only their lengths are kept. What llama.cpp refuses is refused here too.
"""

from __future__ import annotations

import mmap
import stat
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from edge_tr.errors import ModelFileError

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_N_DIMENSIONS_MAX = 4
_KEPT_STRING_BYTES = 4096
_N_STRINGS_MAX = 1 << 24
_OTHER_FORMATS = (
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint"),
    (b"ggjt", "the older ggjt format, which llama.cpp no longer reads"),
    (b"lmgg", "the older ggml format, which llama.cpp no longer reads"),
    (b"version https://git-lfs", "a Git LFS pointer; the model itself was not downloaded"),
    (b"<", "a web page, perhaps saved in place of the model"),
)


@dataclass(frozen=True)
class Header:
    """What a GGUF says before its tensor data.

    `scalars` holds numbers, booleans and short strings by key, `array_lengths` the number of
    elements of each array by key, `shapes` those of the tensors by name, rows last.
    """

    scalars: dict[str, int | float | bool | str]
    array_lengths: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    size_bytes: int

    @property
    def n_tensors(self) -> int:
        return len(self.shapes)


def integer(header: Header, key: str) -> int:
    """A whole number of the header; 0 where it has none under this key."""
    value = header.scalars.get(key, 0)
    return value if isinstance(value, int) else 0


def read_header(path: Path) -> Header:
    """Read and check the header, and that the tensor data it promises is in the file.

    Raises
    ------
    ModelFileError
        Missing, a directory, not readable, not GGUF, another version, damaged or cut short.

    Source
    ------
    The GGUF specification, and llama.cpp's ``gguf_init_from_reader`` for what it refuses.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise ModelFileError(f"{path} is {kind}; a model is a .gguf file")
        with path.open("rb") as file:
            _check_start(path, file.read(32))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Parser(path, data).header()
    except ModelFileError:
        raise
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist") from None
    except (struct.error, IndexError, OverflowError):
        raise ModelFileError(f"{path} is cut short: it ends inside its header") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{path} cannot be read: {reason}") from error


def _check_start(path: Path, start: bytes) -> None:
    if not start:
        raise ModelFileError(f"{path} is empty")
    if start[:4] != b"GGUF"[: len(start)]:
        what = next((name for magic, name in _OTHER_FORMATS if start.startswith(magic)), None)
        hint = f"; it looks like {what}" if what else ""
        raise ModelFileError(f"{path} is not a GGUF file{hint}")
    version = int.from_bytes(start[4:8], "little")
    if len(start) < 24:
        raise ModelFileError(f"{path} is cut short: {len(start)} bytes hold no header")
    if version and not version & 0xFFFF:
        raise ModelFileError(f"{path} has the other byte order, which llama.cpp does not read")
    if version not in _VERSIONS:
        raise ModelFileError(f"{path} is GGUF version {version}; versions 2 and 3 can be read")


class _Parser:
    """A position in a mapped file; reads past its end raise what `read_header` catches."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size = path, data, len(data)
        self.position = 8
        self.scalars: dict[str, int | float | bool | str] = {}
        self.array_lengths: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def header(self) -> Header:
        n_tensors, n_keys = self.u64(), self.u64()
        for _ in range(n_keys):
            self.key_value()
        alignment = self.scalars.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.damaged(f"general.alignment is {alignment!r}, not a power of two")
        end: int | None = 0
        for _ in range(n_tensors):
            end = self.tensor(None if end is None else _padded(end, alignment))
        self.require_data(_padded(self.position, alignment), end)
        return Header(self.scalars, self.array_lengths, self.shapes, self.size)

    def damaged(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is damaged: {what}")

    def u32(self) -> int:
        value: int = _U32.unpack_from(self.data, self.position)[0]
        self.position += 4
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self.data, self.position)[0]
        self.position += 8
        return value

    def text(self) -> str:
        """A string; of one too long to be of use here, such as a chat template, only the start."""
        length = self.u64()
        start, self.position = self.position, self.position + length
        if self.position > self.size:
            raise IndexError
        kept = self.data[start : start + min(length, _KEPT_STRING_BYTES)]
        return kept.decode(errors="replace")

    def key_value(self) -> None:
        key = self.text()
        if key in self.scalars or key in self.array_lengths:
            raise self.damaged(f"key {key!r} occurs twice")
        kind = self.u32()
        if kind == _ARRAY:
            self.array_lengths[key] = self.skip_array(key)
        elif kind == _STRING:
            self.scalars[key] = self.text()
        elif kind in _SCALARS:
            scalar = struct.Struct("<" + _SCALARS[kind])
            self.scalars[key] = scalar.unpack_from(self.data, self.position)[0]
            self.position += scalar.size
        else:
            raise self.damaged(f"key {key!r} has the unknown type {kind}")

    def skip_array(self, key: str) -> int:
        kind, length = self.u32(), self.u64()
        if kind == _STRING:
            if length > _N_STRINGS_MAX:
                raise self.damaged(f"key {key!r} promises {length} strings")
            if key == "tokenizer.ggml.tokens":
                self.require_different(length)
            self.skip_strings(length)
        elif kind in _SCALARS:
            self.position += length * struct.calcsize("<" + _SCALARS[kind])
            if self.position > self.size:
                raise IndexError
        else:
            raise self.damaged(f"key {key!r} is an array of the unknown type {kind}")
        return length

    def require_different(self, n_strings: int) -> None:
        """Make sure that no two of the next strings are the same; llama.cpp ends the process where
        two tokens are. It reads up to a NUL, and tells empty ones apart itself."""
        data, position, unpack = self.data, self.position, _U64.unpack_from
        seen: set[bytes] = set()
        for _ in range(n_strings):
            start = position + 8
            position = start + unpack(data, position)[0]
            text = data[start:position].partition(b"\0")[0]
            if text in seen:
                raise self.damaged(f"two tokens of the vocabulary are {text[:40]!r}")
            if text:
                seen.add(text)

    def skip_strings(self, n_strings: int) -> None:
        data, position, unpack = self.data, self.position, _U64.unpack_from
        for _ in range(n_strings):
            position += 8 + unpack(data, position)[0]
        if position > self.size:
            raise IndexError
        self.position = position

    def tensor(self, expected: int | None) -> int | None:
        """The byte after the next tensor's data, from the start of all data.

        Data lies in the order of the tensors without gaps, so it begins at `expected`. None is a
        byte that is not known, after a type that the gguf package has not learnt yet.
        """
        from gguf.constants import GGML_QUANT_SIZES

        name = self.text()
        if name in self.shapes:
            raise self.damaged(f"tensor {name!r} occurs twice")
        n_dimensions = self.u32()
        if n_dimensions > _N_DIMENSIONS_MAX:
            raise self.damaged(f"tensor {name!r} has {n_dimensions} dimensions")
        shape = self.shapes[name] = tuple(self.u64() for _ in range(n_dimensions))
        kind, offset = self.u32(), self.u64()
        if offset != (offset if expected is None else expected):
            raise self.damaged(f"tensor {name!r} is at offset {offset}, expected {expected}")
        if kind not in GGML_QUANT_SIZES:
            return None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if shape and shape[0] % block:
            raise self.damaged(f"tensor {name!r} has rows of {shape[0]}, no multiple of {block}")
        return offset + prod(shape) // int(block) * int(block_bytes)

    def require_data(self, start: int, end: int | None) -> None:
        """Make sure that the file goes on to the byte `end` after `start`."""
        if end and start + end > self.size:
            raise ModelFileError(
                f"{self.path} is cut short: it has {self.size} bytes and its header promises "
                f"{start + end}; download or copy it again"
            )


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
