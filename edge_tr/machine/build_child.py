"""Load llama.cpp, decode once and say how far it came; run in a process that may die.

``python -m edge_tr.machine.build_child [MODEL N_GPU_LAYERS]`` prints one JSON object per stage it
reached:
``import`` (build, back ends, devices), ``load`` (where the layers lie), one ``decode`` per batch
width. Without a model it writes one of zeros that holds every common weight type, so that the
first decode touches every kernel a real model would. Imports nothing of edge_tr: it also checks a
wheel that was just built, before edge_tr is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

WIDTHS = (1, 3, 32)
"""Tokens per batch: matrix-vector kernels, small batches, tiles."""

_N = 256  # embedding, feed-forward and vocabulary size: one block of the K-quants
_WEIGHTS = {  # GGUF type number: bytes of one row of 256 weights
    "F16": (1, 512), "Q4_0": (2, 144), "Q4_1": (3, 160), "Q5_0": (6, 176), "Q8_0": (8, 272),
    "Q4_K": (12, 144), "Q5_K": (13, 176), "Q6_K": (14, 210), "BF16": (30, 512),
}  # fmt: skip
_F32 = (0, 4 * _N)
_MATRICES = (
    "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip
_DEVICE_TYPES = ("cpu", "gpu", "integrated gpu", "accelerator", "meta")


def write_zero_model(path: Path) -> None:
    """Write a llama model of zeros, one layer per weight type, about 4 MB, without a vocabulary."""
    values: dict[str, str | int | float] = {
        "general.architecture": "llama",
        "general.name": "edge_tr check",
        "llama.block_count": len(_WEIGHTS),
        "llama.context_length": 256,
        "llama.embedding_length": _N,
        "llama.feed_forward_length": _N,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": _N,
        "tokenizer.ggml.model": "no_vocab",
    }
    tensors: list[tuple[str, int, tuple[int, int]]] = [  # name, rows, (type, bytes of a row)
        ("token_embd.weight", _N, _WEIGHTS["Q8_0"]),
        ("output_norm.weight", 1, _F32),
        ("output.weight", _N, _WEIGHTS["Q6_K"]),
    ]
    for layer, kind in enumerate(_WEIGHTS.values()):
        tensors += [(f"blk.{layer}.{name}.weight", _N, kind) for name in _MATRICES]
        tensors += [(f"blk.{layer}.{name}.weight", 1, _F32) for name in ("attn_norm", "ffn_norm")]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values))
    head += b"".join(_string(key) + _value(value) for key, value in values.items())
    offset = 0
    for name, rows, (type_number, row_bytes) in tensors:
        shape = (_N, rows) if rows > 1 else (_N,)
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", type_number, offset)
        offset += _padded(rows * row_bytes)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(_padded(len(head)) + offset)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _value(value: str | int | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    return (
        struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)
    )


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // 32) * 32


def _emit(stage: str, **facts: Any) -> None:
    print(json.dumps({"stage": stage, **facts}), flush=True)


def _keep_log(llama_cpp: Any) -> tuple[list[str], Any]:
    """What llama.cpp logs from now on, and the callback, which must live as long."""
    lines: list[str] = []

    def keep(level: int, text: bytes, user_data: Any) -> None:
        lines.append(text.decode(errors="replace"))

    callback = llama_cpp.llama_log_callback(keep)
    llama_cpp.llama_log_set(callback, None)
    return lines, callback


def _build_facts(llama_cpp: Any, lines: list[str]) -> dict[str, Any]:
    folder = Path(llama_cpp.__file__).parent / "lib"
    return {
        "version": llama_cpp.__version__,
        "folder": str(folder),
        "system_info": llama_cpp.llama_print_system_info().decode(errors="replace"),
        "rpc": bool(llama_cpp.llama_supports_rpc()),
        **_ggml_facts(folder, lines),
        "kernels": _kernels(llama_cpp, folder),
        "cpu_variant": cpu_variant(llama_cpp),
    }


def cpu_variant(llama_cpp: Any) -> str | None:
    """The library of ggml's CPU back end that a portable build has loaded, by its name."""
    chooser = getattr(llama_cpp, "_cpu_variant", None)
    name: str | None = None if chooser is None else chooser.loaded
    return name


def cpu_library(llama_cpp: Any) -> str:
    """Base name of the library that holds ggml's CPU back end."""
    variant = cpu_variant(llama_cpp)
    return f"ggml-cpu-{variant}" if variant else "ggml-cpu"


