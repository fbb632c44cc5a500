"""``edge-tr rpc-server``: lend this machine to another one."""

from __future__ import annotations

import argparse
import ipaddress
import signal
import socket
from typing import Any

from edge_tr.cli import options
from edge_tr.cli.output import discard_stdout, note
from edge_tr.errors import ConfigError, DecodeError
from edge_tr.llama.rpc_hello import DEFAULT_PORT

_DESCRIPTION = """\
Lends the GPUs of this machine, or its CPU where it has none, to a model that runs on another:
start this here, and there `edge-tr run --rpc THIS_MACHINE:PORT` (chat, serve, tune and demo too).
It is llama.cpp's own server, so that both machines need the same llama.cpp; it serves one client
at a time. It asks for no key and trusts whoever connects: never let it listen to a network that
you do not trust. Ctrl-C stops it; a client that is using it then ends too.
"""


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``rpc-server`` to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "rpc-server",
        parents=[common],
        help="lend this machine to a model on another one",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="IPv4 address to listen at (default 127.0.0.1: this machine only; 0.0.0.0: all)",
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        default=DEFAULT_PORT,
        help=f"port to listen at (default {DEFAULT_PORT})",
    )
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        default=0,
        help="CPU threads, where the CPU is what is lent (default: all cores)",
    )
    parser.add_argument(
        "--keep-weights",
        action="store_true",
        help="keep what is sent in the cache directory, so that the same model loads faster",
    )
    parser.set_defaults(command=rpc_server)


def rpc_server(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    _check(args)
    options.prepare_llama(args)
    from edge_tr.files.paths import cache_dir
    from edge_tr.llama import devices, servers
    from edge_tr.machine import facts

    folder = None
    if args.keep_weights:
        folder = cache_dir() / "rpc"
        folder.mkdir(parents=True, exist_ok=True)
    if not ipaddress.IPv4Address(args.host).is_loopback:
        note("warning: whoever reaches this machine can use it and is trusted")
    names = ", ".join(devices.description(device) for device in servers.offered())
    note(f"lending {names} at {args.host}:{args.port} (Ctrl-C stops)")
    if not args.verbose:
        discard_stdout()  # llama.cpp tells of every connection, dozens while a model loads
    # llama.cpp does not return from waiting for clients, so that Python would never see Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    n_threads = args.threads or facts.n_cores()
    servers.serve(args.host, args.port, n_threads=n_threads, cache=folder)
    raise DecodeError(f"llama.cpp cannot serve at {args.host}:{args.port}; see above")


def _check(args: argparse.Namespace) -> None:
    """Raise what llama.cpp would not put into words."""
    try:
        ipaddress.IPv4Address(args.host)
    except ValueError:
        raise ConfigError(
            f"--host {args.host} is not allowed; it must be an IPv4 address of this machine"
        ) from None
    for name, low, high in (("port", 1, 65535), ("threads", 0, 1024)):
        value = getattr(args, name)
        if not low <= value <= high:
            raise ConfigError(f"--{name} {value} is not allowed; it must be {low} to {high}")
    try:
        socket.create_server((args.host, args.port)).close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {args.host}:{args.port}: {error.strerror or error}"
        ) from None
