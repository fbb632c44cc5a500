"""Plugin of the ``llm`` command: the models of edge_tr, with streaming, schemas and tools.

Model names are ``edge-tr`` (the default model), ``edge-tr/NAME`` for those of
``edge-tr model list``, and ``edge-tr/NAME`` for files that ``llm edge-tr add`` was told of.
"""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import llm
from pydantic import Field

from edge_tr import models
from edge_tr.errors import ConfigError, MatrixFileError
from edge_tr.files.whole_file import write_whole

if TYPE_CHECKING:
    from edge_tr.answer import Answer
    from edge_tr.chat.reply import ReplyReader
    from edge_tr.session import Session

PREFIX = "edge-tr"


class PromptOptions(llm.Options):
    """Options of a prompt, ``-o NAME VALUE``."""

    max_tokens: int | None = Field(None, ge=1, description="Most tokens of the answer")
    temperature: float = Field(0.0, ge=0, description="0 takes the most probable token")
    top_k: int = Field(40, ge=0, description="Keep the N most probable tokens; 0: all")
    top_p: float = Field(0.95, ge=0, le=1, description="Keep this share of the probability")
    min_p: float = Field(0.05, ge=0, le=1, description="Drop tokens below this share of the best")
    repeat_penalty: float = Field(1.0, gt=0, description="Above 1 makes repeated tokens rarer")
    seed: int | None = Field(None, ge=0, lt=1 << 64, description="The same seed, the same text")
    stop: str | None = Field(None, description="Text that ends the answer")
    n_ctx: int = Field(4096, ge=0, description="Tokens of conversation and answer together")
    tree: str = Field("auto", description="The draft tree, as `edge-tr run --tree`; off: none")
    threads: int | None = Field(None, ge=1, description="CPU threads; as a rule all cores")
    exact: bool = Field(False, description="Draft only with batch widths that are bit-equal")


class _Shared:
    """What the sync and the async model share."""

    can_stream = True
    supports_schema = True
    supports_tools = True

    def __init__(self, model_id: str, find: Callable[[], Path]) -> None:
        self.model_id = model_id
        self._find = find

    def _ask(self, prompt: llm.Prompt) -> tuple[Answer, ReplyReader]:
        return _ask(_open(self._find(), prompt.options), prompt)

    def __str__(self) -> str:
        return f"edge_tr: {self.model_id}"


class EdgeTRModel(_Shared, llm.Model):
    """A model of edge_tr."""

    class Options(PromptOptions):
        """Options of a prompt."""

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None = None,
    ) -> Iterator[str]:
        """The parts of the answer."""
        yield from _parts(self._ask(prompt), response)


class AsyncEdgeTRModel(_Shared, llm.AsyncModel):
    """A model of edge_tr for asyncio; the event loop goes on while it computes."""

    class Options(PromptOptions):
        """Options of a prompt."""

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None = None,
    ) -> AsyncGenerator[str, None]:
        """The parts of the answer."""
        from edge_tr.llama.aio import iterate

        asked: list[tuple[Answer, ReplyReader]] = []

        def start() -> Generator[str, None, None]:
            asked.append(self._ask(prompt))
            yield from _parts(asked[0], response)

        def cancel(_thread: int) -> None:
            for answer, _ in asked:
                answer.cancel()

        async for text in iterate(start, cancel):
            yield text


def _ask(session: Session, prompt: llm.Prompt) -> tuple[Answer, ReplyReader]:
    """The answer to a conversation, not generated yet; a model without chat template continues
    its texts."""
    from edge_tr.answer import AnswerConfig
    from edge_tr.config import SamplingConfig
    from edge_tr.constrain.schema import schema_rules

    options: Any = prompt.options
    names = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed")
    messages = [_message(message) for message in prompt.messages]
    config = AnswerConfig(
        max_tokens=options.max_tokens,
        stops=[options.stop] if options.stop else [],
        sampling=SamplingConfig(
            **{name: getattr(options, name) for name in names},
            grammar=schema_rules(prompt.schema) if prompt.schema else None,
        ),
    )
    tools = [_tool(tool) for tool in prompt.tools]
    model, is_free = session.model, not prompt.schema
    if is_free:
        config = replace(config, shown=model.mark_tokens())
    tokens = model.chat_tokens(messages, tools)
    return session.answer(tokens, config), model.reader(tokens, tools, is_free=is_free)


def _parts(asked: tuple[Answer, ReplyReader], response: Any) -> Generator[str, None, None]:
    """Generate the answer; its tool calls and usage go to the response, reasoning is left out."""
    answer, reader = asked
    for piece in answer:
        yield from (part.text for part in reader.add(piece.text) if part.kind == "content")
    parts, calls = reader.finish()
    yield from (part.text for part in parts if part.kind == "content")
    for call in calls:
        response.add_tool_call(llm.ToolCall(call.name, json.loads(call.arguments)))
    stats = answer.stats
    response.set_usage(
        input=len(answer.prompt),
        output=answer.n_tokens,
        details={"reused": stats.n_reused, "drafted": stats.n_drafted, "mat": round(stats.mat, 2)},
    )


