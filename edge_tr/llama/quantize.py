"""Requantise a GGUF with llama.cpp, in a child process.

llama.cpp logs every tensor and ends the process where an assertion fails; a child keeps both
away from the caller. Run as ``python -m edge_tr.llama.quantize SOURCE TARGET TYPE``.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

from edge_tr.errors import ConfigError, ModelFileError, NativeBuildError
from edge_tr.machine import child_process

_TYPES = ("q4_0", "q4_1", "q8_0", "q4_k_m", "f16")


def quantize(source: Path, target: Path, quantisation: str) -> None:
    """Write `source` anew as `target` with the weights in `quantisation`.

    Parameters
    ----------
    source, target : Path
        GGUF files; `target` is overwritten and is not whole until this returns.
    quantisation : str
        One of q4_0, q4_1, q8_0, q4_k_m, f16.

    Raises
    ------
    ConfigError
        Another quantisation, or no child process can be started.
    ModelFileError
        llama.cpp refused, a full disk for instance; the text holds its last lines.
    NativeBuildError
        The child was killed by a signal.

    Source
    ------
    llama.cpp, ``llama_model_quantize`` with ``allow_requantize``.
    """
    if quantisation not in _TYPES:
        raise ConfigError(f"quantisation is {quantisation!r}; allowed are {', '.join(_TYPES)}")
    if not child_process.can_run():
        raise ConfigError("a frozen application without our hook cannot requantise a model")
    command = child_process.command(
        "edge_tr.llama.quantize", str(source), str(target), quantisation
    )
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return
    log = " | ".join(done.stderr.strip().splitlines()[-3:])
    if done.returncode < 0:
        raise NativeBuildError(
            f"requantising {source} was killed by signal {-done.returncode}; "
            f"`edge-tr doctor` checks whether llama.cpp fits this machine: {log}"
        )
    raise ModelFileError(f"llama.cpp could not write {source} as {quantisation}: {log}")


def _main(source: str, target: str, quantisation: str) -> int:
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.allow_requantize = True
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{quantisation.upper()}")
    status = llama_cpp.llama_model_quantize(
        source.encode(), target.encode(), ctypes.byref(parameters)
    )
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
