"""The end of a process that leaves its models to the interpreter says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

OPEN = """
import atexit, builtins, os, sys, threading
at_last = []
atexit.register(lambda: [act() for act in at_last])  # after edge_tr's own, which come later
from edge_tr import Llama
llm = Llama(sys.argv[1], n_ctx=256, n_threads=1, verbose=False, matrix_path=False)
"""
STREAM = "stream = llm.create_completion('a', max_tokens=200, stream=True); next(stream)\n"

ENDINGS = {
    "plain": "",
    "in a with block": "with llm: pass\n",
    "held by a module that goes last": "builtins.kept = llm\n",
    "when modules are empty": (
        "from edge_tr.llama import turns\n"
        "at_last.append(lambda: setattr(turns, 'os', None)); builtins.kept = llm\n"
    ),
    "in a cycle that is never collected": (
        "import gc; gc.disable()\nclass A: pass\na = A(); a.me, a.llm = a, llm\nsys.kept = a\n"
    ),
    "with a stream open": STREAM + "builtins.kept = stream, llm\n",
    "with a thread that asks": (
        "ask = lambda: llm.create_completion('a', max_tokens=20)\n"
        "threading.Thread(target=ask).start()\n"
    ),
    "with a thread that is left behind": (
        "def ask():\n"
        "    while True:\n"
        "        try: llm.create_completion('a', max_tokens=20)\n"
        "        except Exception: return\n"
        "threading.Thread(target=ask, daemon=True).start()\n"
        "import time; time.sleep(0.2)\n"
    ),
    "after sys.exit": STREAM + "sys.exit(0)\n",
    "after a fork": (
        "if hasattr(os, 'fork') and os.fork() == 0: sys.exit(0)\n"
        "if hasattr(os, 'wait'): os.wait()\n"
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_is_silent(ending: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    done = _run(OPEN + ENDINGS[ending], tiny_model("llama"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_exception_is_all_that_is_said(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    done = _run(OPEN + STREAM + "raise SystemExit('over')\n", tiny_model("llama"), tmp_path)
    assert (done.returncode, done.stderr) == (1, "over\n")


def _run(program: str, model: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    places = {"EDGE_TR_CACHE_DIR": str(folder), "EDGE_TR_DATA_DIR": str(folder)}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(model)],
        env=os.environ | places,
        capture_output=True,
        text=True,
        timeout=300,
    )
