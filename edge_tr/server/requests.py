"""Requests: llama-cpp-python's types, made to agree with what OpenAI's clients send today."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from llama_cpp.server import types
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request

from edge_tr.answer import AnswerConfig
from edge_tr.chat.history import clean
from edge_tr.config import SamplingConfig
from edge_tr.constrain.constraint import Rules
from edge_tr.constrain.schema import schema_rules
from edge_tr.server.errors import RequestError

_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "mirostat_mode",
    "mirostat_tau",
    "mirostat_eta",
)
"""Fields of a request that ``SamplingConfig`` has too."""

_RANDOM_SEEDS = (-1, (1 << 32) - 1)
"""Seeds that stand for a fresh one, the second in llama.cpp."""

UNSUPPORTED = {
    "functions": "; use tools and tool_choice",
    "function_call": "; use tools and tool_choice",
    "suffix": "",
    "min_tokens": "",
    "logit_bias_type": "; token ids are read",
    "dimensions": "; a vector is as long as the model makes it",
}
"""Fields that are refused, and what to use instead."""


class StreamOptions(BaseModel):
    """Of a streamed answer."""

    include_usage: bool = False


class Common(BaseModel):
    """Fields that both kinds of requests have beside those of llama-cpp-python.

    ``steps`` asks for the decode step of each token, ``timings_per_token`` for the timings so
    far in each chunk of a stream.
    """

    temperature: float = Field(default=0.8, ge=0.0, le=100.0)
    typical_p: float = Field(default=1.0, ge=0.0, le=1.0)
    repeat_penalty: float = Field(default=1.0, gt=0.0)
    seed: int | None = Field(default=None, ge=-1, lt=1 << 64)
    n: Literal[1] = 1
    stream_options: StreamOptions = StreamOptions()
    steps: bool = False
    timings_per_token: bool = False


class CompletionRequest(Common, types.CreateCompletionRequest):  # type: ignore[misc]
    """Body of /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    best_of: Literal[1] = 1
    max_tokens: int | None = Field(default=16, ge=-1)
    logprobs: int | None = Field(default=None, ge=0, le=20)


class ChatRequest(Common, types.CreateChatCompletionRequest):  # type: ignore[misc]
    """Body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    response_format: dict[str, Any] = {"type": "text"}
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None
    max_tokens: int | None = Field(default=None, ge=-1)
    max_completion_tokens: int | None = Field(default=None, ge=-1)
    top_logprobs: int = Field(default=0, ge=0, le=20)


class EmbeddingRequest(types.CreateEmbeddingRequest):  # type: ignore[misc]
    """Body of /v1/embeddings."""

    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] = "float"

    def inputs(self) -> list[str] | list[list[int]]:
        """The texts, each as text or as token ids.

        Raises
        ------
        RequestError : there is none.
        """
        given = self.input
        if not given:
            raise RequestError(400, "input is empty", param="input")
        if isinstance(given, str):
            return [given]
        if isinstance(given[0], int):
            return [given]
        return given


_Body = TypeVar("_Body", bound=BaseModel)


async def read(request: Request, kind: type[_Body], max_bytes: int) -> _Body:
    """The body of a request.

    Raises
    ------
    RequestError : it is too large, no JSON, or a field has a value that is not allowed.
    """
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > max_bytes:
            raise RequestError(
                413,
                f"the request is larger than {max_bytes} bytes",
                code="request_too_large",
                headers={"Connection": "close"},
            )
    try:
        body = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError(400, "the body must be a JSON object")
    body = clean(body)
    for name, instead in UNSUPPORTED.items():
        if body.get(name) is not None:
            raise RequestError(400, f"{name} is not supported{instead}", param=name)
    try:
        return kind(**{str(name): value for name, value in body.items() if value is not None})
    except ValidationError as error:
        raise _refusal(error) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _refusal(error: ValidationError) -> RequestError:
    """The first fault; pydantic tells a field of several types once for each type."""
    faults = error.errors(include_url=False, include_context=False)
    param = str(faults[0]["loc"][0]) if faults[0]["loc"] else None
    told = dict.fromkeys(str(f["msg"]) for f in faults if f["loc"][:1] == faults[0]["loc"][:1])
    given = faults[0]["input"]
    shown = "" if isinstance(given, dict) else f"{given!r:.60} is not allowed: "
    return RequestError(400, f"{param}: {shown}{' or '.join(told)}", param=param)


def make_config(request: CompletionRequest | ChatRequest, rules: Rules | None) -> AnswerConfig:
    """What a request asks of the model."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    limit = request.max_tokens
    if isinstance(request, ChatRequest):
        limit = request.max_completion_tokens if limit is None else limit
        n_logprobs = request.top_logprobs if request.logprobs else None
    else:
        n_logprobs = request.logprobs
    bias = request.logit_bias or {}
    for token in bias:
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            told = f"logit_bias of {token!r:.60} is not allowed; its keys must be token ids"
            raise RequestError(400, told, param="logit_bias")
    sampling = SamplingConfig(
        **{name: getattr(request, name) for name in _SAMPLING},
        grammar=rules if request.grammar is None else request.grammar,
        logit_bias={int(token): value for token, value in bias.items()},
        seed=None if request.seed in _RANDOM_SEEDS else request.seed,
    )
    return AnswerConfig(
        max_tokens=None if limit == -1 else limit,
        stops=stops,
        sampling=sampling,
        n_logprobs=n_logprobs,
    )


def response_rules(response_format: dict[str, Any]) -> Rules | None:
    """What a ``response_format`` asks for; None where any text is allowed.

    Raises
    ------
    RequestError, ConfigError : another form, or a schema that cannot be followed.
    """
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return schema_rules(response_format.get("schema", {"type": "object"}))
    if kind == "json_schema":
        holder = response_format.get("json_schema", response_format)
        if isinstance(holder, dict) and isinstance(holder.get("schema"), dict):
            return schema_rules(holder["schema"])
    raise RequestError(
        400,
        'response_format must be {"type": "text"}, {"type": "json_object"} or '
        '{"type": "json_schema", "json_schema": {"schema": {...}}}',
        param="response_format",
    )
