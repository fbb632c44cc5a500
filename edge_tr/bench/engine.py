"""Methods that run in this process: plain decoding, ours, and others on our decode loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr.bench.loops import BareLoop, note_stats
from edge_tr.bench.outcome import Outcome, collect, until_end
from edge_tr.config import ContextConfig, DraftConfig, SamplingConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.decode.lanes import LaneCache
from edge_tr.decode.topk import default_threads
from edge_tr.drafting import Drafting
from edge_tr.drafts.draft import Drafter
from edge_tr.drafts.template import TreeTemplate
from edge_tr.errors import ConfigError
from edge_tr.llama.devices import has_gpu
from edge_tr.llama.sampler import LlamaSampler
from edge_tr.llama.stock import open_stock
from edge_tr.measuring.kept_costs import costs_of
from edge_tr.session import Session
from edge_tr.target import Int32

_WARM_UP = "Hello, hello, hello"
"""What is answered first and not counted."""


class EngineMethod:
    """A decoder of the product.

    Parameters
    ----------
    session : owns the model and the target; other methods may use the target in between.
    decoder : gives the decoder of the next answer.
    sampling : how tokens are chosen.
    save : keeps what was learned.
    """

    def __init__(
        self,
        session: Session,
        decoder: Callable[[], Decoder],
        *,
        sampling: SamplingConfig | None = None,
        save: Callable[[], object] = lambda: None,
    ) -> None:
        self._session = session
        self._decoder = decoder
        self._sampling = sampling or SamplingConfig()
        self._save = save

    def answer(self, prompt: Int32, n_tokens: int) -> Outcome:
        target = self._session.target
        decoder = self._decoder()
        LaneCache(target).recover(0)
        sampler = None if self._sampling.greedy else LlamaSampler(target, self._sampling)
        steps = decoder.generate(
            prompt,
            max_tokens=n_tokens,
            sampler=sampler,
            stop_tokens=self._session.stop_tokens,
        )
        return note_stats(collect(steps), decoder)

    def save(self) -> None:
        self._save()

    def close(self) -> None:
        """Nothing: the session is closed by whoever opened it."""


class PlainMethod:
    """The shortest loop over ``llama_decode``, in a context without lanes."""

    def __init__(self, session: Session) -> None:
        self._loop = BareLoop(session.model, session.target.config)
        self._stop_tokens = session.stop_tokens
        self.answer(session.prompt_tokens(_WARM_UP), 4)

    def answer(self, prompt: Int32, n_tokens: int) -> Outcome:
        self._loop.forget()
        return collect(until_end(self._loop.stream(prompt, n_tokens), self._stop_tokens))

    def save(self) -> None:
        """Nothing: it learns nothing."""

    def close(self) -> None:
        self._loop.close()


class StockLookup:
    """``llama_cpp.Llama`` with its own prompt lookup, as its users run it: the number of drafted
    tokens that its documentation advises, 2 on a CPU and 10 on a GPU."""

    def __init__(self, session: Session) -> None:
        on_gpu = session.model.n_gpu_layers != 0 and has_gpu()
        n_lookup = 10 if on_gpu else 2
        self._llama = open_stock(session.model, session.target.config, n_lookup=n_lookup)
        self._stop_tokens = session.stop_tokens
        self._n_evals = 0
        self._eval = self._llama.eval
        self._llama.eval = self._count
        self.answer(session.prompt_tokens(_WARM_UP), 4)

    def _count(self, tokens: Any) -> None:
        self._n_evals += 1
        self._eval(tokens)

    def _steps(self, prompt: Int32, n_tokens: int) -> Iterator[list[int]]:
        tokens = self._llama.generate(prompt.tolist(), temp=0.0)
        for i, token in enumerate(islice(tokens, n_tokens)):
            if i == 0:
                self._n_evals = 0  # those so far were prefill
            yield [token]

    def answer(self, prompt: Int32, n_tokens: int) -> Outcome:
        self._llama.reset()
        try:
            outcome = collect(until_end(self._steps(prompt, n_tokens), self._stop_tokens))
        # What it raises once a prompt is longer than a batch, and where nothing can be rewound.
        except (ValueError, RuntimeError) as error:
            return Outcome(error=f"{type(error).__name__}: {error}")
        outcome.n_steps = self._n_evals
        return outcome

    def save(self) -> None:
        """Nothing: it learns nothing."""

    def close(self) -> None:
        self._llama.close()


def drafted(session: Session, drafter: Drafter) -> EngineMethod:
    """A method with a drafter of its own on the target of a session."""
    decoder = Decoder(session.target, drafter, n_threads=default_threads())
    return EngineMethod(session, lambda: decoder)


def engine_on(session: Session, **draft: Any) -> Drafting:
    """Another engine on the target of a session; it starts without candidates if not told
    otherwise, see ``DraftConfig``."""
    config = DraftConfig(**{"start": "empty", **draft})
    return Drafting(
        session.target, config, session.fingerprint, plain_reason=session.target.plain_reason
    )


def engine_method(
    session: Session, *, sampling: SamplingConfig | None = None, **draft: Any
) -> EngineMethod:
    """A method that drafts as ``DraftConfig`` says and inherits what it learned; with a
    ``matrix_path`` it is kept there, so that a stopped run goes on with it.

    Raises
    ------
    ConfigError : this model cannot verify drafts.
    """
    if session.target.plain_reason:
        raise ConfigError(session.target.plain_reason)
    engine = engine_on(session, **draft)
    save = engine.save_matrix if "matrix_path" in draft else lambda: None
    return EngineMethod(session, lambda: engine.decoder, sampling=sampling, save=save)


def paper_draft(template: TreeTemplate | None = None, **more: Any) -> dict[str, Any]:
    """Token Recycling as in the paper: 80 nodes and the root, k = 8, every node written back,
    nothing read from the prompt."""
    return {"speculative": template or TreeTemplate.paper(), "harvest": False, **more}


def measure_costs_anew(
    path: Path, context: ContextConfig, n_gpu_layers: int, progress: Callable[[str], None]
) -> None:
    """Measure the costs that automatic mode will use, whatever was kept of an earlier day."""
    draft = DraftConfig(speculative="off", start="empty")
    with Session(path, context=context, draft=draft, n_gpu_layers=n_gpu_layers) as session:
        if not session.target.plain_reason:
            costs_of(
                session.target,
                k=session.draft.k,
                n_threads=default_threads(),
                anew=True,
                progress=progress,
            )


def warm_up(session: Session) -> None:
    """Compile every kernel and touch the memory of the model, into a matrix that is thrown away."""
    prompt = session.prompt_tokens(_WARM_UP)
    plain = Decoder(session.target)
    EngineMethod(session, lambda: plain).answer(prompt, 4)
    if not session.target.plain_reason:
        engine_method(session, **paper_draft()).answer(prompt, 4)
        engine_method(session).answer(prompt, 32)


def detokenized(session: Session, tokens: list[int]) -> str:
    """The text of an answer without the token that ends it."""
    kept = np.array([t for t in tokens if t not in session.stop_tokens], dtype=np.int32)
    return session.model.detokenize(kept.tolist()).decode("utf-8", "replace")
