"""Modules of ours that run in a process of their own, also where the application is frozen.

``sys.executable`` of a frozen application is the application itself: started as if it were Python
it would open a second window. What PyInstaller freezes with our hook runs the module instead; what
was frozen otherwise has no children.
"""

from __future__ import annotations

import sys


def is_frozen() -> bool:
    """Whether this process is a frozen application and not a Python interpreter."""
    return bool(getattr(sys, "frozen", False)) or "__compiled__" in globals()


def can_run() -> bool:
    """Whether a module can be run in a process of its own."""
    return bool(sys.executable) and (not is_frozen() or hasattr(sys, "_edge_tr_children"))


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of edge_tr; only where ``can_run``.

    Raises
    ------
    RuntimeError
        It cannot: the command would start the application again.
    """
    if not can_run():
        raise RuntimeError(f"{module} cannot run beside an application frozen without our hook")
    return [sys.executable, "-m", module, *arguments]
