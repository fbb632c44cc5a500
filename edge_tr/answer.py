"""One answer of an open model, under every face: tokens, pieces of text, why it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from edge_tr.chat.text import Logprob, Piece, TextBuilder, Token
from edge_tr.config import SamplingConfig
from edge_tr.decode.decoder import Decoder
from edge_tr.decode.sampling import Sampler
from edge_tr.errors import CancelledError
from edge_tr.llama.model import Model
from edge_tr.llama.sampler import LlamaSampler
from edge_tr.llama.target import LlamaTarget
from edge_tr.llama.turns import Turn, Turns
from edge_tr.stats import Stats
from edge_tr.target import Float32, Int32

FinishReason = Literal["stop", "length", "context"]


class Opened(Protocol):
    """What an answer needs of ``Session``."""

    model: Model
    target: LlamaTarget
    decoder: Decoder
    turns: Turns
    stop_tokens: frozenset[int]
    has_learned: bool


@dataclass(frozen=True)
class AnswerConfig:
    """What is asked for.

    Attributes
    ----------
    max_tokens : most tokens to generate; None goes on until the context is full.
    stops : strings that end the text and are no part of it.
    sampling : how each token is chosen.
    n_logprobs : most probable tokens to report with each token; None reports none.
    shown : control tokens whose text is part of the answer's.
    """

    max_tokens: int | None = None
    stops: Sequence[str] = ()
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    n_logprobs: int | None = None
    shown: frozenset[int] = frozenset()


class Answer:
    """One answer; iterating over it generates it.

    Answers of one session run one after the other, in the order in which threads ask for their
    first piece. A thread that has not ended an answer may begin another one: the first goes on,
    from the same token, when it is asked for its next piece.

    Parameters
    ----------
    session : the open model.
    prompt : token ids.
    config : what is asked for.

    Attributes
    ----------
    prompt : int32[n].
    tokens : ids that were generated, an end token left out.
    text : of the pieces so far.
    finish_reason : "stop" at an end token or a stop string, "length" at ``max_tokens``, "context"
        where the context is full; None before the end.
    stats : what the model did for it, up to the last piece; they are its own.

    Raises
    ------
    ConfigError : at once: a prompt without tokens, a token that the model lacks, a grammar that
        cannot be read.
    PromptTooLongError : at once: the prompt does not fit the context.
    CancelledError, DecodeError : while iterating.
    """

    def __init__(
        self, session: Opened, prompt: Sequence[int] | Int32, config: AnswerConfig
    ) -> None:
        self._session, self.config = session, config
        self.prompt = session.decoder.check_prompt(prompt, max_tokens=config.max_tokens)
        self._sampler: Sampler | None = None
        if not config.sampling.greedy:
            self._sampler = LlamaSampler(session.target, config.sampling)
        self._rows: deque[Float32] = deque()
        if config.n_logprobs is not None:
            self._sampler = _Noting(self._sampler, self._rows)
        self._turn = Turn()
        self.tokens: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.stats = Stats(n_prompt=len(self.prompt))

    @property
    def n_tokens(self) -> int:
        """Generated tokens, without an end token."""
        return len(self.tokens)

    def cancel(self) -> None:
        """Make it raise CancelledError soon, even if it has not begun; from any thread."""
        self._session.turns.cancel_turn(self._turn)

    def __iter__(self) -> Iterator[Piece]:
        return self._session.turns.stream(self._pieces(), self._turn)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; they may end in the middle of a character."""
        return self._session.model.piece(token, special=token in self.config.shown)

    def _pieces(self) -> Generator[Piece, None, None]:
        builder = TextBuilder(self.config.stops)
        with closing(self._counted()) as counted:
            for token, stats in counted:
                if token.id in self._session.stop_tokens:
                    self.finish_reason = "stop"
                    break
                self.tokens.append(token.id)
                yield from self._shown(builder.add(self.token_bytes(token.id), token, stats))
                if builder.stopped:
                    self.finish_reason = "stop"
                    break
        if self.finish_reason is None:
            is_at_limit = self.n_tokens == self.config.max_tokens
            self.finish_reason = "length" if is_at_limit else "context"
        yield from self._shown(builder.finish())

    def _shown(self, pieces: list[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            self.text += piece.text
            yield piece

    def _counted(self) -> Generator[tuple[Token, Stats], None, None]:
        """Each token, and what the generation had done when only the tokens up to it were there:
        a step gives several at once."""
        stats = self.stats
        with closing(self._steps(stats.copy())) as steps:
            for emitted, now in steps:
                self._session.has_learned |= self._session.decoder.drafter is not None
                n_before = stats.n_accepted
                for i, token in enumerate(emitted):
                    stats = now.copy()
                    stats.n_tokens -= len(emitted) - 1 - i
                    stats.n_accepted = min(n_before + i + 1, now.n_accepted)
                    self.stats = stats
                    drafted = n_before + i < now.n_accepted
                    yield Token(token, now.n_steps, drafted, self._logprob(token)), stats

    def _steps(self, stats: Stats) -> Generator[tuple[list[int], Stats], None, None]:
        """The tokens of each step. Where another answer took the cache in between, the text is
        read again."""
        decoder, turns = self._session.decoder, self._session.turns
        made: list[int] = []
        limit = self.config.max_tokens
        while len(self.prompt) + len(made) < decoder.target.n_ctx:
            steps = decoder.generate(
                [*self.prompt.tolist(), *made],
                max_tokens=None if limit is None else limit - len(made),
                sampler=self._sampler,
                stop_tokens=self._session.stop_tokens,
                stats=stats,
            )
            if self._turn.cancelled:  # before the decoder could hear of it
                raise CancelledError("the generation was cancelled")
            try:
                for emitted in steps:
                    made += emitted
                    yield emitted, stats
                    if decoder.stats is not stats:
                        break
                else:
                    return
            finally:
                if decoder.stats is stats and turns.is_usable:
                    decoder.finish()

    def _logprob(self, token: int) -> Logprob | None:
        """Log-probabilities of the row of logits that the token was drawn from."""
        if self.config.n_logprobs is None:
            return None
        wide = self._rows.popleft().astype(np.float64)
        wide -= wide.max()
        wide -= np.log(np.exp(wide).sum())
        best = np.argsort(-wide, kind="stable")[: self.config.n_logprobs]
        return Logprob(float(wide[token]), tuple((int(i), float(wide[i])) for i in best))


class _Noting:
    """Draws as another sampler does, or takes the best token, and notes the row of each draw."""

    def __init__(self, sampler: Sampler | None, rows: deque[Float32]) -> None:
        self._sampler, self._rows = sampler, rows
        self.temperature = 0.0 if sampler is None else sampler.temperature

    def sample(self, batch_index: int, logits: Float32) -> int:
        self._rows.append(np.array(logits, dtype=np.float32))
        if self._sampler is None:
            return int(logits.argmax())
        return self._sampler.sample(batch_index, logits)
