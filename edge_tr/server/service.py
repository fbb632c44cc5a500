"""What the server answers with: an open model, its worker, and answers made of requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TypeVar

from edge_tr.answer import Answer
from edge_tr.chat.calls import call_schema, check_tools, chosen_tools
from edge_tr.chat.text import Piece
from edge_tr.constrain.constraint import Rules
from edge_tr.constrain.schema import schema_rules
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.history import History
from edge_tr.errors import ConfigError
from edge_tr.llama.embedder import Embedder
from edge_tr.server.config import ServerConfig
from edge_tr.server.errors import RequestError
from edge_tr.server.metrics import Metrics
from edge_tr.server.replies import ChatReply, Reply, TextReply
from edge_tr.server.requests import ChatRequest, CompletionRequest, make_config, response_rules
from edge_tr.server.worker import Job, QueueFullError, Worker
from edge_tr.session import Session
from edge_tr.target import Int32

T = TypeVar("T")


class Service:
    """Answers requests with one model, one after the other.

    Parameters
    ----------
    session : the open model; whoever opened it closes it, after ``close``.
    name : of the model, for clients.
    embedder : of texts, or None where there are no embeddings.
    config : limits.
    """

    def __init__(
        self, session: Session, name: str, embedder: Embedder | None, config: ServerConfig
    ) -> None:
        self.session, self.name, self.embedder, self.config = session, name, embedder, config
        self.worker = Worker(config.max_waiting)
        self.metrics = Metrics(lambda: self.worker.n_jobs, lambda: not session.idle.is_asleep)
        self.started_s = int(time.time())
        self._histories: dict[int, History] = {}

    def chat(self, request: ChatRequest) -> Reply:
        """The reply to a conversation, not generated yet."""
        tools = check_tools(request.tools)
        must_call = chosen_tools(tools, request.tool_choice)
        if request.tool_choice == "none":
            tools = []
        if must_call:
            rules: Rules | None = schema_rules(call_schema(must_call), "schema of the tools")
        else:
            rules = response_rules(request.response_format)
        model = self.session.model
        options = request.chat_template_kwargs
        if request.reasoning_effort is not None:
            options = {"reasoning_effort": request.reasoning_effort} | options
        prompt = model.chat_tokens(request.messages, tools, must=True, options=options)
        config = make_config(request, rules)
        is_free = config.sampling.grammar is None
        if is_free:
            config = replace(config, shown=model.mark_tokens())
        return ChatReply(
            self.session.answer(prompt, config),
            self.name,
            reader=model.reader(prompt, tools, is_free=is_free),
            steps=request.steps,
            live_timings=request.timings_per_token,
        )

    def complete(self, request: CompletionRequest) -> Reply:
        """The reply that continues a text, not generated yet."""
        text, prompt = self._prompt(request.prompt)
        config = make_config(request, None)
        if request.echo and config.n_logprobs is not None:
            raise RequestError(400, "logprobs with echo are not supported", param="logprobs")
        return TextReply(
            self.session.answer(prompt, config),
            self.name,
            echo=text if request.echo else "",
            steps=request.steps,
            live_timings=request.timings_per_token,
        )

    def _prompt(self, prompt: str | Sequence[object]) -> tuple[str, Sequence[int] | Int32]:
        """The one prompt of a request, as text and as tokens."""
        model = self.session.model
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return prompt.encode("utf-8", "replace").decode(), model.tokenize(prompt)
        if not all(isinstance(token, int) for token in prompt):
            raise RequestError(400, "only one prompt for each request is supported", param="prompt")
        tokens = [int(token) for token in prompt]  # type: ignore[call-overload]
        for token in tokens:
            if not 0 <= token < model.n_vocab:
                raise ConfigError(f"token {token} is not in the vocabulary")
        return model.detokenize(tokens).decode("utf-8", "replace"), tokens

    def start(self, answer: Answer, client: int = 0) -> Job[Piece]:
        """Queue an answer.

        Parameters
        ----------
        client : place of the API key of who asks.

        Raises
        ------
        RequestError : too many requests wait.
        """

        def work() -> Generator[Piece, None, None]:
            self._draft_from_texts_of(client)
            try:
                yield from answer
            finally:
                self.metrics.count(answer)

        return self._submit(work, answer.cancel)

    def _draft_from_texts_of(self, client: int) -> None:
        """Have the next text look for matches in the texts of one client only, where they are
        private; in the worker's thread."""
        drafter = self.session.decoder.drafter
        if self.config.private_history and isinstance(drafter, GrownTreeDrafter):
            if client not in self._histories:
                n_clients = len(self.config.api_keys)
                self._histories[client] = History(self.session.draft.n_history // n_clients)
            drafter.history = self._histories[client]

    def embed(self, texts: list[str] | list[list[int]]) -> Job[tuple[list[list[float]], int]]:
        """Queue texts to embed.

        Raises
        ------
        RequestError : too many requests wait, or there are no embeddings here.
        """
        embedder = self.embedder
        if embedder is None:
            raise RequestError(404, "this server gives no embeddings")

        def work() -> Generator[tuple[list[list[float]], int], None, None]:
            yield embedder.embed(texts)

        return self._submit(work, embedder.cancel)

    def _submit(
        self,
        work: Callable[[], Generator[T, None, None]],
        interrupt: Callable[[], object] = lambda: None,
    ) -> Job[T]:
        try:
            return self.worker.submit(work, interrupt)
        except QueueFullError:
            raise RequestError(
                503,
                f"the server is busy; {self.config.max_waiting} requests may wait, try again later",
                code="queue_full",
                headers={"Retry-After": "1"},
            ) from None

    def close(self) -> None:
        """End the worker, which was told to stop, and free the embedder."""
        self.worker.join()
        if self.embedder is not None:
            self.embedder.close()
