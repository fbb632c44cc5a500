"""llama.cpp's own programs, and its server as a method.

``make peers`` builds them. Each reads the same model file and the same prompt with the same
threads, context and cache as ours; the server is given token ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from edge_tr.bench.outcome import Outcome
from edge_tr.config import ContextConfig
from edge_tr.errors import ConfigError, EdgeTRError
from edge_tr.files.paths import cache_dir
from edge_tr.llama.library import version
from edge_tr.llama.model import Model
from edge_tr.target import Int32

_START_S = 300.0
ANSWER_S = 1800.0

SERVER_TYPES = ("ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")
"""The server's ways to speculate without a second model, each with llama.cpp's defaults."""

SERVER_OPTIONS: dict[str, tuple[str, ...]] = {
    "plain-server": (),
    **{name: ("--spec-type", name) for name in SERVER_TYPES},
}
"""What each method that is a server is started with."""


class PeerError(EdgeTRError, RuntimeError):
    """A program of llama.cpp failed; the text quotes it."""


def find_peers(folder: Path | None = None) -> Path:
    """The folder of the built programs: the one given, else the newest that ``make peers`` built
    for the installed version of llama-cpp-python.

    Raises
    ------
    ConfigError : there is none; the text says how to build them.
    """
    if folder is not None:
        if not (folder / executable("llama-server")).exists():
            raise ConfigError(f"{folder} holds no llama-server")
        return folder
    published = version().partition("+")[0]  # our own builds have a label behind it
    found = sorted(
        cache_dir().glob(f"peers/{published}-*/peers.json"), key=lambda file: file.stat().st_mtime
    )
    if not found:
        raise ConfigError("llama.cpp's own programs are not built; `make peers` builds them")
    return found[-1].parent


def executable(program: str) -> str:
    """File name of a program on this system."""
    return program + (".exe" if sys.platform == "win32" else "")


def common_options(model: Path, config: ContextConfig, n_gpu_layers: int) -> list[str]:
    """The options that make a program's context the same as ours."""
    options = {
        "-m": model,
        "-c": config.n_ctx,
        "-b": config.n_batch,
        "-ub": config.n_ubatch,
        "-t": config.n_threads,
        "-tb": config.n_threads_batch,
        "-fa": {None: "auto", False: "off", True: "on"}[config.flash_attn],
        "-ctk": config.type_k,
        "-ctv": config.type_v,
        "-ngl": 999 if n_gpu_layers < 0 else n_gpu_layers,
        "-fit": "off",
    }
    flags = ["--swa-full"] if config.swa_full else []
    flags += [] if config.offload_kqv else ["--no-kv-offload"]
    return [str(part) for pair in options.items() for part in pair] + flags


class PeerServer:
    """A llama-server with one slot, as a method.

    Parameters
    ----------
    model, config : the file that it opens, on as many layers of the GPU, and its context.
    folder : of the built programs.
    options : beside those of the context, such as ``--spec-type ngram-mod``.
    keep : let it run from one answer to the next; else it runs only while it answers.
    answer_s : seconds that starting it and each answer may take.

    Attributes
    ----------
    peak_bytes : most memory it used so far, where the system tells.
    """

    def __init__(
        self,
        model: Model,
        config: ContextConfig,
        folder: Path,
        options: Sequence[str],
        *,
        keep: bool = True,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._command = [
            str(folder / executable("llama-server")),
            *common_options(model.path, config, model.n_gpu_layers),
            *("-np", "1", "--host", "127.0.0.1", "--cache-ram", "0", "--ctx-checkpoints", "0"),
            *options,
        ]
        self._keep = keep
        self._answer_s = answer_s
        self._process: subprocess.Popen[str] | None = None
        self._log: deque[str] = deque(maxlen=40)
        self._port = 0
        self.peak_bytes = 0

    def answer(self, prompt: Int32, n_tokens: int) -> Outcome:
        """See ``Method``.

        Raises
        ------
        PeerError : the server did not start or broke off.
        """
        if self._process is None:
            self._start()
        body = {
            "prompt": prompt.tolist(),
            "n_predict": n_tokens,
            "cache_prompt": False,
            "return_tokens": True,
            "temperature": 0,
            "samplers": ["top_k"],
            "top_k": 1,
        }
        try:
            status, text = self._request("POST", "/completion", body)
        except (OSError, HTTPException) as error:
            raise self._failure(f"broke off ({error})") from None
        if status != 200:
            raise self._failure(f"answered {status}: {text[:200]!r}")
        if self._process is not None:
            self.peak_bytes = max(self.peak_bytes, peak_bytes(self._process.pid))
        if not self._keep:
            self.close()
        return server_outcome(json.loads(text))

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._process = subprocess.Popen(
            [*self._command, "--port", str(self._port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read_log, args=(self._process,), daemon=True)
        self._reader.start()
        until = time.monotonic() + min(_START_S, self._answer_s)
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError, HTTPException):
                if self._request("GET", "/health")[0] == 200:
                    return
            time.sleep(0.05)
        raise self._failure("did not start")

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            self._log.extend(lines)

    def _request(self, verb: str, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=self._answer_s)
        try:
            connection.request(verb, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _failure(self, what: str) -> PeerError:
        self.close()
        return PeerError(f"llama-server {what}: {' '.join(''.join(list(self._log)[-6:]).split())}")

    def save(self) -> None:
        """Nothing: what a server has learned ends with it."""

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            self._reader.join()


def server_outcome(found: dict[str, Any]) -> Outcome:
    """What the server's reply says, counted as everywhere: its decode time starts at the end of
    the prompt, and a step that accepts n tokens generates n + 1."""
    timings = found["timings"]
    n_accepted = int(timings.get("draft_n_accepted", 0))
    n_tokens = int(timings["predicted_n"])
    return Outcome(
        n_tokens=n_tokens,
        n_steps=max(0, n_tokens - 1 - n_accepted),
        prefill_s=timings["prompt_ms"] / 1e3,
        decode_s=timings["predicted_ms"] / 1e3,
        n_drafted=int(timings.get("draft_n", 0)),
        n_accepted=n_accepted,
        tokens=list(found["tokens"]),
    )


def peak_bytes(pid: int) -> int:
    """Most memory that a process used so far; 0 where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def about_peers(folder: Path) -> dict[str, Any]:
    """Version and flags of the built programs, for the report."""
    file = folder / "peers.json"
    about: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return about | {"folder": os.fspath(folder)}
