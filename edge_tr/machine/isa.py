"""Which instruction sets really execute on this machine.

Some virtual machines advertise a set (AMX, most often) and trap on its first instruction, so a
build that trusts the processor's own list dies in the first decode. Here each set runs a few
instructions in a child process of its own: machine code in an executable page, so no compiler is
needed. Only the standard library is used: ``native/build.py`` runs this with a bare python3, and
``python3 edge_tr/machine/isa.py`` prints what it found.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterable
from typing import NamedTuple

_RET = "c3"
_TILE_CONFIG = "01" + "00" * 15 + "0400" * 3 + "00" * 26 + "01" * 3 + "00" * 13  # 3 tiles of 1 x 4
_LOAD_TILES = "c4e2784905{offset:02x}000000"  # ldtilecfg [rip + offset]
_FREE_TILES = "c4e27849c0"  # tilerelease


def _tile_code(body: str) -> str:
    tail = body + _FREE_TILES + _RET
    return _LOAD_TILES.format(offset=len(tail) // 2) + tail + _TILE_CONFIG


class _Set(NamedTuple):
    flags: tuple[str, ...]
    """Names in /proc/cpuinfo that advertise the set (all of them)."""
    needs: tuple[str, ...]
    """Sets without which llama.cpp makes no use of this one."""
    code: str
    """x86-64 machine code, hexadecimal, that touches volatile registers only."""


_X86: dict[str, _Set] = {
    "sse42": _Set(("sse4_2",), (), "f20f38f1c1 660f3837c0 c3"),  # crc32, pcmpgtq
    "avx": _Set(("avx",), ("sse42",), "c5fc58c0 c3"),  # vaddps ymm
    "avx2": _Set(("avx2",), ("avx",), "c5fdfec0 c3"),  # vpaddd ymm
    "fma": _Set(("fma",), ("avx",), "c4e27db8c0 c3"),  # vfmadd231ps
    "f16c": _Set(("f16c",), ("avx",), "c4e27d13c0 c3"),  # vcvtph2ps
    "bmi2": _Set(("bmi2",), (), "c4e27bf5c1 c3"),  # pdep
    "avx_vnni": _Set(("avx_vnni",), ("avx2",), "c4e27d50c0 c3"),  # {vex} vpdpbusd ymm
    # One instruction each of avx512f, cd, vl, dq, bw: what GGML_AVX512 compiles with.
    "avx512": _Set(
        ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
        ("avx2", "fma", "f16c"),
        "62f17c4858c0 62f27d48c4c0 62f37d2825c000 62f2fd4840c0 62f17d48fcc0 c3",
    ),
    "avx512_vbmi": _Set(("avx512vbmi",), ("avx512",), "62f27d488dc0 c3"),  # vpermb
    "avx512_vnni": _Set(("avx512_vnni",), ("avx512",), "62f27d4850c0 c3"),  # vpdpbusd zmm
    "avx512_bf16": _Set(("avx512_bf16",), ("avx512",), "62f27e4852c0 c3"),  # vdpbf16ps
    "amx_tile": _Set(("amx_tile",), ("avx512_vnni",), _tile_code("c4e27b49c0")),  # tilezero
    "amx_int8": _Set(("amx_int8",), ("amx_tile",), _tile_code("c4e26b5ec1")),  # tdpbssd
    "amx_bf16": _Set(("amx_bf16",), ("amx_tile",), _tile_code("c4e26a5cc1")),  # tdpbf16ps
}

_ARM: dict[str, tuple[str, str]] = {  # name: (Linux feature, macOS sysctl)
    "neon": ("asimd", "hw.optional.AdvSIMD"),
    "fp16": ("asimdhp", "hw.optional.arm.FEAT_FP16"),
    "dotprod": ("asimddp", "hw.optional.arm.FEAT_DotProd"),
    "i8mm": ("i8mm", "hw.optional.arm.FEAT_I8MM"),
    "bf16": ("bf16", "hw.optional.arm.FEAT_BF16"),
    "sve": ("sve", "hw.optional.arm.FEAT_SVE"),
    "sve2": ("sve2", "hw.optional.arm.FEAT_SVE2"),
    "sme": ("sme", "hw.optional.arm.FEAT_SME"),
}


class SetStatus(NamedTuple):
    """What is known of one instruction set."""

    name: str
    advertised: bool | None
    """The processor lists it; None: this system does not say."""
    executes: bool | None
    """Its instructions ran (True) or trapped (False) in a child process; None: not tried."""
    note: str = ""
    """Why it was not tried, if that is not plain."""

    @property
    def usable(self) -> bool:
        """Whether a build may contain it."""
        return bool(self.advertised) if self.executes is None else self.executes

    @property
    def traps(self) -> bool:
        """Advertised, and yet its instructions trap."""
        return self.advertised is not False and self.executes is False


def is_x86() -> bool:
    """Whether this is a 64-bit Python on an x86-64 processor."""
    return platform.machine().lower() in ("x86_64", "amd64") and sys.maxsize > 2**32


def is_arm() -> bool:
    """Whether this is a 64-bit ARM processor."""
    return platform.machine().lower() in ("arm64", "aarch64")


def probe() -> dict[str, SetStatus]:
    """Find the instruction sets of this machine; on x86-64 by running each in a child process.

    Returns
    -------
    dict
        Name to status, in the order in which they build on each other. Empty where nothing is
        known of the processor. ARM sets are reported as advertised and not tried: llama.cpp's own
        detection compiles and runs a test there.
    """
    if is_arm():
        return {name: SetStatus(name, flag, None) for name, flag in _arm_advertised().items()}
    if not is_x86():
        return {}
    advertised = _x86_advertised()
    found = {
        name: None if advertised is None else set(s.flags) <= advertised for name, s in _X86.items()
    }
    outcomes = _run_children(name for name, flag in found.items() if flag is not False)
    return {
        name: SetStatus(name, flag, *outcomes.get(name, (None, ""))) for name, flag in found.items()
    }


def cmake_flags(found: dict[str, SetStatus], accepted: Iterable[str] | None = None) -> list[str]:
    """CMake flags that compile llama.cpp for exactly the sets that execute.

    Parameters
    ----------
    found
        What ``probe`` returned.
    accepted
        Names of the sets that the compiler knows; None = all.

    Returns
    -------
    list of str
        ``-DGGML_NATIVE=OFF`` and one ON or OFF per set on x86-64; elsewhere
        ``-DGGML_NATIVE=ON``, where llama.cpp tests what runs.
    """
    if not is_x86():
        return ["-DGGML_NATIVE=ON"]
    known = set(_X86 if accepted is None else accepted)
    usable: set[str] = set()
    for name, instruction_set in _X86.items():
        possible = name in known and name in found and found[name].usable
        if possible and usable.issuperset(instruction_set.needs):
            usable.add(name)
    states = (f"-DGGML_{name.upper()}={'ON' if name in usable else 'OFF'}" for name in _X86)
    return ["-DGGML_NATIVE=OFF", *states]


def advertised_flags() -> set[str]:
    """The processor's features as this system names them; empty where it does not say."""
    if is_x86():
        return _x86_advertised() or set()
    return {name for name, flag in _arm_advertised().items() if flag} if is_arm() else set()


