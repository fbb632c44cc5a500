"""Builds of llama.cpp side by side: an object in a child process that loads another build.

One of them computes at a time. A child that waits is blocked on its pipe; its OpenMP threads spin
for some milliseconds after their last work, so whoever takes turns waits with ``settle`` first.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, process_time, sleep
from typing import Any

from edge_tr.errors import EdgeTRError
from edge_tr.files.paths import cache_dir
from native.build import Plan, build, make_plan

ROOT = Path(__file__).resolve().parent.parent
AVX2 = tuple(
    f"-DGGML_{name}=OFF"
    for name in ("AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI")
)
"""What leaves AVX2, FMA and F16C of an x86 build."""

_SETTLE_S = 0.05
_LONG_WAIT_S = 0.25


def stock(flags: tuple[str, ...] = ()) -> Path:
    """A folder with llama-cpp-python as it is published, built for this machine where the cache
    lacks it; ``flags`` go to CMake behind the preset's.

    Raises
    ------
    NativeBuildError : it cannot be built.
    """
    return _unpacked("stock", flags)


def ours(flags: tuple[str, ...] = ()) -> Path | None:
    """The same with our kernels; without ``flags`` None, the build that runs here."""
    return _unpacked("cpu", flags) if flags else None


def _unpacked(preset: str, flags: tuple[str, ...]) -> Path:
    plan = _plan(preset, flags)
    folder = cache_dir() / "builds" / plan.folder.name
    if not folder.exists():
        wheel = build(plan)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(scratch) / "new")
            (Path(scratch) / "new").rename(folder)
    return folder


def _plan(preset: str, flags: tuple[str, ...]) -> Plan:
    with _environment("CMAKE_ARGS", " ".join([os.environ.get("CMAKE_ARGS", ""), *flags])):
        return make_plan(preset)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def settle() -> None:
    """Wait until the OpenMP threads of whoever computed last sleep."""
    sleep(_SETTLE_S)


class Remote:
    """An object in a process of its own, and with its own build.

    Parameters
    ----------
    folder : where the build's ``llama_cpp`` lies; None takes the one that this process takes.
    factory : ``module:name`` of what makes the object, called with ``arguments``; they, and what
        its methods take and return, are JSON.

    Attributes
    ----------
    waiting_share : processor seconds per second of waiting for a call, the largest so far of
        waits of a quarter of a second and more; near 0 where the child really sleeps.
    """

    def __init__(self, folder: Path | None, factory: str, **arguments: Any) -> None:
        environment = dict(os.environ)
        if folder is not None:
            others = environment.get("PYTHONPATH", "")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), others]))
        self.waiting_share = 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, factory, json.dumps(arguments)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method and wait for what it returns.

        Raises
        ------
        EdgeTRError : it failed, or the process has ended; its own words are on stderr.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise EdgeTRError(f"the process of a build ended with {code}; see above")
        self.waiting_share, result = json.loads(line)
        return result

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _serve(factory: str, arguments: str) -> None:
    """Answer calls until stdin ends. What others print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, name = factory.partition(":")
    served = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    waiting_share, result = 0.0, None
    while True:
        answers.write(json.dumps([round(waiting_share, 4), result]) + "\n")
        answers.flush()
        used_s, started = process_time(), monotonic()
        line = sys.stdin.readline()
        if not line:
            return
        waited_s = monotonic() - started
        if waited_s > _LONG_WAIT_S:
            waiting_share = max(waiting_share, (process_time() - used_s) / waited_s)
        method, values = json.loads(line)
        result = getattr(served, method)(**values)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
