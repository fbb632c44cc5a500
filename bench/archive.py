"""The source archive of llama.cpp that the library is built from; nothing of it is copied here."""

from __future__ import annotations

import os
import tarfile
from functools import cache
from pathlib import Path

from edge_tr.files.paths import cache_dir

WHERE = (
    "set EDGE_TR_LLAMA_SOURCE to llama-cpp-python's source (a folder or .tar.gz), or bring it with "
    "`pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36 "
    f"-d {cache_dir() / 'source'}`"
)
_FOLDER = "vendor/llama.cpp/models/templates/"


@cache
def templates() -> dict[str, str]:
    """Source of each chat template by name; empty where the archive is not here."""
    named = os.environ.get("EDGE_TR_LLAMA_SOURCE")
    places = [Path(named)] if named else sorted((cache_dir() / "source").glob("llama_cpp*.tar.gz"))
    for place in places:
        if place.is_dir():
            return {f.stem: f.read_text("utf-8") for f in sorted((place / _FOLDER).glob("*.jinja"))}
        if place.is_file():
            return _unpacked(place)
    return {}


def _unpacked(archive: Path) -> dict[str, str]:
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if _FOLDER in member.name and member.name.endswith(".jinja"):
                stream = tar.extractfile(member)
                assert stream is not None
                found[Path(member.name).stem] = stream.read().decode()
    return dict(sorted(found.items()))
