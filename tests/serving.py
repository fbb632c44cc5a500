"""A server of a tiny model, in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.drafts.template import TreeTemplate
from edge_tr.llama.embedder import Embedder
from edge_tr.server.config import ServerConfig
from edge_tr.server.run import Server, listen
from edge_tr.server.service import Service
from edge_tr.session import Session

NAME = "tiny"


@dataclass
class Running:
    """A server that answers at ``url``."""

    url: str
    service: Service
    server: Server
    http: httpx.Client


@contextmanager
def serving(
    model: Path,
    *,
    n_ctx: int = 512,
    tree: TreeTemplate | None = None,
    idle_unload_s: float | None = None,
    n_gpu_layers: int = 0,
    **config: Any,
) -> Iterator[Running]:
    """Serve a model on a free port; ``config`` is for ``ServerConfig``, ``tree`` is drafted at
    every step, without it nothing is."""
    settings = ServerConfig(port=0, **config)
    context = ContextConfig(n_ctx=n_ctx, n_threads=1, n_threads_batch=1)
    draft = DraftConfig(speculative=tree or "off", start="empty")
    idle: dict[str, Any] = {"idle_unload_s": idle_unload_s}
    more: dict[str, Any] = idle | {"n_gpu_layers": n_gpu_layers}
    with Session(model, context=context, draft=draft, **more) as session:
        service = Service(session, NAME, Embedder(model, n_threads=1, **idle), settings)
        server = Server(service)
        with listen(settings) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            try:
                with httpx.Client(base_url=url, timeout=60) as http:
                    http.get("/health")
                    yield Running(url, service, server, http)
            finally:
                server.stop()
                thread.join()
                service.close()


@dataclass
class Held:
    """Tells of a generation that waits."""

    reached: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)


@contextmanager
def held(session: Session, n_steps: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Generations wait after some steps until the block is left."""
    decoder = session.decoder
    generate, cancel = decoder.generate, decoder.cancel
    told, released = Held(), threading.Event()

    def generate_and_wait(*arguments: Any, **options: Any) -> Iterator[list[int]]:
        for i, emitted in enumerate(generate(*arguments, **options)):
            if i == n_steps:
                told.reached.set()
                assert released.wait(60)
            yield emitted

    def tell_and_cancel() -> None:
        cancel()
        told.cancelled.set()

    with monkeypatch.context() as patch:
        patch.setattr(decoder, "generate", generate_and_wait)
        patch.setattr(decoder, "cancel", tell_and_cancel)
        try:
            yield told
        finally:
            released.set()
