"""Loads the library of ggml's CPU back end that this processor really executes.

Lies in the portable wheel as ``llama_cpp/_cpu_variant.py``, with ``edge_tr/machine/isa.py`` beside
it as ``_isa.py``, and runs when ``llama_cpp`` is imported. llama.cpp's own choice goes by what the
processor advertises, and some virtual machines advertise AMX and trap on it. The choice is kept
in a file. ``EDGE_TR_CPU_VARIANT`` names another; a name that is not there is an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import _isa  # type: ignore[attr-defined]

_AVX2 = ("sse42", "avx", "f16c", "fma", "avx2", "bmi2")
_AVX512 = (*_AVX2, "avx512")
_VNNI = (*_AVX512, "avx512_vnni")
_ZEN4 = (*_VNNI, "avx512_vbmi", "avx512_bf16")
VARIANTS: dict[str, tuple[str, ...]] = {
    "sapphirerapids": (*_ZEN4, "amx_tile", "amx_int8"),
    "zen4": _ZEN4,
    "cascadelake": _VNNI,
    "alderlake": (*_AVX2, "avx_vnni"),
    "skylakex": _AVX512,
    "haswell": _AVX2,
    "sse42": ("sse42",),
}
"""Libraries, the best first, with the instruction sets that each contains."""

loaded: str | None = None
"""Name of the variant in use; None: not known."""


def load(folder: Path) -> None:
    """Load the CPU back end, and whatever other back ends lie in the folder."""
    start, end = ("ggml", ".dll") if sys.platform == "win32" else ("libggml", ".so")
    files = {path.stem[len(start) + 1 :]: path for path in folder.glob(f"{start}-*{end}")}
    own = ".dylib" if sys.platform == "darwin" else end  # back ends are bundles, .so there too
    library = ctypes.CDLL(str(folder / (start + own)))
    library.ggml_backend_load.restype = ctypes.c_void_p
    base = ctypes.CDLL(str(folder / f"{start}-base{own}"))
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    base.ggml_log_set(quiet, None)
    try:
        _load(library, files, folder)
    finally:
        base.ggml_log_set(None, None)


def _load(library: ctypes.CDLL, files: dict[str, Path], folder: Path) -> None:
    global loaded
    present = {name[4:] for name in files if name.startswith("cpu-")}
    for name in (choose(present),) if _isa.is_x86() else ():
        if library.ggml_backend_load(os.fsencode(files[f"cpu-{name}"])):
            loaded = name
    if loaded is None:
        library.ggml_backend_load_all_from_path(os.fsencode(folder))
        loaded = next((n for n in sorted(present) if _is_open(files[f"cpu-{n}"])), None)
        return
    for name, path in files.items():
        if name != "base" and not name.startswith("cpu"):
            library.ggml_backend_load(os.fsencode(path))


def _is_open(path: Path) -> bool:
    """Whether a library stayed loaded; False where the system cannot say."""
    mode = getattr(os, "RTLD_NOLOAD", None)
    with contextlib.suppress(OSError):
        return mode is not None and bool(ctypes.CDLL(str(path), mode=mode))
    return False


def choose(present: set[str]) -> str:
    """The variant that ``EDGE_TR_CPU_VARIANT`` names, else the best one that executes."""
    wanted = os.environ.get("EDGE_TR_CPU_VARIANT")
    if wanted:
        if wanted not in present:
            raise RuntimeError(f"EDGE_TR_CPU_VARIANT is {wanted!r}; there are {sorted(present)}")
        return wanted
    kept = _kept_in()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = kept.read_text("ascii")
        if known in present:
            return known
    found: dict[str, Any] = _isa.probe()
    usable = {name for name, status in found.items() if status.usable}
    if any(s.executes is None and s.advertised for s in found.values()):
        usable -= {"amx_tile", "amx_int8"}  # believed, never tried
    best = next((v for v, sets in VARIANTS.items() if v in present and usable.issuperset(sets)), "")
    _keep(kept, best or "sse42")
    return best or "sse42"


def _kept_in() -> Path:
    """A file whose name changes with the processor and with the sets that a build knows."""
    processor = repr((sorted(_isa.advertised_flags()), os.uname() if hasattr(os, "uname") else ""))
    key = hashlib.sha256((processor + repr(VARIANTS)).encode()).hexdigest()[:16]
    base = os.environ.get("EDGE_TR_CACHE_DIR")
    return Path(base or Path.home() / ".cache" / "edge-tr") / "cpu-variant" / key


def _keep(path: Path, name: str) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(name)
        os.replace(file.name, path)
