"""edge_tr in a frozen application: what is imported by name, and the files beside its modules."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules, copy_metadata

_LEFT_OUT = ("bench", "cli", "plugin", "server", "_pyinstaller")
"""Collected where the application imports them."""


def _wanted(name: str) -> bool:
    return name.removeprefix("edge_tr.").split(".")[0] not in _LEFT_OUT


hiddenimports = collect_submodules("edge_tr", filter=_wanted)
datas = collect_data_files("edge_tr", excludes=["bench/**", "_pyinstaller/**"])
datas += copy_metadata("edge_tr")
