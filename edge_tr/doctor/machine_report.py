"""What the owner of a machine sends back: the doctor's findings, what was measured, no names.

``gather`` examines and measures, in child processes that may die; ``anonymous`` takes out
what belongs to a person: folders, the name of the user and of the machine.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_tr.doctor import findings
from edge_tr.machine import child_process
from edge_tr.machine.build_check import child_stage

FORMAT = 1

_FOLDERS = ("paths", "folder")
"""Keys of the doctor's findings that hold nothing but folders."""
_POSIX = r"(?<![\w.:/])/(?:[^\s/:'\"]+/)+"
_WINDOWS = r"\b[A-Za-z]:\\(?:[^\\:'\"]+\\)+"


def gather(
    model: Path | None,
    *,
    n_gpu_layers: int = -1,
    quick: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Examine the machine and the build, and measure a model.

    Parameters
    ----------
    model
        None = only examine; so is done where the build does not work.
    n_gpu_layers
        Layers of it on the GPU; -1 = all.
    quick
        Measure next to nothing, for a test of the report itself.
    progress
        Called with a line before what takes seconds.

    Returns
    -------
    dict
        Of plain JSON types, made anonymous; ``measured`` has what the child process found until
        it was done or died, and ``error``.
    """
    progress("examining the machine and the build")
    found = findings.report(model, n_gpu_layers=n_gpu_layers)
    measured = None
    if model is not None and found["decode"]["works"] and not found["model"]["error"]:
        measured = _measure(model, n_gpu_layers, quick, progress)
    result: dict[str, Any] = anonymous({"report": FORMAT, **found, "measured": measured})
    return result


def _measure(
    model: Path, n_gpu_layers: int, quick: bool, progress: Callable[[str], None]
) -> dict[str, Any]:
    command = child_process.command("edge_tr.doctor.measured_child", str(model), str(n_gpu_layers))
    progress("measuring; this takes a minute or two")
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [*command, "--quick"] if quick else command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
        ) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            stage = child_stage(line)
            if stage is not None:
                found[stage[0]] = stage[1]
                progress(f"measured: {stage[0]}")
        code = child.wait()
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    done = found.pop("done", None) is not None
    found["error"] = "" if done else f"exit code {code}: {' | '.join(lines[-3:])}"
    return found


def anonymous(value: Any) -> Any:
    """Without folders and without the names of the user and the machine."""
    return _clean(value, _names())


def _clean(value: Any, names: re.Pattern[str] | None) -> Any:
    if isinstance(value, dict):
        return {k: _clean(v, names) for k, v in value.items() if k not in _FOLDERS}
    if isinstance(value, list):
        return [_clean(item, names) for item in value]
    if not isinstance(value, str):
        return value
    home = str(Path.home())
    if len(home) > 1:  # it may hold spaces, which the patterns take for the end
        value = value.replace(home + os.sep, os.sep).replace(home, "~")
    text = re.sub(_WINDOWS, "", re.sub(_POSIX, "", value))
    return names.sub("(name)", text) if names else text


def _names() -> re.Pattern[str] | None:
    found = {platform.node(), platform.node().partition(".")[0]}
    try:
        found.add(getpass.getuser())
    except (OSError, KeyError):  # an account without a name
        found.add("")
    words = [re.escape(name) for name in found if len(name) > 2]
    return re.compile(rf"\b(?:{'|'.join(words)})\b") if words else None
