"""Who may ask: host names, origins and the API key, before a request reaches its handler."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from edge_tr.server.config import ServerConfig
from edge_tr.server.errors import RequestError, respond

_OPEN_PATHS = frozenset({"/", "/health"})
"""What is answered without an API key: the page, which asks for it, and the health check."""


class Guard:
    """Middleware that refuses requests which may not be answered.

    A request must be addressed to a name of this machine, and a browser's request from another
    page is refused unless its origin is allowed.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app, self._config = app, config
        self._keys = [key.encode() for key in config.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                is_old = scope.get("http_version") == "1.0"
                client = self._check(
                    scope["path"], scope["method"], scope["scheme"], Headers(scope=scope), is_old
                )
                scope.setdefault("state", {})["client"] = client
            except RequestError as error:
                await respond(Request(scope), error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str, method: str, scheme: str, headers: Headers, is_old: bool) -> int:
        """Place of the API key that was sent; 0 where none is asked for."""
        host = headers.get("host", "")
        has_no_host = is_old and "host" not in headers  # health checks; no browser asks so
        if not has_no_host and not self._config.allows_host(_name(host)):
            raise RequestError(
                403,
                f"this server does not answer to the host {host!r}; --allow-host adds a name",
                code="wrong_host",
            )
        origin = headers.get("origin")
        if origin is not None and origin not in (f"{scheme}://{host}", *self._config.origins):
            raise RequestError(
                403, f"pages of the origin {origin!r} may not ask", code="wrong_origin"
            )
        if not self._keys or path in _OPEN_PATHS or method == "OPTIONS":
            return 0
        kind, _, given = headers.get("authorization", "").partition(" ")
        given_key = given.strip().encode("utf-8", "replace")
        same = [hmac.compare_digest(given_key, key) for key in self._keys]
        if kind.lower() != "bearer" or not any(same):
            raise RequestError(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return same.index(True)


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
