"""llama.cpp's RPC back end: devices of other machines for a model, and this machine as a server.

The stock class has no part in this: the servers are added through ggml's registry, and their
devices go into ``llama_model_params.devices``.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_tr.errors import ConfigError, ModelLoadError, NativeBuildError
from edge_tr.files.closing import Closing
from edge_tr.llama import devices
from edge_tr.llama.library import ggml_function, init_backend, lib
from edge_tr.llama.rpc_hello import address, ask, parse_servers
from edge_tr.machine.build_check import rebuild_command

_lock = threading.Lock()
_in_use: Counter[str] = Counter()
"""Open models by server. A server has one client at a time, so that one in use cannot be asked."""


class Servers(Closing):
    """The devices that a model may use when it runs on several machines.

    Parameters
    ----------
    servers : see ``edge_tr.llama.rpc_hello.parse_servers``; empty = this machine alone.
    n_gpu_layers : layers that the model places on devices; 0 would use no server.

    Attributes
    ----------
    names : the servers as ``host:port``.
    devices : for ``llama_model_params.devices``: those of the servers, then the GPUs of this
        machine; None = llama.cpp's own choice.

    Raises
    ------
    ConfigError : a server that is not allowed, or ``n_gpu_layers`` 0.
    NativeBuildError : llama.cpp was built without RPC.
    ModelLoadError : a server does not answer, or has no devices.
    """

    def __init__(self, servers: str | Sequence[str], n_gpu_layers: int) -> None:
        self.names = parse_servers(servers)
        self.devices: Any = None
        self._used: list[str] = []
        if not self.names:
            return
        if n_gpu_layers == 0:
            raise ConfigError(
                "n_gpu_layers 0 places nothing on the RPC servers; it must be -1 (all layers) or "
                "their number"
            )
        n_most = int(lib.llama_max_devices())
        try:
            handles = [device for name in self.names for device in self._add(name)]
            handles += devices.gpus()
            if len(handles) > n_most:
                raise ConfigError(f"{len(handles)} devices are too many; llama.cpp takes {n_most}")
        except BaseException:
            self.close()
            raise
        self.devices = (ctypes.c_void_p * (len(handles) + 1))(*handles, None)

    def _add(self, name: str) -> list[int]:
        add = _rpc_function("add_server", ctypes.c_void_p, [ctypes.c_char_p])
        endpoint = address(name)
        with _lock:
            if endpoint in self._used:
                raise ConfigError(f"RPC server {name} is named twice ({endpoint})")
            if not _in_use[endpoint]:
                ask(endpoint)
            _in_use[endpoint] += 1
            self._used.append(endpoint)
        server = add(endpoint.encode())
        if not server:
            raise ModelLoadError(f"RPC server {name} offers no device")
        return [_reg_device(server, i) for i in range(_reg_n_devices(server))]

    def write_to(self, params: Any) -> None:
        """Put the devices into ``llama_model_params``, if there are any."""
        if self.devices is not None:
            params.devices = ctypes.addressof(self.devices)

    def close(self) -> None:
        """The model is closed: its servers may serve others."""
        with _lock:
            _in_use.subtract(self._used)
        self._used.clear()


def serve(host: str, port: int, *, n_threads: int, cache: Path | None = None) -> None:
    """Offer the GPUs of this machine, or its CPU, to other machines; returns only on failure.

    Parameters
    ----------
    host, port : IPv4 address and port to listen at.
    n_threads : threads of the CPU, where it is what is offered.
    cache : folder in which weights are kept, so that they are sent once.

    Raises
    ------
    NativeBuildError : llama.cpp was built without RPC.
    """
    pointer = ctypes.POINTER(ctypes.c_void_p)
    types = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, pointer]
    start = _rpc_function("start_server", None, types)
    handles = offered()
    array = (ctypes.c_void_p * len(handles))(*handles)
    folder = None if cache is None else os.fsencode(cache)
    start(f"{host}:{port}".encode(), folder, n_threads, len(handles), array)


def offered() -> list[int]:
    """Devices that a server here offers: the GPUs, else the CPU."""
    return devices.gpus() or devices.cpus()


def _rpc_function(name: str, restype: Any, argtypes: list[Any]) -> Any:
    """A function of the RPC back end, which may be a library of its own."""
    init_backend()
    backend = _reg_by_name(b"RPC")
    found = _get_proc_address(backend, f"ggml_backend_rpc_{name}".encode()) if backend else None
    if not found:
        raise NativeBuildError(
            "this llama.cpp was built without RPC (GGML_RPC=ON), which every preset of edge_tr's "
            f"build has: {rebuild_command()}"
        )
    return ctypes.CFUNCTYPE(restype, *argtypes)(found)


_pointer = ctypes.c_void_p
_reg_by_name = ggml_function("ggml_backend_reg_by_name", _pointer, [ctypes.c_char_p])
_get_proc_address = ggml_function(
    "ggml_backend_reg_get_proc_address", _pointer, [_pointer, ctypes.c_char_p]
)
_reg_n_devices = ggml_function("ggml_backend_reg_dev_count", ctypes.c_size_t, [_pointer])
_reg_device = ggml_function("ggml_backend_reg_dev_get", _pointer, [_pointer, ctypes.c_size_t])
