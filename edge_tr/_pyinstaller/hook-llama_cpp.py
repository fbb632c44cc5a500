"""llama_cpp in a frozen application: its libraries, which it opens by path."""

from pathlib import Path

from PyInstaller.utils.hooks import get_module_file_attribute

_folder = Path(get_module_file_attribute("llama_cpp")).parent / "lib"
binaries = [
    (str(path), "llama_cpp/lib")
    for path in sorted(_folder.iterdir())
    if {".so", ".dll", ".dylib"} & set(path.suffixes)
]
hiddenimports = ["llama_cpp._cpu_variant", "llama_cpp._isa"]
excludedimports = ["matplotlib", "aiohttp", "llama_cpp.server"]
