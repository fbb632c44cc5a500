"""Scripts that stand in for llama.cpp's own programs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

IS_POSIX = sys.platform != "win32"
posix = pytest.mark.skipif(not IS_POSIX, reason="the stand-in is a script")

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def reply(self, found):
        data = json.dumps(found).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply({})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        timings = {"prompt_ms": 10.0, "predicted_ms": 50.0, "predicted_n": body["n_predict"]}
        self.reply({"timings": timings, "tokens": body["prompt"][: body["n_predict"]]})

    def log_message(self, *parts):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
"""A llama-server whose answer is the beginning of the prompt."""


def write_program(folder: Path, name: str, script: str) -> Path:
    """The folder, with a Python script in place of a program."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return folder
