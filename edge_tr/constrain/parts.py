"""The schemas inside a JSON schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and every schema in it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key in _SINGLE:
        yield from parts(schema.get(key))
    for key in _LISTS:
        for part in schema[key] if isinstance(schema.get(key), list) else ():
            yield from parts(part)
    for key in _MAPS:
        if isinstance(schema.get(key), dict):
            for part in schema[key].values():
                yield from parts(part)


def rewritten(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The schema with every schema in it changed, the inner ones first."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key in _SINGLE:
        if key in schema:
            made[key] = rewritten(schema[key], change)
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            made[key] = [rewritten(part, change) for part in schema[key]]
    for key in _MAPS:
        if isinstance(schema.get(key), dict):
            made[key] = {name: rewritten(part, change) for name, part in schema[key].items()}
    return change(made)


def target_of(reference: str, root: dict[str, Any]) -> Any:
    """What a reference points to; None where that is not in this schema."""
    here: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        here = here.get(step) if isinstance(here, dict) else None
    return here if reference.startswith("#") else None
