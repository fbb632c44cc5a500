"""``edge-tr serve``: an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_tr.cli import options
from edge_tr.cli.answer import save_matrix, tell
from edge_tr.cli.interrupt import Interruptible
from edge_tr.cli.output import note, show_log
from edge_tr.cli.progress import loading
from edge_tr.errors import ConfigError

if TYPE_CHECKING:
    from edge_tr.server.config import ServerConfig

KEY_VARIABLE = "EDGE_TR_API_KEY"

_DESCRIPTION = f"""\
Answers requests as OpenAI's API does, with a page to chat at /. Needs the extra "server":
pip install "edge-tr[server]". Only this machine can reach it unless --host says otherwise.

paths:
  /                      a page to chat with the model, and to see what was drafted
  /v1/chat/completions   conversations: streaming, tools, JSON schema
  /v1/completions        texts to continue
  /v1/embeddings         vectors of texts
  /v1/models             the model's name
  /health                200 while requests are answered; whether the model is unloaded
  /metrics               counts for Prometheus

Requests are answered one after the other. Ctrl-C stops: answers that are being written end.
The API key may be given as {KEY_VARIABLE} in the environment, which other users cannot see.
"""
_EPILOG = """\
examples:
  edge-tr serve
  edge-tr serve -m model.gguf --port 9000 --ctx 8192
  EDGE_TR_API_KEY=secret edge-tr serve --host 0.0.0.0
  curl http://127.0.0.1:8080/v1/chat/completions -d '{"messages":[{"role":"user","content":"Hi"}]}'
"""


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``serve`` to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        parents=[common],
        help="answer requests as OpenAI's API does, with a page to chat",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    parser.add_argument(
        "--embedding-model",
        type=Path,
        metavar="FILE",
        help="a GGUF file for /v1/embeddings (default: the model itself)",
    )
    _add_server(parser)
    options.add_drafting(parser)
    options.add_rpc(options.add_context(parser))
    parser.set_defaults(command=serve)


def _add_server(parser: argparse.ArgumentParser) -> None:
    """Where it listens, who may ask, and how much it takes."""
    group = parser.add_argument_group("server")
    group.add_argument("--host", metavar="NAME", help="address to listen on (default 127.0.0.1)")
    group.add_argument(
        "--port", type=int, metavar="N", help="port (default 8080; 0: any that is free)"
    )
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="what clients must send as bearer token (repeatable, one for each client)",
    )
    group.add_argument(
        "--private-history",
        action="store_true",
        help="never draft for one API key from the texts of another; --n-history is shared out",
    )
    group.add_argument(
        "--origin",
        action="append",
        default=[],
        metavar="URL",
        help="let the scripts of this page's origin ask, such as https://chat.example (repeatable)",
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="answer requests addressed to this name too, beside this machine's own names and "
        "addresses (repeatable)",
    )
    group.add_argument(
        "--max-waiting",
        type=int,
        metavar="N",
        help="requests that may wait while one is answered (default 16)",
    )
    group.add_argument(
        "--max-request-bytes",
        type=int,
        metavar="N",
        help="largest body of a request (default 8388608)",
    )
    group.add_argument(
        "--idle-unload",
        type=float,
        metavar="SECONDS",
        help="give the memory of the model back after this time without a request; the next one "
        "opens it again, with what was learned and the conversation in the cache (default: never)",
    )


def serve(args: argparse.Namespace) -> int:
    """Listen and answer until Ctrl-C."""
    from edge_tr.server import require_extra

    require_extra()
    options.prepare_llama(args)
    show_log()
    config = _config(args)
    if args.idle_unload is not None and not args.idle_unload > 0:
        raise ConfigError(f"--idle-unload {args.idle_unload:g} is not allowed; it must be above 0")
    settings = {
        "context": options.context_config(args),
        "draft": options.draft_config(args),
        **options.placement(args),
        "idle_unload_s": args.idle_unload,
    }
    path = options.model_path(args)
    return _serve(args, config, path, settings)


def _config(args: argparse.Namespace) -> ServerConfig:
    from edge_tr.server.config import ServerConfig

    if args.private_history and args.history is not None:
        raise ConfigError("--private-history keeps no file; leave --history out")
    names = ("host", "port", "max_waiting", "max_request_bytes")
    return options.configured(
        ServerConfig,
        args,
        dict(zip(names, names, strict=True)),
        api_key=tuple(dict.fromkeys(args.api_key)) or os.environ.get(KEY_VARIABLE) or None,
        private_history=args.private_history,
        origins=tuple(args.origin),
        hosts=tuple(name.lower() for name in args.allow_host),
    )


def _serve(
    args: argparse.Namespace, config: ServerConfig, path: Path, settings: dict[str, Any]
) -> int:
    from edge_tr.llama.embedder import Embedder
    from edge_tr.server.run import Server, listen
    from edge_tr.server.service import Service
    from edge_tr.session import Session

    embedder = Embedder(
        args.embedding_model or path,
        n_threads=args.threads,
        n_gpu_layers=args.gpu_layers,
        idle_unload_s=args.idle_unload,
    )
    with listen(config) as listener:
        with loading(path) as progress:
            session = Interruptible().run(lambda: Session(path, progress=progress, **settings))
        with session:
            tell(session, 0)
            service = Service(session, path.stem, embedder, config)
            if not config.is_loopback and config.api_key is None:
                note("warning: whoever reaches this machine can ask; --api-key asks for a key")
            host = f"[{config.host}]" if ":" in config.host else config.host
            note(f"listening at http://{host}:{listener.getsockname()[1]}/ (Ctrl-C stops)")
            server = Server(service)
            try:
                with suppress(KeyboardInterrupt):  # before the server hears signals
                    server.run(sockets=[listener])
            finally:
                service.close()
                save_matrix(session, args)
                server.ended()
    return 0
