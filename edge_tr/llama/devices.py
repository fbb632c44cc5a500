"""The devices of this machine that llama.cpp can use, from ggml's registry."""

from __future__ import annotations

import ctypes

from edge_tr.llama.library import ggml_function, init_backend
from edge_tr.machine.facts import GPU_BACKENDS

_CPU = 0  # ggml_backend_dev_type
_GPUS = (1, 2)  # discrete, integrated

_pointer = ctypes.c_void_p
_count = ggml_function("ggml_backend_dev_count", ctypes.c_size_t, [])
_get = ggml_function("ggml_backend_dev_get", _pointer, [ctypes.c_size_t])
_type = ggml_function("ggml_backend_dev_type", ctypes.c_int, [_pointer])
_n_backends = ggml_function("ggml_backend_reg_count", ctypes.c_size_t, [])
_backend = ggml_function("ggml_backend_reg_get", _pointer, [ctypes.c_size_t])
_backend_name = ggml_function("ggml_backend_reg_name", ctypes.c_char_p, [_pointer])
_n_devices = ggml_function("ggml_backend_reg_dev_count", ctypes.c_size_t, [_pointer])
_description = ggml_function("ggml_backend_dev_description", ctypes.c_char_p, [_pointer])


def gpus() -> list[int]:
    """Pointers to the GPUs; integrated ones only where there is no other, as in llama.cpp."""
    return _of_type(_GPUS[0]) or _of_type(_GPUS[1])


def cpus() -> list[int]:
    """The pointer to the CPU."""
    return _of_type(_CPU)


def has_gpu() -> bool:
    """Whether the build sees a GPU here; ``llama_supports_gpu_offload`` says yes to RPC too."""
    return bool(gpus())


def unused_backends() -> str:
    """A line for the user where the build has GPU back ends and none of them sees a GPU; else an
    empty one."""
    init_backend()
    found = [_backend(i) for i in range(_n_backends())]
    names = [_backend_name(reg).decode() for reg in found if _n_devices(reg) == 0]
    blind = sorted(GPU_BACKENDS.intersection(names))
    if not blind or has_gpu():
        return ""
    return (
        f"this build's {' and '.join(blind)} back end sees no GPU, so everything runs on the CPU; "
        "edge-tr doctor says more"
    )


def description(device: int) -> str:
    """What a device is, for people."""
    return str(_description(device).decode("utf-8", "replace"))


def _of_type(wanted: int) -> list[int]:
    init_backend()
    found = [_get(i) for i in range(_count())]
    return [device for device in found if _type(device) == wanted]
