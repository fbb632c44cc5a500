"""What whoever runs the server can set, checked when it is set."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from edge_tr.errors import ConfigError


@dataclass(frozen=True)
class ServerConfig:
    """How to serve.

    Attributes
    ----------
    host, port : where to listen; port 0 takes a free one.
    api_key : what clients must send as bearer token, one of them where there are several; None
        asks for nothing.
    origins : pages of other origins whose scripts may ask, such as ``https://chat.example``.
    hosts : further names that requests may be addressed to; see ``allows_host``.
    max_waiting : requests that may wait while one is answered.
    max_request_bytes : largest body of a request.
    private_history : the texts of one API key never draft for another.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | tuple[str, ...] | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_waiting: int = 16
    max_request_bytes: int = 8 << 20
    private_history: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("port", 0, 65535),
            ("max_waiting", 0, 10_000),
            ("max_request_bytes", 1, 1 << 30),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(
                    f"{name} {value} is not allowed; it must be {low} to {high}", field=name
                )
        if not all(key.isascii() and key.strip() for key in self.api_keys):
            raise ConfigError("the API key must be ASCII text and not empty")
        if self.private_history and not self.api_keys:
            raise ConfigError(
                "private_history True is not allowed without an API key, by which clients are told "
                "apart",
                field="private_history",
            )
        for origin in self.origins:
            if "://" not in origin or "*" in origin or origin.endswith("/"):
                raise ConfigError(
                    f"origin {origin!r} is not allowed; give a scheme and a host without a slash "
                    "at the end, such as https://chat.example"
                )

    @property
    def api_keys(self) -> tuple[str, ...]:
        """All keys."""
        if self.api_key is None or isinstance(self.api_key, str):
            return () if self.api_key is None else (self.api_key,)
        return self.api_key

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        address = _address(self.host)
        return self.host == "localhost" or (address is not None and address.is_loopback)

    def allows_host(self, name: str | None) -> bool:
        """Whether a request may be addressed to a name.

        Those of the loopback interface when listening there; else this machine's own name and
        any IP address. A page of somebody else that makes its own name point here (DNS
        rebinding) has another name.
        """
        if name is None:
            return False
        if name in (self.host, *self.hosts, "localhost"):
            return True
        address = _address(name)
        if self.is_loopback:
            return address is not None and address.is_loopback
        own = socket.gethostname().lower()
        return address is not None or name in (own, f"{own}.local")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
