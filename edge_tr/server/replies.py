"""Answers in the shapes of OpenAI's API, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from edge_tr.answer import Answer
from edge_tr.chat.calls import Call
from edge_tr.chat.reply import Part, ReplyReader
from edge_tr.chat.text import Piece, Token
from edge_tr.stats import Stats

Json = dict[str, Any]


def usage(answer: Answer) -> Json:
    """Tokens read and written; those of the prompt that were in the cache apart."""
    n_prompt, n_tokens = len(answer.prompt), answer.n_tokens
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_tokens,
        "total_tokens": n_prompt + n_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.stats.n_reused},
    }


def timings(stats: Stats, n_tokens: int) -> Json:
    """As llama-server tells them, with decode steps and mean accepted tokens.

    Parameters
    ----------
    stats : of the generation, up to some token.
    n_tokens : tokens of the text up to there.
    """
    n_read = stats.n_prompt - stats.n_reused
    prompt_ms = stats.prefill_s * 1e3
    predicted_ms = max(0.0, stats.total_s - stats.prefill_s) * 1e3
    return {
        "cache_n": stats.n_reused,
        "prompt_n": n_read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / n_read if n_read else 0.0,
        "prompt_per_second": stats.prefill_tps,
        "predicted_n": n_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / max(1, n_tokens),
        "predicted_per_second": stats.decode_tps,
        "draft_n": stats.n_drafted,
        "draft_n_accepted": stats.n_accepted,
        "n_steps": stats.n_steps,
        "mat": stats.mat,
    }


class Reply(ABC):
    """One answer: pieces come in with ``add``, chunks or one whole object go out.

    Parameters
    ----------
    answer : what generates it.
    model : its name for the client.
    steps, live_timings : what each chunk tells beside the text.
    """

    prefix, whole_object, chunk_object = "", "", ""

    def __init__(
        self, answer: Answer, model: str, *, steps: bool = False, live_timings: bool = False
    ) -> None:
        self.answer = answer
        self._steps, self._live_timings = steps, live_timings
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._text = ""
        self._tokens: list[Token] = []

    @abstractmethod
    def begin(self) -> list[Json]:
        """The chunks before the first piece."""

    @abstractmethod
    def add(self, piece: Piece) -> list[Json]:
        """Take a piece; the chunks that show it."""

    @abstractmethod
    def end(self) -> list[Json]:
        """The chunks after the last piece; the last of them has the reason of the end."""

    @abstractmethod
    def whole(self) -> Json:
        """The answer as one object, after the last piece."""

    @property
    def finish_reason(self) -> str | None:
        """Why it ended, in OpenAI's words."""
        reason = self.answer.finish_reason
        return "length" if reason == "context" else reason

    def usage_chunk(self) -> Json:
        """The chunk without choices that ``include_usage`` asks for."""
        chunk = self._head | {"object": self.chunk_object, "choices": []}
        return chunk | {"usage": usage(self.answer), "timings": self._timings()}

    def _timings(self) -> Json:
        return timings(self.answer.stats, self.answer.n_tokens)

    def _chunk(
        self,
        choice: Json,
        tokens: Iterable[Token] = (),
        reason: str | None = None,
        stats: Stats | None = None,
    ) -> Json:
        """A chunk that shows a piece (with the statistics up to it) or ends the answer."""
        choice = {"index": 0, "logprobs": None} | choice | {"finish_reason": reason}
        chunk = self._head | {"object": self.chunk_object, "choices": [choice]}
        if reason:
            chunk["timings"] = self._timings()
        elif self._live_timings:
            stats = stats or Stats(n_prompt=len(self.answer.prompt))
            chunk["timings"] = timings(stats, stats.n_tokens)
        if self._steps and tokens:
            chunk["tokens"] = [{"id": t.id, "step": t.step, "drafted": t.drafted} for t in tokens]
        return chunk

    def _whole(self, choice: Json) -> Json:
        chunk = self._chunk(choice, self._tokens, choice["finish_reason"])
        return chunk | {"object": self.whole_object, "usage": usage(self.answer)}


