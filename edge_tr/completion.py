"""An answer of a drop-in ``Llama``: pieces of text with the decode step of each token."""

from __future__ import annotations

import json
import secrets
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edge_tr.chat.text import Logprob, Piece, TextBuilder, Token
from edge_tr.errors import ConfigError, EdgeTRError, ModelLoadError, PromptTooLongError
from edge_tr.stats import Stats

if TYPE_CHECKING:
    from edge_tr import Llama
    from edge_tr.target import Float32, Int32

FinishReason = Literal["stop", "length"]

_starting = threading.Lock()
"""Held from setting a seed until the first token, when the sampler has been made with it."""


@dataclass(frozen=True)
class CompletionConfig:
    """What is asked for.

    Attributes
    ----------
    max_tokens : most tokens to generate; None goes on until the context is full.
    stops : strings that end the text and are no part of it.
    sampling : arguments of ``Llama.generate`` by name.
    seed : of the draws; None takes a fresh one.
    grammar : GBNF that the text follows.
    logit_bias : what to add to the logits of tokens, by id.
    n_logprobs : most probable tokens to report with each token; None reports none.
    """

    max_tokens: int | None = None
    stops: Sequence[str] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    grammar: str | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    n_logprobs: int | None = None


class Completion:
    """One answer; iterating over it generates it.

    Parameters
    ----------
    llm : the open model; one answer at a time.
    prompt : token ids.
    config : what is asked for.

    Attributes
    ----------
    finish_reason : "stop" at an end token or a stop string, "length" at ``max_tokens`` or the
        end of the context; None before the end.
    n_tokens : generated tokens, without an end token.
    stats : what the model did for it; filled while it is generated.

    Raises
    ------
    ConfigError : at once: a token that the model lacks, or a grammar that cannot be read.
    PromptTooLongError : at once: the prompt does not fit the context.
    CancelledError, DecodeError : while iterating.
    """

    def __init__(self, llm: Llama, prompt: Sequence[int], config: CompletionConfig) -> None:
        from edge_tr.llama.library import lib

        if len(prompt) >= llm.n_ctx():
            raise PromptTooLongError(
                f"the prompt has {len(prompt)} tokens; a context of {llm.n_ctx()} holds at most "
                f"{llm.n_ctx() - 1} of them and one of the answer"
            )
        if not prompt:
            raise ConfigError("the prompt is empty")
        wrong = [t for t in config.logit_bias if not 0 <= t < llm.n_vocab()]
        if wrong:
            raise ConfigError(f"logit_bias names token {wrong[0]}, which the model lacks")
        self._llm, self._lib = llm, lib
        self._vocab = lib.llama_model_get_vocab(llm.model)
        self.prompt = list(prompt)
        self.config = config
        if config.grammar is not None:
            self._check_grammar(config.grammar)
        self.finish_reason: FinishReason | None = None
        self.n_tokens = 0
        self.stats = Stats(n_prompt=len(prompt))
        self._rows: deque[Float32] = deque()
        self._n_accepted = 0

    def __iter__(self) -> Iterator[Piece]:
        room = self._llm.n_ctx() - len(self.prompt)
        wanted = self.config.max_tokens
        budget = room if wanted is None else min(wanted, room)
        text = TextBuilder(self.config.stops)
        self.finish_reason = "length"
        if budget <= 0:
            return
        with closing(self._generate()) as tokens:
            for token in tokens:
                self.stats = self._llm.stats
                if self._lib.llama_vocab_is_eog(self._vocab, token):
                    self.finish_reason = "stop"
                    break
                self.n_tokens += 1
                yield from text.add(self.token_bytes(token), self._describe(token))
                if text.stopped:
                    self.finish_reason = "stop"
                    break
                if self.n_tokens == budget:
                    break
        yield from text.finish()

    def _generate(self) -> Generator[int, None, None]:
        from llama_cpp import LlamaGrammar, LogitsProcessorList

        config = self.config
        seed = secrets.randbelow(1 << 31) if config.seed is None else config.seed
        processors: list[Callable[[Int32, Float32], Float32]] = []
        if config.n_logprobs is not None:
            processors.append(self._keep_row)
        if config.logit_bias:
            processors.append(self._add_bias)
        generation = self._llm.generate(
            self.prompt,
            **config.sampling,
            logits_processor=LogitsProcessorList(processors) if processors else None,
            grammar=config.grammar and LlamaGrammar.from_string(config.grammar, verbose=False),
        )
        with closing(generation):
            with _starting:
                self._llm.set_seed(seed)
                token = next(generation, None)
            while token is not None:
                yield token
                token = next(generation, None)

    def _describe(self, token: int) -> Token:
        logprob = None
        if self.config.n_logprobs is not None:
            logprob = _logprob(self._rows.popleft(), token, self.config.n_logprobs)
        n_before, self._n_accepted = self._n_accepted, self.stats.n_accepted
        return Token(token, self.stats.n_steps, self._n_accepted > n_before, logprob)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; they may end in the middle of a character."""
        from edge_tr.llama.model import piece

        return piece(self._vocab, token)

    def _keep_row(self, _tokens: Int32, logits: Float32) -> Float32:
        self._rows.append(np.array(logits, dtype=np.float32))
        return logits

    def _add_bias(self, _tokens: Int32, logits: Float32) -> Float32:
        biased = np.array(logits, dtype=np.float32)
        for token, bias in self.config.logit_bias.items():
            biased[token] += bias
        return biased

    def _check_grammar(self, grammar: str) -> None:
        sampler = self._lib.llama_sampler_init_grammar(self._vocab, grammar.encode(), b"root")
        if not sampler:
            raise ConfigError(
                "the grammar cannot be read; it must be GBNF with a rule named root; llama.cpp's "
                "own reason is on stderr"
            )
        self._lib.llama_sampler_free(sampler)


def _logprob(row: Float32, token: int, n_top: int) -> Logprob:
    """Log-probabilities of a row of logits, float32[n_vocab]."""
    wide = row.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    best = np.argsort(-wide, kind="stable")[:n_top]
    return Logprob(float(wide[token]), tuple((int(i), float(wide[i])) for i in best))


def chat_tokens(
    llm: Llama, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
) -> list[int] | None:
    """Token ids of a conversation in the model's chat template; None where it has none.

    Raises
    ------
    ConfigError : the template cannot be read, or refuses the messages.
    """
    template = llm.own_template
    if template is None:
        return None
    text = template.render(messages, tools).encode("utf-8", "replace")
    return list(llm.tokenize(text, add_bos=False, special=True))


def open_llama(path: Path, **options: Any) -> Llama:
    """A drop-in ``Llama`` of a file, with errors that say what is wrong with it.

    Raises
    ------
    ModelFileError, ModelUnsupportedError : see ``edge_tr.gguf_file.info.inspect``.
    ModelLoadError : llama.cpp could not load it or had no memory for its context.
    ConfigError, MatrixFileError : see ``Llama``.
    """
    from edge_tr import Llama
    from edge_tr.gguf_file.info import inspect
    from edge_tr.llama.library import recent_errors

    inspect(path).require_text()
    try:
        return Llama(str(path), **options)
    except EdgeTRError:
        raise
    except (ValueError, RuntimeError) as error:
        raise ModelLoadError(f"{path} cannot be opened: {error}; {recent_errors()}") from None


def schema_grammar(schema: Any) -> str:
    """GBNF of a JSON schema.

    Raises
    ------
    ConfigError : it uses something that no grammar can express.
    """
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    try:
        return str(json_schema_to_gbnf(json.dumps(schema)))
    except Exception as error:  # it raises whatever the schema made it stumble on
        why = str(error) or type(error).__name__
        raise ConfigError(f"the JSON schema cannot be followed: {why}") from None
