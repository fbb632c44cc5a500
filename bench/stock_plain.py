"""Plain decoding of the stock build: in a process of its own, timed there."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_tr.bench.loops import BareLoop, Loop, StockLoop, timed
from edge_tr.bench.outcome import Outcome
from edge_tr.config import ContextConfig
from edge_tr.llama.model import Model
from edge_tr.target import Int32

from . import builds

_ARMS: dict[str, Callable[..., Loop]] = {"bare": BareLoop, "stock": StockLoop}
_FLASH = " with flash attention"


def plain_ways(context: ContextConfig) -> list[str]:
    """Ways of plain decoding, the first to compare with; flash attention is tried where the
    context does not say."""
    return [*_ARMS, *(name + _FLASH for name in _ARMS if context.flash_attn is None)]


def stock_arm(way: str, model: Model, context: ContextConfig) -> Loop:
    """A way of plain decoding in llama.cpp as it is published."""
    if way.endswith(_FLASH):
        context = replace(context, flash_attn=True)
    return own_arm(way, model, context)


def own_arm(way: str, model: Model, context: ContextConfig) -> Loop:
    """The same loop in this build, in the context that drafts."""
    return _ARMS[way.removesuffix(_FLASH)](model, context)


class PlainArms:
    """Arms by name, in the child process; each has its context from its first answer on."""

    def __init__(self, model: str, context: dict[str, Any]) -> None:
        self._model = Model(model)
        self._context = ContextConfig(**context)
        self._arms: dict[str, Loop] = {}

    def answer(
        self, name: str, kind: str, prompt: list[int], n_tokens: int, stop_tokens: list[int]
    ) -> dict[str, Any]:
        """See ``timed``."""
        if name not in self._arms:
            self._arms[name] = stock_arm(kind, self._model, self._context)
        tokens = np.array(prompt, dtype=np.int32)
        return timed(self._arms[name], tokens, n_tokens, frozenset(stop_tokens)).to_dict()

    def close(self, name: str) -> None:
        """Free an arm."""
        arm = self._arms.pop(name, None)
        if arm is not None:
            arm.close()


class StockBuild:
    """The child process and its arms."""

    def __init__(self, model: Path, context: ContextConfig) -> None:
        self._remote = builds.Remote(
            builds.stock(), f"{__name__}:PlainArms", model=str(model), context=asdict(context)
        )

    def arm(self, name: str, kind: str) -> RemoteArm:
        """One of ``plain_ways``, with a context of its own."""
        return RemoteArm(self._remote, name, kind)

    @property
    def waiting_share(self) -> float:
        """See ``builds.Remote``."""
        return self._remote.waiting_share

    def close(self) -> None:
        """End the process."""
        self._remote.close()


class RemoteArm:
    """An arm of the stock build, as the process that measures sees it."""

    def __init__(self, remote: builds.Remote, name: str, kind: str) -> None:
        self._remote = remote
        self._name = name
        self._kind = kind

    def answer(self, prompt: Int32, n_tokens: int, stop_tokens: Collection[int]) -> Outcome:
        """Run one generation; its clock is the child's."""
        found = self._remote.call(
            "answer",
            name=self._name,
            kind=self._kind,
            prompt=prompt.tolist(),
            n_tokens=n_tokens,
            stop_tokens=sorted(stop_tokens),
        )
        return Outcome(**found)

    def close(self) -> None:
        """Free its context."""
        self._remote.call("close", name=self._name)
