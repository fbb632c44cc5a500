"""Whether Numba has compiled the drafter's kernels, and a process of its own that compiles them.

That takes ten seconds, once on a machine and for each version; no answer waits for it.
``python -m edge_tr.drafts.compiled`` compiles them now.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from threading import Lock

import numba
from llvmlite import binding

from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.files.whole_file import write_whole
from edge_tr.kernels import candidates, matches, topk, tree
from edge_tr.machine import child_process

_lock = Lock()
_ready = False
_child: subprocess.Popen[bytes] | None = None


def compile_now() -> None:
    """Compile what is not on disk yet, in this process."""
    global _ready
    GrownTreeDrafter(Candidates(AdjacencyMatrix(16)), n_ctx=16).compile()
    _ready = True
    mark = _mark()
    if mark is not None and not _is_marked():
        try:
            write_whole(mark, lambda stream: stream.write(_stamp().encode()))
        except OSError:
            return  # the next process starts another one that compiles, and finds all on disk


def compile_beside() -> bool:
    """Have the kernels compiled by another process if they are not on disk; where there can be
    none, or nothing is kept on disk, compile them now.

    Returns
    -------
    Whether another process is at it: ``is_ready`` says when they can be used.
    """
    global _child
    with _lock:
        if _ready or _is_marked() or not (_mark() and child_process.can_run()):
            compile_now()
        elif _child is None:
            nothing = subprocess.DEVNULL
            _child = subprocess.Popen(
                child_process.command(__name__),
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                start_new_session=True,  # Ctrl-C is not meant for it
            )
        return not _ready


def is_ready() -> bool:
    """Whether the kernels can be used without waiting; microseconds where they can."""
    if _ready:
        return True
    with _lock:
        is_over = _child is None or _child.poll() is not None
        if is_over or _is_marked():
            compile_now()
        return _ready


def _mark() -> Path | None:
    """File beside Numba's own that says what they were made from; None where it keeps none."""
    kept = getattr(candidates.grow_tree, "stats", None)  # none where NUMBA_DISABLE_JIT is set
    directory = kept.cache_path if kept else None
    return Path(directory, f"drafter.{sys.implementation.cache_tag}.ready") if directory else None


def _is_marked() -> bool:
    mark = _mark()
    try:
        return mark is not None and mark.read_text("ascii", "replace") == _stamp()
    except OSError:
        return False


def _stamp() -> str:
    """Changes with whatever makes Numba compile again."""
    parts = [numba.__version__, sys.version, binding.get_host_cpu_name()]
    parts.append(binding.get_host_cpu_features().flatten())
    for module in (candidates, matches, topk, tree):
        known = os.stat(module.__file__ or "")
        parts.append(f"{known.st_size} {known.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(10)
    compile_now()
