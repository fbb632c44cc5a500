"""Servers of llama.cpp's RPC back end: their names, and whether one answers.

llama.cpp ends the process when a server cannot be reached, speaks another version of the protocol,
or is no such server. So each is asked with a plain socket before llama.cpp hears of it.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Sequence

from edge_tr.errors import ConfigError, ModelLoadError

DEFAULT_PORT = 50052

_PROTOCOL = (7, 0)
"""Version of the protocol in the llama.cpp that edge_tr is pinned to (RPC_PROTO_*_VERSION)."""
_HELLO = 14
_CAPABILITIES = 24
"""Bytes with which the two sides tell what else than TCP they can; zeros = nothing."""
_FORM = "a list of host:port, separated by commas, such as 192.168.1.7:50052"
_MAX_SERVERS = 16


def parse_servers(servers: str | Sequence[str]) -> tuple[str, ...]:
    """Servers as ``host:port``, one each.

    Parameters
    ----------
    servers : several of them, or a text with commas; the port must be written out. A host is a
        name or an IPv4 address, which is all that llama.cpp knows.

    Raises
    ------
    ConfigError : not of this form, a port outside 1 to 65535, a server named twice, too many.
    """
    if not isinstance(servers, str):
        servers = ",".join(servers)
    found: list[str] = []
    for server in servers.split(",") if servers.strip() else ():
        parts = re.fullmatch(r"\s*([\w.-]+):(\d+)\s*", server, re.ASCII)
        if not parts:
            raise ConfigError(f"RPC server {server!r} is not allowed; use {_FORM}")
        host, port = parts[1].lower(), int(parts[2])
        if not 1 <= port <= 65535:
            raise ConfigError(f"RPC server {server!r}: the port must be 1 to 65535")
        found.append(f"{host}:{port}")
    twice = sorted({server for server in found if found.count(server) > 1})
    if twice:
        raise ConfigError(f"RPC server {twice[0]} is named twice")
    if len(found) > _MAX_SERVERS:
        raise ConfigError(f"{len(found)} RPC servers are not allowed; at most {_MAX_SERVERS} are")
    return tuple(found)


def address(server: str) -> str:
    """The server with the IPv4 address of its host, as llama.cpp will look it up.

    Raises
    ------
    ModelLoadError : no such host.
    """
    host, port = server.rsplit(":", 1)
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError as error:
        raise ModelLoadError(f"RPC server {server}: the host is not known ({error})") from None


def ask(server: str, *, timeout_s: float = 5.0) -> None:
    """See that a server answers and speaks our version of the protocol.

    A server has one client at a time; one that is busy with another does not answer.

    Raises
    ------
    ModelLoadError : it does not; the text says in which way.
    """
    host, port = server.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(f"<BQ{_CAPABILITIES}x", _HELLO, _CAPABILITIES))
            head = _receive(connection, 8)
            (size,) = struct.unpack("<Q", head.ljust(8, b"\0"))
            body = _receive(connection, size) if size == 4 + _CAPABILITIES else b""
    except TimeoutError:
        raise ModelLoadError(
            f"RPC server {server} does not answer within {timeout_s:g} s; it serves one client at "
            "a time: is another one using it?"
        ) from None
    except OSError as error:
        raise ModelLoadError(
            f"RPC server {server} cannot be reached: {error.strerror or error}; start it with "
            "`edge-tr rpc-server` on that machine"
        ) from None
    if len(body) != size or not body:
        raise ModelLoadError(f"{server} is no RPC server of llama.cpp, or one of another version")
    if body[0] != _PROTOCOL[0] or body[1] > _PROTOCOL[1]:
        raise ModelLoadError(
            f"RPC server {server} speaks version {body[0]}.{body[1]} of the protocol, this build "
            f"{_PROTOCOL[0]}.{_PROTOCOL[1]}; both machines need the same llama.cpp"
        )


def _receive(connection: socket.socket, n_bytes: int) -> bytes:
    """So many bytes, or fewer where the other side closed."""
    received = b""
    while len(received) < n_bytes:
        part = connection.recv(n_bytes - len(received))
        if not part:
            break
        received += part
    return received
