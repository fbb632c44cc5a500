"""The source archive of llama-cpp-python, and the places at which our kernels enter it."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from edge_tr.errors import NativeBuildError
from edge_tr.files.paths import cache_dir

PACKAGE = "llama-cpp-python"
ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "native" / "kernels"
KERNELS_VERSION = "edge.tr.1"
"""Local version of a wheel with our kernels: ``0.3.36+edge.tr.1``."""

_CPU = "vendor/llama.cpp/ggml/src/ggml-cpu"


class Hook(NamedTuple):
    """Text that goes behind the one place where ``anchor`` stands in a file of the archive."""

    file: str
    anchor: str
    text: str


HOOKS = (
    Hook(
        f"{_CPU}/CMakeLists.txt",
        "        ggml-cpu/ops.cpp\n        )\n",
        "\n    file(GLOB EDGE_TR_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/ggml-cpu/edge_tr/*.cpp)\n"
        "    list(APPEND GGML_CPU_SOURCES ${EDGE_TR_SOURCES})\n"
        "    if (NOT MSVC)\n"
        "        set_source_files_properties(${EDGE_TR_SOURCES}"
        " PROPERTIES COMPILE_OPTIONS -ffp-contract=off)\n"
        "    endif()\n",
    ),
    Hook(f"{_CPU}/ggml-cpu.cpp", '#include "repack.h"\n', '#include "edge_tr/backend.h"\n'),
    Hook(
        f"{_CPU}/ggml-cpu.cpp",
        "        std::vector<ggml_backend_buffer_type_t> bufts;\n",
        "\n        bufts.push_back(edge_tr_buffer_type());\n",
    ),
)

VARIANT_HOOKS = (
    Hook(
        "vendor/llama.cpp/ggml/src/CMakeLists.txt",
        "function(ggml_add_cpu_backend_variant tag_name)\n",
        "    if (EDGE_TR_CPU_VARIANTS AND NOT tag_name IN_LIST EDGE_TR_CPU_VARIANTS)\n"
        "        return()\n"
        "    endif()\n",
    ),
    Hook(
        "llama_cpp/llama_cpp.py",
        "_lib = load_shared_library(_lib_base_name, _base_path)\n",
        "from llama_cpp import _cpu_variant\n\n_cpu_variant.load(_base_path)\n",
    ),
)
"""For a build whose CPU back end lies in one library for each generation of processors."""

_VARIANT_FILES = {  # in our tree: in the archive
    ROOT / "native" / "cpu_variant.py": "llama_cpp/_cpu_variant.py",
    ROOT / "edge_tr" / "machine" / "isa.py": "llama_cpp/_isa.py",
}


def fetch(version: str, folder: Path, run: Callable[[list[str]], None]) -> Path:
    """Unpack the archive, which the cache directory keeps once it came from PyPI.

    Parameters
    ----------
    version
        Of llama-cpp-python.
    folder
        An empty folder to put it into.
    run
        Runs a command, and raises where it fails.

    Returns
    -------
    Path
        The folder with its ``pyproject.toml``.

    Raises
    ------
    NativeBuildError
        pip brought no archive.
    """
    kept = cache_dir() / "source"
    archive = next(kept.glob(f"*-{version}.tar.gz"), None)
    if archive is None:
        wanted = f"{PACKAGE}=={version}"
        pip = [sys.executable, "-m", "pip", "download", "--no-deps"]
        run([*pip, "--no-binary", PACKAGE, "-d", str(folder), wanted])
        brought = next(folder.glob("*.tar.gz"), None)
        if brought is None:
            raise NativeBuildError(f"pip brought no source archive of {wanted}")
        kept.mkdir(parents=True, exist_ok=True)
        archive = kept / brought.name
        os.replace(brought, archive)
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(folder)
    return next(folder.glob("*/pyproject.toml")).parent


def add_kernels(source: Path, version: str) -> None:
    """Put our kernels into an unpacked archive.

    Raises
    ------
    NativeBuildError
        A place at which they enter is not there, or there twice: the archive is of another version.
    """
    shutil.copytree(KERNELS, source / _CPU / "edge_tr", ignore=shutil.ignore_patterns("*.md"))
    own = f'__version__ = "{version}'
    _enter(source, version, (*HOOKS, Hook("llama_cpp/__init__.py", own, f"+{KERNELS_VERSION}")))


def add_variants(source: Path, version: str) -> None:
    """Put the choice among libraries of the CPU back end into an unpacked archive.

    Raises
    ------
    NativeBuildError
        As ``add_kernels``.
    """
    for path, name in _VARIANT_FILES.items():
        shutil.copyfile(path, source / name)
    _enter(source, version, VARIANT_HOOKS)


def _enter(source: Path, version: str, hooks: tuple[Hook, ...]) -> None:
    for hook in hooks:
        path = source / hook.file
        text = path.read_text("utf-8") if path.exists() else ""
        if text.count(hook.anchor) != 1:
            raise NativeBuildError(
                f"{PACKAGE} {version}: our kernels do not fit its {hook.file}, where this text "
                f"stands {text.count(hook.anchor)} times, not once: {hook.anchor.strip()!r}. "
                "Use --preset stock, which leaves them out"
            )
        path.write_text(text.replace(hook.anchor, hook.anchor + hook.text), "utf-8")


def kernels_identity() -> str:
    """All that our kernels are made of, as one text: another text is another wheel."""
    files = sorted(path for path in KERNELS.iterdir() if path.suffix in (".h", ".cpp"))
    return "".join(f"{path.name}\n{path.read_text('utf-8')}" for path in files) + repr(HOOKS)


def variants_identity() -> str:
    """The same of what ``add_variants`` adds."""
    return "".join(path.read_text("utf-8") for path in _VARIANT_FILES) + repr(VARIANT_HOOKS)
