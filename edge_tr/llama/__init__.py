"""The binding to llama.cpp: the only package that imports ``llama_cpp``.

Importing it raises NativeBuildError where the build cannot be loaded, as one for CUDA on a machine
without NVIDIA's driver; the text says what to do.
"""

from __future__ import annotations

from edge_tr.errors import NativeBuildError
from edge_tr.machine.build_check import BuildCheck, advice

try:
    import llama_cpp  # noqa: F401
except (OSError, RuntimeError) as error:
    _found = BuildCheck({}, str(error), "")
    raise NativeBuildError(f"llama.cpp cannot be loaded: {error}. {advice(_found)}") from error