def _kernels(llama_cpp: Any, folder: Path) -> dict[str, Any] | None:
    """What kernels of ours in the build say of themselves, and the parts that run, as bits."""
    from llama_cpp._ctypes_extensions import load_shared_library

    for name in ("ggml", cpu_library(llama_cpp)):
        with contextlib.suppress(FileNotFoundError, AttributeError):
            library = load_shared_library(name, folder)
            library.edge_tr_kernels_info.restype = ctypes.c_char_p
            found: dict[str, Any] = json.loads(library.edge_tr_kernels_info())
            return {**found, "active": library.edge_tr_kernels(-1)}
    return None


def _ggml_facts(folder: Path, lines: list[str]) -> dict[str, Any]:
    """Names of the back ends, and the devices they see, from ggml's registry; the Vulkan back end
    tells of its drivers in the log alone, that for CUDA why it sees none."""
    from llama_cpp._ctypes_extensions import load_shared_library

    libraries = [load_shared_library(name, folder) for name in ("ggml", "ggml-base")]

    def call(name: str, result: Any, *arguments: Any) -> Any:
        function = next(getattr(lib, name) for lib in libraries if hasattr(lib, name))
        function.restype = result
        return function(*arguments)

    def text(name: str, handle: Any) -> str:
        found = call(name, ctypes.c_char_p, handle)
        return found.decode(errors="replace") if found else ""

    def handles(kind: str) -> list[Any]:
        count = call(f"ggml_backend_{kind}_count", ctypes.c_size_t)
        get = f"ggml_backend_{kind}_get"
        return [
            ctypes.c_void_p(call(get, ctypes.c_void_p, ctypes.c_size_t(i))) for i in range(count)
        ]

    devices = []
    found = handles("dev")
    log = "".join(lines)
    drivers = re.findall(r"ggml_vulkan: (\d+) = .*\((.*?)\) \| ", log)
    refused = re.search(r"failed to initialize CUDA: (.+)", log)
    driver_of = {f"Vulkan{number}": driver for number, driver in drivers}
    for device in found:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        call("ggml_backend_dev_memory", None, device, ctypes.byref(free), ctypes.byref(total))
        kind = call("ggml_backend_dev_type", ctypes.c_int, device)
        name = text("ggml_backend_dev_name", device)
        devices.append(
            {
                "name": name,
                "description": text("ggml_backend_dev_description", device),
                "type": _DEVICE_TYPES[kind] if kind < len(_DEVICE_TYPES) else str(kind),
                "free_bytes": free.value,
                "total_bytes": total.value,
                "driver": driver_of.get(name, ""),
            }
        )
    return {
        "backends": [text("ggml_backend_reg_name", reg) for reg in handles("reg")],
        "devices": devices,
        "gpu_error": refused[1].strip() if refused else "",
    }


def _placement(log: str) -> dict[str, Any]:
    """Layers per device and bytes per buffer, from what llama.cpp logs while loading."""
    layers: dict[str, int] = {}
    for _, device in sorted(set(re.findall(r"layer +(\d+) assigned to device ([^,\s]+)", log))):
        layers[device] = layers.get(device, 0) + 1
    buffers = re.findall(r"(\S+) model buffer size = +([\d.]+) MiB", log)
    return {
        "layers": layers,
        "buffers_bytes": {name: round(float(size) * 2**20) for name, size in buffers},
    }


def _decode(llama_cpp: Any, path: Path, n_gpu_layers: int, lines: list[str]) -> None:
    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    model_params.n_gpu_layers = 0x7FFFFFFF if n_gpu_layers < 0 else n_gpu_layers
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
    if not model:
        _emit("failed", error=f"llama.cpp could not load {path}", log="".join(lines)[-2000:])
        return
    _emit("load", **_placement("".join(lines)))
    context_params = llama_cpp.llama_context_default_params()
    context_params.n_ctx = 256
    context = llama_cpp.llama_init_from_model(model, context_params)
    if not context:
        _emit("failed", error="llama.cpp made no context", log="".join(lines)[-2000:])
        return
    for width in WIDTHS:
        tokens = (llama_cpp.llama_token * width)(*([1] * width))
        code = llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, width))
        if code != 0:
            _emit("failed", error=f"llama_decode of {width} tokens returned {code}")
            return
        _emit("decode", n_tokens=width)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    _emit("done")


def main(arguments: list[str]) -> int:
    """Run the stages; the exit code is 0 once the last was reached or a failure was reported."""
    _emit("start", python=sys.version.split()[0])
    try:
        import llama_cpp
    except Exception as error:  # whatever stops the import is the finding
        _emit("failed", error=f"{type(error).__name__}: {error}")
        return 0
    lines, _callback = _keep_log(llama_cpp)
    _emit("import", **_build_facts(llama_cpp, lines))
    if arguments:
        _decode(llama_cpp, Path(arguments[0]), int(arguments[1]), lines)
        return 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "zero.gguf"
        write_zero_model(path)
        _decode(llama_cpp, path, -1, lines)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
