"""llama.cpp as a loaded library: one import, its log kept, its functions by name.

Importing this raises NativeBuildError where the build cannot be loaded, as one for CUDA without
NVIDIA's driver.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_tr.errors import NativeBuildError
from edge_tr.machine.build_check import BuildCheck, advice
from edge_tr.machine.build_child import cpu_library

try:
    import llama_cpp
    from llama_cpp import llama_cpp as lib
    from llama_cpp._ctypes_extensions import load_shared_library
except (OSError, RuntimeError) as error:  # a library that it was linked with is missing
    _found = BuildCheck({}, str(error), "")
    raise NativeBuildError(f"llama.cpp cannot be loaded: {error}. {advice(_found)}") from error

__all__ = [
    "forget_errors",
    "function",
    "ggml_function",
    "init_backend",
    "lib",
    "log_to_stderr",
    "recent_errors",
    "system_info",
    "version",
]

logger = logging.getLogger("edge_tr.llama")

_recent: deque[str] = deque(maxlen=20)
_WARN, _ERROR = 3, 4  # ggml_log_level
_LEVELS = {2: logging.INFO, _WARN: logging.WARNING, _ERROR: logging.ERROR}


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    line = text.decode("utf-8", "replace").rstrip("\n")
    if level in (_WARN, _ERROR) and line:
        _recent.append(line)
    logger.log(_LEVELS.get(level, logging.DEBUG), "%s", line)


def quiet() -> None:
    """Send llama.cpp's log to the logger ``edge_tr.llama`` from now on, and not to stderr."""
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    lib.llama_log_set(_on_log, ctypes.c_void_p(0))


def log_to_stderr() -> None:
    """Show llama.cpp's whole log."""
    logger.addHandler(logging.StreamHandler(sys.stderr))
    logger.setLevel(logging.DEBUG)


def recent_errors() -> str:
    """The last warnings and errors that llama.cpp logged, for an error message."""
    return "; ".join(dict.fromkeys(_recent)) or "it gave no reason"


def forget_errors() -> None:
    """Start collecting warnings and errors anew."""
    _recent.clear()


_initialized = False


def init_backend() -> None:
    """Initialise llama.cpp once in this process."""
    global _initialized
    if not _initialized:
        quiet()
        lib.llama_backend_init()
        _initialized = True


def leave_log() -> None:
    """Leave llama.cpp's log to llama-cpp-python and its ``verbose``."""
    global _initialized
    _initialized = True


def function(name: str, restype: Any, argtypes: list[Any]) -> Callable[..., Any]:
    """A function of libllama without the conversions of the high-level binding."""
    prototype = ctypes.CFUNCTYPE(restype, *argtypes)
    return prototype((name, lib._lib))


def ggml_function(name: str, restype: Any, argtypes: list[Any]) -> Callable[..., Any]:
    """The same of ggml, whose functions lie in three libraries.

    Raises
    ------
    StopIteration : none of them has it.
    """
    folder = Path(llama_cpp.__file__).parent / "lib"
    parts = ("ggml", "ggml-base", cpu_library(llama_cpp))
    libraries = (load_shared_library(part, folder) for part in parts)
    holder = next(library for library in libraries if hasattr(library, name))
    return ctypes.CFUNCTYPE(restype, *argtypes)((name, holder))


def system_info() -> str:
    """llama.cpp's own line about back ends and instruction sets compiled in."""
    init_backend()
    return str(lib.llama_print_system_info().decode())


def version() -> str:
    """Version of llama-cpp-python."""
    return str(llama_cpp.__version__)
