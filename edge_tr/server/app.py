"""Routes of the server."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edge_tr.errors import EdgeTRError
from edge_tr.server.embeddings import encode
from edge_tr.server.errors import RequestError, respond
from edge_tr.server.guard import Guard
from edge_tr.server.openapi import describe
from edge_tr.server.replies import Reply
from edge_tr.server.requests import ChatRequest, CompletionRequest, EmbeddingRequest, read
from edge_tr.server.service import Service
from edge_tr.server.stream import EventStream, ends_with

Handler = Callable[[Request], Awaitable[Response]]


def make_app(service: Service) -> Starlette:
    """The ASGI application that answers with a service's model."""
    routes = Routes(service)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        service.worker.stop()
        await asyncio.to_thread(service.worker.join)

    middleware = [Middleware(Guard, config=service.config)]
    if service.config.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=service.config.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
        middleware.append(cors)
    return Starlette(
        routes=[
            Route("/", routes.page),
            Route("/health", routes.health),
            Route("/metrics", routes.metrics),
            Route("/openapi.json", routes.openapi),
            *(
                Route(f"{prefix}{path}{slash}", handler, methods=methods)
                for path, handler, methods in (
                    ("/models", routes.models, ["GET"]),
                    ("/chat/completions", routes.counted(routes.chat), ["POST"]),
                    ("/completions", routes.counted(routes.completions), ["POST"]),
                    ("/embeddings", routes.counted(routes.embeddings), ["POST"]),
                )
                for prefix in ("/v1", "")  # clients disagree on both
                for slash in ("", "/")
            ),
            Route("/v1/models/{name:path}", routes.model),
            Route("/models/{name:path}", routes.model),
        ],
        middleware=middleware,
        exception_handlers={HTTPException: respond, EdgeTRError: respond, Exception: respond},
        lifespan=lifespan,
    )


class Routes:
    """Handlers of each path."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._page = files("edge_tr.server").joinpath("page.html").read_text("utf-8")

    def counted(self, handler: Handler) -> Handler:
        """The handler, with each of its responses counted by status."""

        async def handle(request: Request) -> Response:
            status = 500
            try:
                response = await handler(request)
                status = response.status_code
                return response
            except (HTTPException, EdgeTRError) as error:
                response = respond(request, error)
                status = response.status_code
                return response
            finally:
                self._service.metrics.count_request(request.url.path, status)

        return handle

    async def page(self, _request: Request) -> Response:
        """The page to chat with; nothing but itself may run in it."""
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
        page = self._page.replace("{{nonce}}", nonce)
        return Response(page, media_type="text/html", headers=headers)

    async def health(self, _request: Request) -> Response:
        """Whether requests are answered, and whether the model is in memory."""
        model = "unloaded" if self._service.session.idle.is_asleep else "loaded"
        return _json({"status": "ok", "model": model})

    async def metrics(self, _request: Request) -> Response:
        """Counts for Prometheus."""
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, _request: Request) -> Response:
        """What can be asked for, in OpenAPI."""
        return _json(describe())

    async def models(self, _request: Request) -> Response:
        """The one model that is here."""
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """A model by its name."""
        name = request.path_params["name"]
        if name != self._service.name:
            raise RequestError(
                404,
                f"there is no model {name!r} here, only {self._service.name!r}",
                code="model_not_found",
            )
        return _json(self._model())

    def _model(self) -> dict[str, Any]:
        target, model = self._service.session.target, self._service.session.model
        meta = {"n_ctx": target.n_ctx, "n_vocab": model.n_vocab, "n_embd": model.n_embd}
        return {
            "id": self._service.name,
            "object": "model",
            "created": self._service.started_s,
            "owned_by": "edge_tr",
            "meta": meta,
        }

    async def chat(self, request: Request) -> Response:
        """/v1/chat/completions."""
        body = await read(request, ChatRequest, self._service.config.max_request_bytes)
        reply = await asyncio.to_thread(self._service.chat, body)
        return await self._answer(request, body, reply)

    async def completions(self, request: Request) -> Response:
        """/v1/completions."""
        body = await read(request, CompletionRequest, self._service.config.max_request_bytes)
        reply = await asyncio.to_thread(self._service.complete, body)
        return await self._answer(request, body, reply)

    async def _answer(
        self, request: Request, body: ChatRequest | CompletionRequest, reply: Reply
    ) -> Response:
        job = self._service.start(reply.answer, request.scope["state"]["client"])

        async def events() -> AsyncIterator[dict[str, Any]]:
            for chunk in reply.begin():
                yield chunk
            async for piece in job:
                for chunk in reply.add(piece):
                    yield chunk
            for chunk in reply.end():
                yield chunk
            if body.stream_options.include_usage:
                yield reply.usage_chunk()

        if body.stream:
            return EventStream(events(), job)
        reply.begin()
        async with ends_with(request.receive, job):
            async for piece in job:
                reply.add(piece)
        return _json(reply.whole())

    async def embeddings(self, request: Request) -> Response:
        """/v1/embeddings."""
        body = await read(request, EmbeddingRequest, self._service.config.max_request_bytes)
        job = self._service.embed(body.inputs())
        async with ends_with(request.receive, job):
            [(vectors, n_tokens)] = [result async for result in job]
        data = [
            {"object": "embedding", "index": i, "embedding": encode(v, body.encoding_format)}
            for i, v in enumerate(vectors)
        ]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return _json({"object": "list", "data": data, "model": self._service.name, "usage": usage})


def _json(body: dict[str, Any]) -> Response:
    return Response(json.dumps(body), media_type="application/json")
