"""Random texts through schemas, over a real vocabulary; random histories through templates."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from edge_tr.chat.calls import check_tools
from edge_tr.chat.forms import learn
from edge_tr.chat.template import ChatTemplate
from edge_tr.constrain.constraint import Constraint
from edge_tr.constrain.schema import schema_rules
from edge_tr.errors import ConfigError, DecodeError
from edge_tr.llama.model import Model
from edge_tr.models.tiny_vocab import CHAT_TEMPLATE

from . import archive, fuzz_inputs
from .fuzz_server import fault

Found = Callable[[str, str], None]
_MOST_TOKENS = 120


class Walker:
    """Chooses tokens at random among those allowed, those that end something more often."""

    def __init__(self, path: Path) -> None:
        self._model = model = Model(path)  # its vocabulary is used as long as it is open
        self._vocabulary = model.constraint_vocabulary
        texts = self._texts = [model.piece(token) for token in range(model.n_vocab)]
        self._ends = set(self._vocabulary.eos_tokens)
        closing = [bool(t) and set(t) <= set(b'"}]') for t in texts]
        self._closing = np.array(closing)
        self._short = np.array([0 < len(t) < 4 for t in texts])

    def walk(
        self, schema: Any, rng: random.Random, name: str, found: Found, counts: Counter[str]
    ) -> None:
        """One text of a schema, validated where it ends."""
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
            constraint = Constraint(self._vocabulary, schema_rules(schema))
        except (ConfigError, jsonschema.exceptions.SchemaError):
            counts["refused_schemas"] += 1
            return
        try:
            text = self._text(constraint, rng)
        except (ConfigError, DecodeError) as error:
            found("invalid_answers", f"{name}: {error} {schema}")
            return
        if text is not None:
            counts["finished_walks"] += 1
            told = fault(text.decode("utf-8", "surrogateescape"), schema)
            if told:
                found("invalid_answers", f"{name}: {told} {text!r} {schema}")

    def _text(self, constraint: Constraint, rng: random.Random) -> bytes | None:
        text = b""
        for i in range(_MOST_TOKENS):
            allowed = constraint.allowed()
            if rng.random() < 0.5 and any(allowed[end] for end in self._ends):
                return text
            for wanted, share in (
                (self._closing, 0.1 + 0.8 * i / _MOST_TOKENS),
                (self._short, 0.5),
            ):
                if rng.random() < share and (allowed & wanted).any():
                    allowed = allowed & wanted
                    break
            token = int(rng.choice(np.flatnonzero(allowed)))
            if token in self._ends:
                return text
            text += self._texts[token]
            constraint.accept(token)
        return None


_compiled: list[ChatTemplate] = []


def check_templates(rng: random.Random, name: str, found: Found) -> None:
    """A template may refuse a history, and raise nothing else."""
    if not _compiled:
        sources = (CHAT_TEMPLATE, *archive.templates().values())
        _compiled.extend(ChatTemplate(source, bos="<s>", eos="</s>") for source in sources)
    template = rng.choice(_compiled)
    history = fuzz_inputs.messages(rng)
    if rng.random() < 0.3:
        history = fuzz_inputs.mutated(rng, {"messages": history})["messages"]
    try:
        template.render(history, check_tools(fuzz_inputs.tools(rng)))
        learn(template)
    except ConfigError:
        pass
    except Exception as error:
        found("status_500", f"{name}: {error!r} {history} {template.source[:80]!r}")
