"""What this machine can do at most: reading memory, and multiply-adds of 8-bit and float numbers.

The loops are a small C file that is compiled for this processor when it is first asked for.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from edge_tr.errors import NativeBuildError
from native.build import compilers

_SOURCE = Path(__file__).with_name("peak.c")
_READ_BYTES = 1 << 30
_ROUNDS = 2_000_000
_REPETITIONS = 5


def measure(n_threads: int) -> dict[str, float] | None:
    """The machine's peaks with this number of threads.

    Returns
    -------
    ``read_gbs`` in 10^9 bytes a second from a GiB of memory, ``int8_gmacs`` and ``float_gmacs``
    in 10^9 multiply-adds a second; None where there is no compiler, or none for these sets.
    """
    library = _library()
    if library is None:
        return None
    memory = np.ones(_READ_BYTES + 32768, dtype=np.uint8)
    share = _READ_BYTES // n_threads // 256 * 256
    addresses = [memory.ctypes.data + i * share for i in range(n_threads)]
    with ThreadPoolExecutor(n_threads) as pool:

        def rate(amount: float, call: Callable[[int], Any]) -> float:
            list(pool.map(call, range(n_threads)))
            taken = []
            for _ in range(_REPETITIONS):
                started = perf_counter()
                list(pool.map(call, range(n_threads)))
                taken.append(perf_counter() - started)
            return round(amount * n_threads / median(taken) / 1e9, 1)

        int8 = library.peak_int8(1)
        floats = library.peak_float(1)
        return {
            "read_gbs": rate(share, lambda i: library.peak_read(addresses[i], share)),
            "int8_gmacs": rate(int8 * _ROUNDS, lambda i: library.peak_int8(_ROUNDS)),
            "float_gmacs": rate(floats * _ROUNDS, lambda i: library.peak_float(_ROUNDS)),
        }


def _library() -> Any:
    try:
        compiler = compilers()[0]
    except NativeBuildError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "peak.so"
        options = ["-O3", "-march=native", "-shared", "-fPIC", "-o", str(target), str(_SOURCE)]
        done = subprocess.run([*compiler.split(), *options], capture_output=True, check=False)
        if done.returncode != 0:
            return None
        library = ctypes.CDLL(str(target))
    library.peak_read.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    for function in (library.peak_read, library.peak_int8, library.peak_float):
        function.restype = ctypes.c_int64
    for function in (library.peak_int8, library.peak_float):
        function.argtypes = [ctypes.c_int64]
    return library
