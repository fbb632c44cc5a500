"""Errors as OpenAI's clients expect them."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from edge_tr.errors import CancelledError, ConfigError, EdgeTRError, PromptTooLongError


class RequestError(HTTPException):
    """A request that is refused.

    Parameters
    ----------
    status_code : of HTTP.
    message : for the user.
    code : for programs.
    param : the field of the request that is to blame.
    headers : of the response.
    """

    def __init__(
        self,
        status_code: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status_code, message, headers)
        self.code, self.param = code, param


def error_body(error: Exception) -> tuple[int, dict[str, Any]]:
    """HTTP status and body that tell of an error; of an unexpected one only its kind."""
    status, message, code, param = 500, "the server failed", None, None
    if isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
        code, param = getattr(error, "code", None), getattr(error, "param", None)
    elif isinstance(error, PromptTooLongError):
        status, message, code = 400, str(error), "context_length_exceeded"
    elif isinstance(error, ConfigError):
        status, message = 400, str(error)
    elif isinstance(error, CancelledError):
        status, message, code = 503, "the server is stopping", "cancelled"
    elif isinstance(error, EdgeTRError):
        message = str(error)
    kind = "invalid_request_error" if status < 500 else "server_error"
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}


def respond(_request: Request, error: Exception) -> Response:
    """The response to a request that failed."""
    status, body = error_body(error)
    text = json.dumps(body)  # in ASCII, so that any text can be repeated
    headers = getattr(error, "headers", None)
    return Response(text, status, headers, media_type="application/json")
