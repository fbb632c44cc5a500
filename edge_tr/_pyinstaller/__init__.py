"""What PyInstaller asks for: how to freeze an application that uses edge_tr.

PyInstaller finds the folder by the entry point ``pyinstaller40``; nothing of it is imported by a
running application.
"""

from __future__ import annotations

from pathlib import Path


def hook_directories() -> list[str]:
    """The folder of ``hook-*.py`` and ``rthooks.dat``."""
    return [str(Path(__file__).parent)]