def _x86_advertised() -> set[str] | None:
    if platform.system() == "Linux":
        return _cpuinfo_words("flags")
    if platform.system() == "Darwin":
        text = " ".join(_sysctl(f"machdep.cpu.{key}") for key in ("features", "leaf7_features"))
        words = {word.lower().replace(".", "_") for word in text.split()}
        renamed = {"avx1_0": "avx", "avx512vnni": "avx512_vnni"}
        return {renamed.get(word, word) for word in words} or None
    return None


def _arm_advertised() -> dict[str, bool | None]:
    if platform.system() == "Linux":
        words = _cpuinfo_words("Features")
        return {
            name: None if words is None else linux in words for name, (linux, _) in _ARM.items()
        }
    if platform.system() == "Darwin":
        return {name: _sysctl(mac) == "1" for name, (_, mac) in _ARM.items()}
    return {}


def _cpuinfo_words(key: str) -> set[str] | None:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == key:
                    return set(value.split())
    except OSError:
        pass
    return None


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _run_children(names: Iterable[str]) -> dict[str, tuple[bool | None, str]]:
    """One child process per set, all at once; (executed, note) of each."""
    if getattr(sys, "frozen", False) or not sys.executable:
        if platform.system() == "Linux":
            return {name: _in_fork(bytes.fromhex(_X86[name].code)) for name in names}
        return dict.fromkeys(names, (None, "no Python interpreter to try it in"))
    children = {
        name: subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, _X86[name].code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in names
    }
    return {name: _outcome(child) for name, child in children.items()}


def _in_fork(code: bytes) -> tuple[bool | None, str]:
    """The same in a fork of a frozen application, which would be its own second start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside other threads
        process = os.fork()
    if process == 0:
        try:
            _prepare()
            _execute(code)
            os._exit(0)
        finally:
            os._exit(3)
    _, status = os.waitpid(process, 0)
    return (True, "") if status == 0 else (False if os.WIFSIGNALED(status) else None, "")


def _outcome(child: subprocess.Popen[bytes]) -> tuple[bool | None, str]:
    try:
        code = child.wait(timeout=20)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return None, "the child process did not end"
    if code == 0:
        return True, ""
    if code < 0 or code >= 0xC0000000:  # ended by a signal; on Windows by an exception
        return False, ""
    return None, "this system refuses executable memory, so the advertised list is believed"


def _prepare() -> None:
    """Die quietly, and ask Linux for the AMX tile registers as llama.cpp does."""
    if sys.platform == "win32":
        ctypes.windll.kernel32.SetErrorMode(0x0003)
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
        ctypes.CDLL(None).syscall(158, 0x1023, 18)


def _execute(code: bytes) -> None:
    """Run machine code that takes and returns nothing."""
    if sys.platform == "win32":
        allocate = ctypes.windll.kernel32.VirtualAlloc
        allocate.restype = ctypes.c_void_p
        address = allocate(None, len(code), 0x3000, 0x40)  # commit + reserve, execute-read-write
        if not address:
            raise PermissionError("VirtualAlloc gave no executable memory")
        ctypes.memmove(address, code, len(code))
        ctypes.CFUNCTYPE(None)(address)()
        return
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()


def _main() -> int:
    if len(sys.argv) == 2:
        _prepare()
        try:
            _execute(bytes.fromhex(sys.argv[1]))
        except OSError:
            return 3
        return 0
    found = probe()
    for status in found.values():
        words = {True: "executes", False: "traps" if status.traps else "no", None: "not tried"}
        listed = {True: "advertised", False: "absent", None: "unknown"}[status.advertised]
        print(f"{status.name:12} {listed:10} {words[status.executes]} {status.note}".rstrip())
    print(" ".join(cmake_flags(found)))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