def _tool(tool: Any) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.input_schema or {"type": "object"},
    }
    return {"type": "function", "function": function}


def _message(message: Any) -> dict[str, Any]:
    """A message of ``llm`` as OpenAI writes it; one with tool results holds nothing else."""
    written: dict[str, Any] = {"role": message.role, "content": ""}
    for part in message.parts:
        if isinstance(part, llm.parts.TextPart):
            written["content"] += part.text
        elif isinstance(part, llm.parts.ToolCallPart):
            function = {"name": part.name, "arguments": json.dumps(part.arguments)}
            call = {"id": part.tool_call_id or "", "type": "function", "function": function}
            written.setdefault("tool_calls", []).append(call)
        elif isinstance(part, llm.parts.ToolResultPart):
            written["content"] += part.output
    return written


_opened: dict[object, Session] = {}
_lock = threading.Lock()


def _open(path: Path, options: Any) -> Session:
    """The open model; one at a time is kept, so that a conversation finds its cache again."""
    from edge_tr.cli.output import show_log
    from edge_tr.config import ContextConfig, DraftConfig, lanes_for
    from edge_tr.drafts.tree_text import read_tree
    from edge_tr.machine.build_check import require_working_build
    from edge_tr.session import Session

    key = (path, options.n_ctx, options.tree, options.threads, options.exact)
    with _lock:
        if key not in _opened:
            require_working_build()
            show_log()
            close()
            threads = options.threads or 0
            tree = read_tree(options.tree)
            _opened[key] = Session(
                path,
                context=ContextConfig(
                    n_ctx=options.n_ctx,
                    n_threads=threads,
                    n_threads_batch=threads,
                    n_lanes=lanes_for(tree),
                ),
                draft=DraftConfig(speculative=tree, exact=options.exact),
            )
        return _opened[key]


@atexit.register
def close() -> None:
    """Close the model that is open, where one is, and keep what it learned."""
    while _opened:
        session = _opened.popitem()[1]
        if session.has_learned:
            with suppress(MatrixFileError):
                session.save_matrix()
        session.close()


def _added_file() -> Path:
    return Path(llm.user_dir()) / "edge-tr-models.json"  # type: ignore[no-untyped-call]


def _added() -> dict[str, str]:
    """Path of each model that was added, by name."""
    try:
        added = json.loads(_added_file().read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{_added_file()} cannot be read: {error}") from None
    if not isinstance(added, dict) or not all(isinstance(path, str) for path in added.values()):
        raise ConfigError(f"{_added_file()} must hold an object of names and paths")
    return added


def _added_or_refuse() -> dict[str, str]:
    try:
        return _added()
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def _keep(added: dict[str, str]) -> None:
    text = json.dumps(added, indent=1, ensure_ascii=False) + "\n"
    write_whole(_added_file(), lambda stream: stream.write(text.encode()))


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Tell ``llm`` of every model."""
    finders: dict[str, Callable[[], Path]] = {PREFIX: partial(models.path, models.DEFAULT)}
    for entry in models.available():
        if entry.kind in ("shipped", "quantised"):
            finders[f"{PREFIX}/{entry.name}"] = partial(models.path, entry.name)
    try:
        added = _added()
    except ConfigError as error:  # the other models are there all the same
        click.echo(f"edge-tr: warning: {error}; move it away or mend it", err=True)
        added = {}
    for name, path in added.items():
        finders[f"{PREFIX}/{name}"] = partial(Path, path)
    for model_id, find in finders.items():
        register(EdgeTRModel(model_id, find), AsyncEdgeTRModel(model_id, find))


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    """Add ``llm edge-tr``."""

    @cli.group(name=PREFIX)
    def group() -> None:
        """GGUF files as models of edge_tr"""

    @group.command()
    @click.argument("name")
    @click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
    def add(name: str, path: Path) -> None:
        """Make a GGUF file the model edge-tr/NAME"""
        from edge_tr.gguf_file.info import inspect

        try:
            inspect(path).require_text()
        except Exception as error:
            raise click.ClickException(str(error)) from None
        _keep(_added_or_refuse() | {name: str(path.resolve())})
        click.echo(f"{PREFIX}/{name} is {path.resolve()}")

    @group.command()
    @click.argument("name")
    def remove(name: str) -> None:
        """Forget the model edge-tr/NAME; its file stays"""
        added = _added_or_refuse()
        if name not in added:
            raise click.ClickException(f"no model was added as {name!r}")
        del added[name]
        _keep(added)
