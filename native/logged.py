"""Commands that take minutes: their output in a file, their progress in a few lines."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any


def run_logged(
    command: list[str], log_path: Path, environment: dict[str, str] | None = None
) -> int:
    """Run a command, its output at the end of the log; a line is printed for every tenth of the
    compile steps. Its exit code."""
    with (
        log_path.open("a", encoding="utf-8", errors="replace") as log,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        _follow(process.stdout, log)
    return process.returncode


def _follow(lines: Any, log: Any) -> None:
    shown = 0
    for line in lines:
        log.write(line)
        step = re.match(r"\s*\[\s*(\d+)(?:/(\d+)|%)\]", line)
        if step:
            tenths = 10 * int(step[1]) // int(step[2] or 100)
            if tenths > shown:
                shown = tenths
                print(f"  {10 * tenths} %", flush=True)
