"""Vulkan's headers: whether they are new enough for llama.cpp, and newer ones beside the system's;
and on Debian 12 a newer Mesa, whose device that computes on the CPU the tests for GPUs use.

``python3 native/vulkan.py`` fetches the headers of Debian 13 into the cache directory, where the
preset finds them: Debian 12's and Ubuntu 24.04's are too old. So is Debian 12's Mesa.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from edge_tr.errors import NativeBuildError  # noqa: E402
from edge_tr.files.paths import cache_dir  # noqa: E402

OLDEST = (1, 4)
"""Version of Vulkan's headers that llama.cpp compiles with, at least."""
SUITE = "trixie"
"""The Debian whose headers are fetched; its version 1.4.309 compiles."""
PACKAGES = ("libvulkan-dev", "spirv-headers")

MESA_SUITE = "bookworm-backports"
"""Mesa 25.0.7, made for Debian 12; what else it needs comes with Debian 12's own."""
MESA_PACKAGES = ("mesa-vulkan-drivers", "libdrm2")

_HOW = (
    "install the Vulkan SDK (vulkan.lunarg.com) and set VULKAN_SDK, or on Debian: python3 "
    "native/vulkan.py, which fetches newer headers into the cache directory"
)


def flags() -> list[str]:
    """CMake's flags for headers that the system's folders do not hold.

    Raises
    ------
    NativeBuildError : those found are too old, or there are none; the text says how to get newer.
    """
    if "Vulkan_INCLUDE_DIR" in os.environ.get("CMAKE_ARGS", ""):
        return []
    if os.environ.get("VULKAN_SDK") or sys.platform == "win32":
        places = [Path(os.environ.get("VULKAN_SDK", "")) / name for name in ("include", "Include")]
    else:
        places = [Path("/usr/local/include"), Path("/usr/include")]
    found = [(version, place) for place in places if (version := headers_version(place))]
    if found and found[0][0] >= OLDEST:
        return []
    fetched = fetched_folder()
    if headers_version(fetched / "include"):
        return [
            f"-DVulkan_INCLUDE_DIR={fetched / 'include'}",
            f"-DSPIRV-Headers_DIR={fetched / 'share' / 'cmake' / 'SPIRV-Headers'}",
        ]
    if not found:
        raise NativeBuildError(f"preset vulkan needs Vulkan's headers, and there are none: {_HOW}")
    version, place = found[0]
    raise NativeBuildError(
        f"Vulkan's headers in {place} are of version {_dotted(version)}, llama.cpp needs "
        f"{_dotted(OLDEST)} or later: {_HOW}"
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def headers_version(include: Path) -> tuple[int, ...] | None:
    """Version of the headers in a folder of headers, as (1, 3, 239); None: there are none."""
    try:
        text = (include / "vulkan" / "vulkan_core.h").read_text("utf-8", errors="replace")
    except OSError:
        return None
    patch = re.search(r"#define VK_HEADER_VERSION (\d+)", text)
    rest = re.search(r"VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(0, (\d+), (\d+),", text)
    return (int(rest[1]), int(rest[2]), int(patch[1])) if patch and rest else None


def fetched_folder() -> Path:
    """Where fetched headers lie: ``include`` and ``share`` are in it."""
    return cache_dir() / "vulkan-headers" / SUITE / "usr"


def fetch() -> Path:
    """Fetch Debian's headers with apt, from the mirror and with the keys that this machine uses,
    and unpack them; nothing is installed.

    Returns
    -------
    Path
        ``fetched_folder()``.

    Raises
    ------
    NativeBuildError : this is no Debian, or apt did not bring them.
    """
    if not headers_version(fetched_folder() / "include"):
        _fetch(SUITE, PACKAGES, fetched_folder().parent)
    return fetched_folder()


def fetch_mesa() -> Path | None:
    """Fetch a newer Mesa in the same way; None: this is not Debian 12, and has what it has.

    Raises
    ------
    NativeBuildError : apt did not bring it.
    """
    try:
        release = Path("/etc/os-release").read_text("utf-8")
    except OSError:
        return None
    if "VERSION_CODENAME=bookworm" not in release:
        return None
    if not _mesa_folder().is_dir():
        _fetch(MESA_SUITE, MESA_PACKAGES, _mesa_folder().parent)
    return _mesa_folder()


def _mesa_folder() -> Path:
    return cache_dir() / "mesa" / MESA_SUITE / "usr"


def mesa_environment() -> dict[str, str]:
    """Variables with which the fetched Mesa's device on the CPU is the only one; empty: none was
    fetched."""
    driver = _mesa_folder() / "share" / "vulkan" / "icd.d" / "lvp_icd.json"
    if not driver.exists():
        return {}
    libraries = next(_mesa_folder().glob("lib/*/libvulkan_lvp.so")).parent
    paths = [str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    names = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # the second is for loaders before 1.3.207
    return {"LD_LIBRARY_PATH": os.pathsep.join(paths)} | dict.fromkeys(names, str(driver))


def _fetch(suite: str, packages: tuple[str, ...], final: Path) -> None:
    """Unpack packages of a suite into a folder."""
    mirror = _mirror()
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent) as folder:
        work = Path(folder)
        for name in ("lists/partial", "cache/archives/partial", "unpacked"):
            (work / name).mkdir(parents=True)
        key = "/usr/share/keyrings/debian-archive-keyring.gpg"
        (work / "sources").write_text(f"deb [signed-by={key}] {mirror} {suite} main\n")
        (work / "apt.conf").write_text(
            f'Dir::Etc::sourcelist "{work}/sources";\nDir::Etc::sourceparts "-";\n'
            f'Dir::State::lists "{work}/lists";\nDir::Cache "{work}/cache";\n'
            'APT::Sandbox::User "";\n'
        )
        _run(["apt-get", "-q", "update"], work)
        _run(["apt-get", "-q", "download", "-t", suite, *packages], work)
        for package in sorted(work.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(work / "unpacked")], work)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(work / "unpacked", final)


def _mirror() -> str:
    """The address of Debian's packages, from apt's own settings."""
    if not shutil.which("apt-get"):
        raise NativeBuildError(f"there is no apt-get here; {_HOW}")
    columns = ["--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"]
    done = subprocess.run(
        ["apt-get", "indextargets", *columns], capture_output=True, text=True, check=False
    )
    for line in done.stdout.splitlines():
        origin, _, address = line.partition(" ")
        if origin == "Debian" and address.rstrip("/").endswith("/debian"):
            return address
    raise NativeBuildError(f"apt knows no mirror of Debian (run apt-get update first); {_HOW}")


def _run(command: list[str], work: Path) -> None:
    environment = os.environ | {"APT_CONFIG": str(work / "apt.conf"), "LC_ALL": "C"}
    done = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise NativeBuildError(f"{' '.join(command[:3])} failed: {said}")


def main() -> int:
    """Fetch the headers, and Mesa on Debian 12, and say where they are."""
    try:
        folder, mesa = fetch(), fetch_mesa()
    except NativeBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    version = headers_version(folder / "include") or ()
    print(f"Vulkan's headers {_dotted(version)}: {folder / 'include'}")
    if mesa:
        print(f"Mesa of {MESA_SUITE}: {mesa}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
