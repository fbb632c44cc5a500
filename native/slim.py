"""A wheel of llama-cpp-python that holds each library once, and nothing but what Python loads."""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from pathlib import Path, PurePosixPath

from edge_tr.errors import NativeBuildError

_LIBRARY = re.compile(r"\.(so|dll|dylib)$")
_NOT_LOADED = re.compile(r"^(lib)?llama-common\.")


def slim(wheel: Path) -> None:
    """Write the wheel anew: libraries lie in ``llama_cpp/lib``, each once.

    CMake installs them there and again under ``bin`` and ``lib``, where the loadable back ends
    lie too, beside headers and CMake's own files.

    Raises
    ------
    NativeBuildError
        The wheel holds no library of llama.cpp, or two that differ under one name.
    """
    members: dict[str, bytes] = {}
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            place = _place(info.filename)
            if place is None or info.is_dir():
                continue
            data = archive.read(info)
            if members.setdefault(place, data) != data:
                raise NativeBuildError(f"{wheel.name} holds two libraries named {place}")
    if not any("llama." in PurePosixPath(name).name for name in members if _LIBRARY.search(name)):
        raise NativeBuildError(f"{wheel.name} holds no library of llama.cpp")
    record = next(name for name in members if name.endswith(".dist-info/RECORD"))
    del members[record]
    lines = [f"{name},{_digest(data)},{len(data)}" for name, data in members.items()]
    members[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _place(name: str) -> str | None:
    """Where a member goes; None: nowhere."""
    path = PurePosixPath(name)
    if _LIBRARY.search(name):
        return None if _NOT_LOADED.match(path.name) else f"llama_cpp/lib/{path.name}"
    kept = path.parts[0] == "llama_cpp" or path.parts[0].endswith(".dist-info")
    return name if kept and path.suffix not in (".a", ".lib", ".cmake", ".pc", ".h") else None


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.decode().rstrip("=")
