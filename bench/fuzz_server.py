"""A server in a process of its own that gets random requests."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema

_PATIENCE_S = 60.0
"""A request that takes longer hangs; answers are of a few hundred tokens of a tiny model."""


class FuzzedServer:
    """Starts the server again where it died.

    Parameters
    ----------
    model : the file.
    found : is told of a fault: its kind and what was sent.
    """

    def __init__(self, model: Path, found: Callable[[str, str], None]) -> None:
        self._model, self._found = model, found
        self._process: subprocess.Popen[str] | None = None
        self._port = 0

    def __enter__(self) -> FuzzedServer:
        self._start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop()

    def _start(self) -> None:
        command = [sys.executable, "-m", "edge_tr.cli", "serve", "--port", "0", "-m",
                   str(self._model), "--tree", "off", "--ctx", "512", "--threads", "1",
                   "--no-save"]  # fmt: skip
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        # what it tells later is little, and is read by nobody
        assert self._process.stderr is not None
        told = []
        for line in self._process.stderr:
            told.append(line)
            if "listening at" in line:
                self._port = int(line.split("://")[1].split("/")[0].rpartition(":")[2])
                break
        else:
            raise RuntimeError("the server did not start: " + "".join(told))

    def _stop(self) -> int:
        """End the process; its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._found("hangs", "the server did not stop at SIGTERM")
                self._process.kill()
        return self._process.wait()

    def send(self, path: str, body: Any, name: str) -> Any:
        """Send a body; the decoded answer, or None where there was none to decode."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        try:
            connection.request("POST", path, json.dumps(body).encode())
            response = connection.getresponse()
            data = response.read()
            if response.status >= 500 and response.status != 503:
                self._found("status_500", f"{name}: {data!r:.200} {json.dumps(body)}")
                return None
            if b'"server_error"' in data:  # in a stream
                self._found("status_500", f"{name}: {data!r:.200} {json.dumps(body)}")
            return json.loads(data) if data[:1] == b"{" else None
        except TimeoutError:
            self._found("hangs", f"{name}: {json.dumps(body)}")
            self._stop()
            self._start()
        except (ConnectionError, http.client.HTTPException) as error:
            code = self._stop()
            self._found("crashes", f"{name}: exit code {code}, {error!r}: {json.dumps(body)}")
            self._start()
        finally:
            connection.close()
        return None

    def answer(self, schema: Any, name: str, counts: Counter[str]) -> None:
        """Ask for an answer that follows a schema, and validate it."""
        if not isinstance(schema, dict):
            schema = {"anyOf": [schema]}
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        body = {
            "messages": [{"role": "user", "content": "x"}],
            "response_format": form,
            "max_tokens": 150,
            "temperature": 1,
        }
        answer = self.send("/v1/chat/completions", body, name)
        if not isinstance(answer, dict) or "choices" not in answer:
            return
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop":
            counts["finished_answers"] += 1
            told = fault(choice["message"]["content"], schema)
            if told:
                self._found("invalid_answers", f"{name}: {told} {choice} {json.dumps(schema)}")


def fault(text: str, schema: Any) -> str:
    """What is wrong with an answer to a schema; an empty text where nothing is."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    try:
        wrong = next(checker.iter_errors(value), None)
    except (RecursionError, jsonschema.exceptions.SchemaError):
        return ""
    return "" if wrong is None else f"violates the schema: {wrong.message:.200}"
