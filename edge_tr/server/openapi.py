"""The server's description of itself, in OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from edge_tr import __version__
from edge_tr.server.requests import (
    UNSUPPORTED,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
)

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type"],
        }
    },
    "required": ["error"],
}
_BODIES = (
    ("/v1/chat/completions", ChatRequest, "Answer a conversation"),
    ("/v1/completions", CompletionRequest, "Continue a text"),
    ("/v1/embeddings", EmbeddingRequest, "Vectors of texts"),
)
_READ = (
    ("/health", "Whether requests are answered"),
    ("/v1/models", "The model that is here"),
    ("/metrics", "Counts for Prometheus"),
)


def describe() -> dict[str, Any]:
    """The document of /openapi.json."""
    place = "#/components/schemas/{model}"
    kinds: list[tuple[Any, Any]] = [(kind, "validation") for _, kind, _ in _BODIES]
    references, document = models_json_schema(kinds, ref_template=place)
    for schema in document["$defs"].values():
        for name in UNSUPPORTED:
            schema.get("properties", {}).pop(name, None)
    paths: dict[str, Any] = {}
    for path, kind, told in _BODIES:
        content = {"application/json": {"schema": references[kind, "validation"]}}
        body = {"required": True, "content": content}
        paths[path] = {"post": {"summary": told, "requestBody": body, "responses": _responses()}}
    for path, told in _READ:
        paths[path] = {"get": {"summary": told, "responses": _responses()}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "edge_tr", "version": __version__},
        "paths": paths,
        "components": {"schemas": {**document["$defs"], "Error": _ERROR}},
    }


def _responses() -> dict[str, Any]:
    reference = {"$ref": "#/components/schemas/Error"}
    refused = {"description": "refused", "content": {"application/json": {"schema": reference}}}
    return {"200": {"description": "answered"}, "default": refused}
