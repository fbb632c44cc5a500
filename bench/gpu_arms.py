"""The ways of decoding that the GPU script compares, and one row of numbers per answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_tr.bench.loops import BareLoop, DecoderLoop, Loop, timed
from edge_tr.bench.peers import SERVER_OPTIONS, SERVER_TYPES, PeerError, PeerServer, find_peers
from edge_tr.bench.prompt_lookup import PromptLookup
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.costs.running import StepCosts
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.draft import Drafter
from edge_tr.drafts.fixed_tree import FixedTreeDrafter
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.session import Session
from edge_tr.target import Int32

K = 8
BUDGETS = (7, 15, 31, 80)
"""Nodes of the trees of the arms ``recycler7`` and so on."""

PEERS = ("pld", *SERVER_TYPES)
_PEER_S = 60.0
"""Seconds that a server may take to start, and for each answer."""

HOST_PARTS = ("draft_s", "lanes_s", "sample_s", "recycle_s")
"""Seconds of ``Stats`` outside llama_decode and top-k."""


class ForcedCosts(StepCosts):
    """Costs that decide between keep and redo: a token of 0 seconds makes redo always cheaper,
    one of infinitely many makes keep so."""

    def __init__(self, token_s: float) -> None:
        super().__init__()
        self._forced_s = token_s

    def token_s(self) -> float:
        return self._forced_s


class StoppingLoop(DecoderLoop):
    """A decoder of the product that ends where the text ends."""

    def __init__(self, decoder: Decoder, stop_tokens: Collection[int]) -> None:
        super().__init__(decoder)
        self._stop_tokens = stop_tokens

    def stream(self, prompt: Int32, n_tokens: int) -> Iterator[list[int]]:
        return self.decoder.generate(prompt, max_tokens=n_tokens, stop_tokens=self._stop_tokens)


@dataclass(frozen=True)
class Prompt:
    """What one answer starts from; those that are not measured fill the matrices."""

    id: str
    category: str
    tokens: Int32
    measured: bool = True


class Arms:
    """All arms on one model, each with its own context and its own matrix, empty at first.

    Parameters
    ----------
    path, n_gpu_layers, context : as for ``Session``.
    names : which arms; "bare" or "plain" must be there.
    peers : folder of llama.cpp's programs, for the arms that are servers.

    Attributes
    ----------
    failed : servers that broke off, and why; they take no further part.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_gpu_layers: int,
        context: ContextConfig,
        names: Collection[str],
        peers: Path | None = None,
    ) -> None:
        self.model = Model(path, n_gpu_layers=n_gpu_layers)
        self.stop_tokens = self.model.stop_tokens()
        self._context = context
        self.failed: dict[str, str] = {}
        self._open: list[Callable[[], None]] = [self.model.close]
        self.arms: dict[str, Loop | PeerServer] = {
            name: self._server(name, peers) if name in SERVER_OPTIONS else self._arm(name)
            for name in names
        }

    def _server(self, name: str, peers: Path | None) -> PeerServer:
        options = SERVER_OPTIONS[name]
        folder = find_peers(peers)
        server = PeerServer(self.model, self._context, folder, options, answer_s=_PEER_S)
        self._open.append(server.close)
        return server

    def _arm(self, name: str) -> Loop:
        if name == "bare":
            bare = BareLoop(self.model, self._context)
            self._open.append(bare.close)
            return bare
        if name == "auto":
            session = Session(
                self.model.path,
                context=self._context,
                draft=DraftConfig(start="empty"),
                n_gpu_layers=self.model.n_gpu_layers,
            )
            self._open.append(session.close)
            return StoppingLoop(session.decoder, self.stop_tokens)
        target = LlamaTarget(self.model, self._context)
        self._open.append(target.close)
        costs = None
        if name.endswith(("-keep", "-redo")):
            name, how = name.split("-")
            costs = ForcedCosts(float("inf") if how == "keep" else 0.0)
        decoder = Decoder(target, self._drafter(name, target), costs=costs, n_threads=4)
        return StoppingLoop(decoder, self.stop_tokens)

    def _drafter(self, name: str, target: LlamaTarget) -> Drafter | None:
        if name == "plain":
            return None
        if name == "pld":
            return PromptLookup(target.n_vocab)
        matrix = AdjacencyMatrix(target.n_vocab, K)
        if name == "paper":
            return FixedTreeDrafter(matrix, TreeTemplate.paper())
        return GrownTreeDrafter(
            Candidates(matrix),
            n_ctx=target.n_ctx,
            max_nodes=int(name.removeprefix("recycler")),
            max_lanes=target.n_lanes,
        )

    def close(self) -> None:
        """Free every context and the model."""
        for close in reversed(self._open):
            close()

    def run(self, prompt: Prompt, n_tokens: int, *, turn: int) -> list[dict[str, Any]]:
        """One answer of each arm; ``turn`` decides which comes first.

        Returns
        -------
        One row an arm: tokens and seconds after the first token up to the end of the text,
        the counts and seconds of ``Stats``, and where the text differs from that of the first
        arm named.
        """
        names = list(self.arms)
        start = turn % len(names)
        rows, texts = {}, {}
        about = {"prompt": prompt.id, "category": prompt.category, "n_prompt": len(prompt.tokens)}
        for name in names[start:] + names[:start]:
            try:
                tokens, row = self._answer(self.arms[name], prompt.tokens, n_tokens)
            except PeerError as error:
                self.failed[name] = str(error)
                del self.arms[name]
                continue
            texts[name] = [token for token in tokens if token not in self.stop_tokens]
            rows[name] = {"arm": name} | about | row
        for name, row in rows.items():
            row["first_difference"] = _first_difference(texts[names[0]], texts[name])
        return [rows[name] for name in names if name in rows]

    def _answer(
        self, arm: Loop | PeerServer, prompt: Int32, n_tokens: int
    ) -> tuple[list[int], dict[str, Any]]:
        """The text up to its end, and what it took after the first token."""
        if isinstance(arm, PeerServer):
            found = arm.answer(prompt, n_tokens)
            counts = {"n_tokens": found.n_tokens - 1, "seconds": found.decode_s}
            return found.tokens, counts | {"first_s": found.prefill_s}
        answer = timed(arm, prompt, n_tokens, self.stop_tokens)
        counts = {"n_tokens": answer.n_to_end - 1, "seconds": answer.to_end_s - answer.prefill_s}
        counts |= {"first_s": answer.prefill_s, **_counts(answer.stats)}
        return answer.tokens[: answer.n_to_end], counts


def _counts(stats: dict[str, Any]) -> dict[str, Any]:
    names = ("n_steps", "n_plain_steps", "n_drafted", "n_accepted", "n_redone")
    seconds = ("decode_s", "topk_s", *HOST_PARTS)
    counts = {name: stats[name] for name in (*names, *seconds) if name in stats}
    if stats:
        counts["steps_s"] = stats["total_s"] - stats["prefill_s"]
    return counts


def _first_difference(reference: list[int], text: list[int]) -> int | None:
    """Index of the first token that differs; None where none does."""
    if reference == text:
        return None
    shorter = min(len(reference), len(text))
    return next((i for i in range(shorter) if reference[i] != text[i]), shorter)