class TextReply(Reply):
    """Shapes of /v1/completions; ``echo`` is text to put in front."""

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, answer: Answer, model: str, *, echo: str = "", **options: Any):
        super().__init__(answer, model, **options)
        self._echo = echo

    def begin(self) -> list[Json]:
        self._text = self._echo
        return [self._chunk({"text": self._echo})] if self._echo else []

    def add(self, piece: Piece) -> list[Json]:
        choice = {"text": piece.text, "logprobs": self._logprobs(piece.tokens, len(self._text))}
        self._text += piece.text
        self._tokens += piece.tokens
        if not piece.text and choice["logprobs"] is None:
            return []
        return [self._chunk(choice, piece.tokens, None, piece.stats)]

    def end(self) -> list[Json]:
        return [self._chunk({"text": ""}, reason=self.finish_reason)]

    def whole(self) -> Json:
        return self._whole(
            {
                "text": self._text,
                "logprobs": self._logprobs(self._tokens, len(self._echo)),
                "finish_reason": self.finish_reason,
            }
        )

    def _logprobs(self, tokens: Sequence[Token], offset: int) -> Json | None:
        def text(token: int) -> str:
            return self.answer.token_bytes(token).decode("utf-8", "replace")

        shown = [(text(t.id), t.logprob) for t in tokens if t.logprob is not None]
        if not shown:
            return None
        offsets = []
        for token, _ in shown:
            offsets.append(offset)
            offset += len(token)
        return {
            "tokens": [token for token, _ in shown],
            "token_logprobs": [logprob.value for _, logprob in shown],
            "top_logprobs": [
                {text(i): value for i, value in logprob.top} | {token: logprob.value}
                for token, logprob in shown
            ],
            "text_offset": offsets,
        }


class ChatReply(Reply):
    """Shapes of /v1/chat/completions.

    Parameters
    ----------
    reader : takes the text apart.
    """

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, answer: Answer, model: str, *, reader: ReplyReader, **options: Any):
        super().__init__(answer, model, **options)
        self._reader = reader
        self._reasoning = ""

    def begin(self) -> list[Json]:
        return [self._chunk({"delta": {"role": "assistant", "content": ""}})]

    def add(self, piece: Piece) -> list[Json]:
        self._tokens += piece.tokens
        deltas = self._deltas(self._reader.add(piece.text))
        logprobs = self._logprobs(piece.tokens)
        if logprobs is not None and not deltas:
            deltas = [{"content": ""}]
        chunks = []
        for i, delta in enumerate(deltas):  # the tokens are told of once
            choice = {"delta": delta, "logprobs": None if i else logprobs}
            tokens = () if i else piece.tokens
            chunks.append(self._chunk(choice, tokens, None, piece.stats))
        return chunks

    def _deltas(self, parts: Iterable[Part]) -> list[Json]:
        """Take note of the parts; what is new of the message."""
        deltas: list[Json] = []
        for part in parts:
            if part.kind == "reasoning":
                self._reasoning += part.text
                deltas.append({"reasoning_content": part.text})
            else:
                self._text += part.text
                deltas.append({"content": part.text})
        return deltas

    def end(self) -> list[Json]:
        parts, found = self._reader.finish()
        chunks = [self._chunk({"delta": delta}) for delta in self._deltas(parts)]
        calls = _calls(found)
        if calls:
            delta = [{"index": i} | call for i, call in enumerate(calls)]
            chunks.append(self._chunk({"delta": {"tool_calls": delta}}))
        return [*chunks, self._chunk({"delta": {}}, reason=self._reason(calls))]

    def whole(self) -> Json:
        parts, found = self._reader.finish()
        self._deltas(parts)
        calls = _calls(found)
        message: Json = {"role": "assistant", "content": self._text or (None if calls else "")}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if calls:
            message["tool_calls"] = calls
        return self._whole(
            {
                "message": message,
                "logprobs": self._logprobs(self._tokens),
                "finish_reason": self._reason(calls),
            }
        )

    def _reason(self, calls: list[Json]) -> str | None:
        return "tool_calls" if calls else self.finish_reason

    def _logprobs(self, tokens: Sequence[Token]) -> Json | None:
        shown = [(t.id, t.logprob) for t in tokens if t.logprob is not None]
        if not shown:
            return None
        content = [
            self._entry(token, logprob.value)
            | {"top_logprobs": [self._entry(i, value) for i, value in logprob.top]}
            for token, logprob in shown
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> Json:
        data = self.answer.token_bytes(token)
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": logprob,
            "bytes": list(data),
        }


def _calls(found: Iterable[Call]) -> list[Json]:
    return [
        {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": call._asdict()}
        for call in found
    ]
