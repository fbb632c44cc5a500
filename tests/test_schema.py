"""JSON schemas: what is allowed follows them, what cannot be enforced is refused by its name."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from edge_tr.chat.calls import call_schema
from edge_tr.constrain.constraint import Constraint
from edge_tr.constrain.schema import schema_rules
from edge_tr.errors import ConfigError
from edge_tr.llama.model import Model


@pytest.fixture(scope="module")
def model(smollm2_q4_0: Path) -> Iterator[Model]:
    with Model(smollm2_q4_0) as opened:
        yield opened


def texts(model: Model, schema: Any, n: int = 6) -> list[str]:
    """Finished texts of random allowed tokens; those that end something come more often."""
    pieces = [model.piece(token) for token in range(model.n_vocab)]
    closing = np.array([bool(p) and set(p) <= set(b'"}]') for p in pieces])
    short = np.array([0 < len(p) < 4 for p in pieces])
    ends = model.constraint_vocabulary.eos_tokens
    found = []
    for seed in range(n):
        rng = random.Random(seed)
        constraint, text = Constraint(model.constraint_vocabulary, schema_rules(schema)), b""
        for i in range(200):
            allowed = constraint.allowed()
            if any(allowed[end] for end in ends) and rng.random() < 0.6:
                found.append(text.decode())
                break
            for wanted, share in ((closing, 0.1 + i / 200), (short, 0.6)):
                if rng.random() < share and (allowed & wanted).any():
                    allowed = allowed & wanted
                    break
            token = int(rng.choice(np.flatnonzero(allowed)))
            if token in ends:
                found.append(text.decode())
                break
            text += pieces[token]
            constraint.accept(token)
    assert found
    return found


NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "n": {"type": "integer"}},
    "required": ["next"],
}
NESTED = {
    "type": "object",
    "properties": {"inner": {"$ref": "#/$defs/Inner"}},
    "required": ["inner"],
    "$defs": {"Inner": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
LEAF = {"properties": {"kind": {"const": "leaf", "default": "leaf"}}, "type": "object"}
FORK = {
    "properties": {"kind": {"const": "fork", "default": "fork"}, "left": {"$ref": "#/$defs/Tree"}},
    "required": ["left"],
    "type": "object",
}
TREE = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/Tree"}},
    "required": ["tree"],
    "$defs": {
        "Leaf": LEAF,
        "Fork": FORK,
        "Tree": {
            "discriminator": {
                "propertyName": "kind",
                "mapping": {"leaf": "#/$defs/Leaf", "fork": "#/$defs/Fork"},
            },
            "oneOf": [{"$ref": "#/$defs/Leaf"}, {"$ref": "#/$defs/Fork"}],
            "title": "Tree",
        },
    },
}
"""As pydantic writes a union with a discriminator, the branches of which have it by default."""
TOOLS = [{"type": "function", "function": {"name": name, "parameters": parameters}}
         for name, parameters in (("f", NESTED), ("g", NODE))]  # fmt: skip


@pytest.mark.model
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "maxLength": 18720},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 18720},
        {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        {"type": "string", "pattern": "^\\d+$"},
        {"enum": ["C:\\x"]},
        {"enum": ["a\nb"]},
        {"enum": ['a"b']},
        {"enum": ["🎉"]},
        {"type": "integer", "minimum": 17, "maximum": 23},
        {"type": "object", "properties": {"": {"type": "integer"}}, "required": [""]},
        {"type": "object", "properties": {'q"q': {"type": "null"}}, "required": ['q"q']},
        NODE,
        NESTED,
        call_schema(TOOLS),
        TREE,
        {"oneOf": [LEAF, FORK], "$defs": TREE["$defs"]},
        {"oneOf": [{"const": 1}, {"const": "1"}, {"enum": [None, True]}]},
        {"oneOf": [{"type": "integer"}, {"type": ["string", "null"]}, LEAF]},
        {"oneOf": [{"enum": ["a"], "title": "A"}, {"enum": ["b", "c"], "title": "B"}]},
        {
            "type": "array",
            "items": {"oneOf": [{"$ref": "#/$defs/Leaf"}, {"type": "null"}]},
            "$defs": {"Leaf": LEAF},
            "maxItems": 2,
        },
        {"allOf": [{"properties": {"a": {"type": "null"}}}, {"required": ["a"]}], "type": "object"},
    ],
)
def test_finished_texts_follow_the_schema(model: Model, schema: Any) -> None:
    for text in texts(model, schema):
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.model
def test_a_text_holds_no_control_character_as_it_is(model: Model) -> None:
    constraint = Constraint(model.constraint_vocabulary, schema_rules({"type": "string"}))
    for token in model.tokenize('"a', add_special=False):
        constraint.accept(int(token))
    allowed = constraint.allowed()
    controls = {token for token in range(model.n_vocab) if set(model.piece(token)) & set(b"\n\t\r")}
    assert not any(allowed[token] for token in controls)


def is_allowed(model: Model, schema: Any, text: str) -> bool:
    """Whether a whole JSON text may be written."""
    constraint = Constraint(model.constraint_vocabulary, schema_rules(schema))
    for token in model.tokenize(text, add_special=False).tolist():
        if not constraint.allowed()[token]:
            return False
        constraint.accept(token)
    return any(constraint.allowed()[end] for end in model.constraint_vocabulary.eos_tokens)


@pytest.mark.model
@pytest.mark.parametrize(
    ("day", "exists"),
    [
        ("2024-02-29", True),
        ("2000-02-29", True),
        ("0004-02-29", True),
        ("1900-02-29", False),
        ("9049-02-29", False),
        ("0000-02-29", False),
        ("2023-02-28", True),
        ("2023-04-30", True),
        ("2023-04-31", False),
        ("2023-12-31", True),
        ("2023-13-01", False),
        ("2023-01-00", False),
        ("0000-01-01", False),
    ],
)
def test_only_days_of_the_calendar_are_dates(model: Model, day: str, exists: bool) -> None:
    assert is_allowed(model, {"type": "string", "format": "date"}, f'"{day}"') is exists
    when = {"type": "string", "format": "date-time"}
    assert is_allowed(model, when, f'"{day}T23:59:59.5+01:00"') is exists
    assert is_allowed(model, when, f'"{day}T08:00:00Z"') is exists
    assert not is_allowed(model, when, f'"{day}T24:00:00Z"')


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"not": {"type": "null"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"type": "null"}}, "contains"),
        ({"if": {"type": "null"}}, "if"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"type": "object", "minProperties": 3}, "minProperties 3"),
        ({"type": "string", "format": "nonsense"}, "nonsense"),
        ({"enum": [1e20]}, "enum holds a number above"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "oneOf"),
        ({"oneOf": [LEAF, {"type": "object", "properties": {"n": {"type": "null"}}}]}, "oneOf"),
        ({"oneOf": [{"properties": {"k": {"const": i}}} for i in (1, 2)]}, "oneOf"),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "string"}], "$defs": {"a": {}}}, "oneOf"),
        ({"type": "nonsense"}, "nonsense"),
        ({"type": "string", "pattern": "(?=a)b"}, "cannot be followed"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "minimum"),
        (3, "must be an object"),
        (
            {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
            "leads back to itself",
        ),
        ({"enum": ["x" * (1 << 18)]}, "bytes; at most"),
        ({"const": float("nan")}, "not JSON"),
        ({"type": "string", "$defs": 10**400}, "a number that is too large"),
    ],
)
def test_what_cannot_be_enforced_is_refused(schema: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        schema_rules(schema)


def test_a_schema_that_is_nested_too_deep() -> None:
    schema: dict[str, Any] = {}
    for _ in range(30_000):
        schema = {"items": schema}
    with pytest.raises(ConfigError, match="nested more than 64 deep"):
        schema_rules(schema)


def test_options_of_the_library_cannot_be_set() -> None:
    rules = schema_rules({"x-guidance": {"lenient": True}, "type": "string"})
    assert "lenient" not in rules.text
