"""JSON schemas: checked, and written as llguidance reads them."""

from __future__ import annotations

import json
from typing import Any

from edge_tr.constrain.constraint import Rules
from edge_tr.constrain.dates import with_real_dates
from edge_tr.constrain.one_of import tell_apart
from edge_tr.constrain.parts import parts, rewritten, target_of
from edge_tr.errors import ConfigError

MAX_BYTES = 1 << 18
MAX_NESTING = 64

_WHITESPACE = r"[ ]|\n[ ]{0,40}"
"""Between the parts of a JSON text; without a bound a model may go on for ever."""

_OPENS = frozenset({"additionalProperties", "patternProperties", "minProperties"})
"""Keywords that say something of properties without a name."""


def schema_rules(schema: Any, name: str = "JSON schema") -> Rules:
    """What a text must follow to be JSON that a schema allows.

    Parameters
    ----------
    schema : of draft 2020-12, as Python's ``json`` reads it.
    name : for messages.

    Raises
    ------
    ConfigError : it is too large or nested too deep, or uses something that cannot be enforced;
        the text names it.
    """
    from llguidance import LLMatcher

    if not isinstance(schema, (dict, bool)):
        raise ConfigError(f"the {name} must be an object, not {schema!r:.40}")
    _check_nesting(schema, name)
    try:
        text = json.dumps(schema, allow_nan=False).encode()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the {name} is not JSON: {error}") from None
    if len(text) > MAX_BYTES:
        raise ConfigError(f"the {name} has {len(text)} bytes; at most {MAX_BYTES} are allowed")
    if isinstance(schema, dict):
        schema = {key: value for key, value in schema.items() if key != "x-guidance"}
        for part in parts(schema):
            _check_part(part, name)
            _check_circle(part, schema, name)
        schema = rewritten(tell_apart(schema), with_real_dates)
        if not any(part.keys() & {"allOf", "oneOf"} or _is_joined(part) for part in parts(schema)):
            schema = rewritten(schema, _closed)
    try:
        grammar = LLMatcher.grammar_from_json_schema(
            schema if isinstance(schema, dict) else {"allOf": [schema]},
            overrides={"whitespace_pattern": _WHITESPACE},
        )
    except (ValueError, OverflowError):
        raise ConfigError(f"the {name} holds a number that is too large to be read") from None
    is_error, told = LLMatcher.validate_grammar_with_warnings(grammar)
    if is_error:
        why = told[0].strip().splitlines()[0]
        if why.startswith("oneOf constraints"):
            why = (
                "two branches of a oneOf may allow the same; use anyOf, or a property that differs"
            )
        raise ConfigError(f"the {name} cannot be followed: {why:.300}")
    return Rules(grammar, name)


def _is_joined(part: dict[str, Any]) -> bool:
    """Whether properties come from several places."""
    return "properties" in part and any(key in part for key in ("$ref", "anyOf", "oneOf"))


def _closed(part: dict[str, Any]) -> dict[str, Any]:
    """The schema without properties that it does not name, where it says nothing of them; small
    models invent some for ever."""
    names, required = part.get("properties"), part.get("required", [])
    if (
        isinstance(names, dict)
        and names
        and not part.keys() & _OPENS
        and isinstance(required, list)
        and all(name in names for name in required)
    ):
        return part | {"additionalProperties": False}
    return part


def _check_nesting(schema: Any, name: str) -> None:
    level, here = 0, [schema]
    while here:
        level += 1
        if level > MAX_NESTING:
            raise ConfigError(f"the {name} is nested more than {MAX_NESTING} deep")
        inside: list[Any] = []
        for value in here:
            if isinstance(value, dict):
                inside += [v for v in value.values() if isinstance(v, (dict, list))]
            elif isinstance(value, list):
                inside += [v for v in value if isinstance(v, (dict, list))]
        here = inside


def _check_part(part: dict[str, Any], name: str) -> None:
    """Refuse what llguidance would take and not enforce."""
    least = part.get("minProperties", 0)
    required = part.get("required")
    n_required = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > max(1, n_required):
        raise ConfigError(
            f"the {name} cannot be followed: minProperties {least} is above the {n_required} "
            "required properties, and others may come twice"
        )
    for key in _WITH_NUMBERS:
        if _has_large(part.get(key)):
            raise ConfigError(f"the {name} cannot be followed: {key} holds a number above 2**53")


def _check_circle(part: dict[str, Any], root: dict[str, Any], name: str) -> None:
    """Refuse references that lead back to themselves with nothing in between: no text follows
    them, which llguidance notices only when the text has come there."""
    seen: list[int] = []
    waiting: list[Any] = [part]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict) or id(one) in seen:
            continue
        seen.append(id(one))
        reference = one.get("$ref")
        inside = [target_of(reference, root)] if isinstance(reference, str) else []
        for key in ("anyOf", "oneOf", "allOf"):
            inside += one[key] if isinstance(one.get(key), list) else []
        if any(target is part for target in inside):
            raise ConfigError(f"the {name} cannot be followed: a $ref leads back to itself")
        waiting += inside


_WITH_NUMBERS = ("const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                 "multipleOf")  # fmt: skip


def _has_large(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return not abs(value) <= 1 << 53
    if isinstance(value, dict):
        return any(map(_has_large, value.values()))
    return isinstance(value, list) and any(map(_has_large, value))
