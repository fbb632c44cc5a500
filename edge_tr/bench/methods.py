"""Every method of the main table, by name, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_tr.bench.engine import (
    EngineMethod,
    PlainMethod,
    StockLookup,
    drafted,
    engine_method,
    paper_draft,
)
from edge_tr.bench.outcome import Method
from edge_tr.bench.peers import SERVER_OPTIONS, SERVER_TYPES, PeerServer, find_peers
from edge_tr.bench.programs import Program
from edge_tr.bench.prompt_lookup import PromptLookup
from edge_tr.bench.rest import RestDrafter, build_datastore
from edge_tr.bench.runner import AGAIN, PLAIN, Case
from edge_tr.errors import ConfigError
from edge_tr.machine import facts
from edge_tr.session import Session

OURS = ("paper", "auto", "pld", "rest")
"""Methods on our decode loop; they may have no violations."""

ABOUT = {
    PLAIN: "plain decoding: the shortest loop over llama_decode",
    "paper": "Token Recycling as published: 80 nodes and the root, k = 8, empty start, inherited",
    "auto": "edge_tr in automatic mode, empty start, inherited",
    "pld": "prompt lookup on our decode loop: suffixes of 3 tokens down to 1, 10 tokens",
    "pld-stock": "llama-cpp-python's own LlamaPromptLookupDecoding, as its users run it",
    "rest": "REST on our decode loop: longest suffix in a datastore, up to 64 nodes",
    "plain-server": "llama-server without speculation",
    "lookahead": "llama.cpp's llama-lookahead (W = 15, N = 5, G = 15)",
    "lookup": "llama.cpp's llama-lookup, n-grams of the prompt and the answer",
    **{name: f"llama-server --spec-type {name}, its defaults" for name in SERVER_TYPES},
    "draft-model": "llama-server with a draft model",
    AGAIN: "plain decoding once more: what it differs by is noise",
}
"""What each method is, in the order of the table."""

PEERS = ("lookahead", "lookup", *SERVER_TYPES)
"""llama.cpp's own methods of drafting without a second model, with its own kernels."""


@dataclass(frozen=True)
class Sources:
    """What a user may give beside the model.

    Attributes
    ----------
    datastore : text of the REST datastore; None = Python's standard library.
    draft_model : GGUF of a draft model, or of an EAGLE-3 head with ``draft_type``.
    draft_type : llama-server's ``--spec-type`` for it.
    peers : folder of llama.cpp's programs; None = what ``make peers`` built.
    """

    datastore: Path | None = None
    draft_model: Path | None = None
    draft_type: str = "draft-simple"
    peers: Path | None = None


def main_cases(
    session: Session, sources: Sources, state: Path, wanted: Sequence[str] = ()
) -> list[Case]:
    """The methods of the main table on a session in automatic mode.

    Parameters
    ----------
    state : directory for what methods have learned.
    wanted : names, plain decoding comes along; none = all.

    Raises
    ------
    ConfigError : a name that is not a method.
    """
    check_methods(wanted)
    names = [name for name in ABOUT if name in (PLAIN, AGAIN) or name in wanted or not wanted]
    if not sources.draft_model and "draft-model" not in wanted:
        names = [name for name in names if name != "draft-model"]
    servers = [name for name in names if name in SERVER_OPTIONS]
    keep = len(servers) * session.model.path.stat().st_size < _memory_bytes() / 2
    openers = _openers(session, sources, state, keep)
    return [Case(name, openers[name]) for name in names]


def check_methods(wanted: Sequence[str]) -> None:
    """See that every name is a method.

    Raises
    ------
    ConfigError : one is not.
    """
    unknown = [name for name in wanted if name not in ABOUT]
    if unknown:
        raise ConfigError(f"method {unknown[0]!r} is not known; use {', '.join(ABOUT)}")


def _memory_bytes() -> float:
    return facts.memory()["memory_available_bytes"] or float("inf")


def _openers(
    session: Session, sources: Sources, state: Path, keep: bool
) -> dict[str, Callable[[], Method]]:
    def paper() -> EngineMethod:
        file = state / "paper.npz"
        return engine_method(session, **paper_draft(start="inherited", matrix_path=file))

    def draft_server() -> Method:
        if sources.draft_model is None:
            raise ConfigError("no draft model was given (--draft-model FILE)")
        options = ("-md", str(sources.draft_model), "--spec-type", sources.draft_type)
        return server(options)()

    def automatic() -> EngineMethod:
        return EngineMethod(session, lambda: session.decoder, save=session.save_matrix)

    def rest() -> EngineMethod:
        store = build_datastore(session.model, sources.datastore)
        return drafted(session, RestDrafter(store, session.model.n_vocab))

    def server(options: Sequence[str]) -> Callable[[], Method]:
        model, config = session.model, session.target.config
        return lambda: PeerServer(model, config, find_peers(sources.peers), options, keep=keep)

    def program(name: str) -> Callable[[], Method]:
        return lambda: Program(session, find_peers(sources.peers), name)

    n_vocab = session.model.n_vocab
    return {
        PLAIN: lambda: PlainMethod(session),
        AGAIN: lambda: PlainMethod(session),
        "paper": paper,
        "auto": automatic,
        "pld": lambda: drafted(session, PromptLookup(n_vocab)),
        "pld-stock": lambda: StockLookup(session),
        "rest": rest,
        "lookahead": program("llama-lookahead"),
        "lookup": program("llama-lookup"),
        "draft-model": draft_server,
        **{name: server(options) for name, options in SERVER_OPTIONS.items()},
    }
