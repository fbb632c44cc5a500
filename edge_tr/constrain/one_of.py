"""``oneOf`` whose branches have nothing in common, which is what applications write."""

from __future__ import annotations

import json
from typing import Any

from edge_tr.constrain.parts import rewritten, target_of


def tell_apart(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with ``anyOf`` in place of each ``oneOf`` whose branches differ in their types, or
    in the values of one property; that property must then be in the text.

    Models of pydantic give that property a default and do not ask for it; without it a text might
    follow two branches. What follows the result follows the schema.
    """
    return _TellingApart(schema).schema()


class _TellingApart:
    """Definitions that a reference of a branch leads to are kept apart, since others may lead to
    them too."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._names: dict[tuple[str, str], str] = {}
        self._made: dict[str, Any] = {}

    def schema(self) -> dict[str, Any]:
        changed: dict[str, Any] = rewritten(self._root, self._change)
        if self._made:
            changed["$defs"] = {**changed.get("$defs", {}), **self._made}
        return changed

    def _change(self, part: dict[str, Any]) -> dict[str, Any]:
        if {"discriminator", "anyOf"} <= part.keys() or {"discriminator", "oneOf"} <= part.keys():
            part = {key: value for key, value in part.items() if key != "discriminator"}
        given = part.get("oneOf")
        if not isinstance(given, list) or not given or "anyOf" in part:
            return part
        branches = [self._resolved(branch) for branch in given]
        if not all(isinstance(branch, dict) for branch in branches):
            return part
        rest = {key: value for key, value in part.items() if key != "oneOf"}
        if _are_apart([_kinds(branch) for branch in branches]):
            return rest | {"anyOf": given}
        properties = [branch.get("properties") for branch in branches]
        are_objects = all(branch.get("type") == "object" for branch in branches)
        if are_objects and all(isinstance(of_branch, dict) for of_branch in properties):
            for name in properties[0]:
                if _are_apart([_values(of_branch.get(name)) for of_branch in properties]):
                    return rest | {"anyOf": [self._with(branch, name) for branch in given]}
        return part

    def _resolved(self, branch: Any) -> Any:
        """What a branch that is a mere reference leads to."""
        reference = _reference(branch)
        return branch if reference is None else target_of(reference, self._root)

    def _with(self, branch: dict[str, Any], name: str) -> dict[str, Any]:
        """A branch that asks for a property."""
        reference = _reference(branch)
        if reference is None:
            return _asking_for(branch, name)
        target = target_of(reference, self._root)
        if _asking_for(target, name) is target:
            return branch
        made = self._names.get((reference, name))
        if made is None:
            made = self._names[reference, name] = f"__branch{len(self._names)}"
            self._made[made] = _asking_for(rewritten(target, self._change), name)
        return {"$ref": f"#/$defs/{made}"}


def _reference(branch: Any) -> str | None:
    """Where a branch that is a mere reference leads."""
    if isinstance(branch, dict) and branch.keys() == {"$ref"} and isinstance(branch["$ref"], str):
        return branch["$ref"]
    return None


def _asking_for(branch: dict[str, Any], name: str) -> dict[str, Any]:
    required = branch.get("required", [])
    if not isinstance(required, list) or name in required:
        return branch
    return branch | {"required": [*required, name]}


def _are_apart(values: list[set[str]]) -> bool:
    """Whether all are known, and none is in two of them."""
    return all(values) and len(set().union(*values)) == sum(map(len, values))


def _values(schema: Any) -> set[str]:
    """The values that are allowed, as JSON; empty where they are not named."""
    return {
        json.dumps(int(v) if isinstance(v, float) and v.is_integer() else v, sort_keys=True)
        for v in _named(schema)
    }


def _named(schema: Any) -> list[Any]:
    if not isinstance(schema, dict):
        return []
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else []


_KINDS = {str: "string", bool: "boolean", int: "number", float: "number", list: "array",
          dict: "object", type(None): "null"}  # fmt: skip


def _kinds(schema: dict[str, Any]) -> set[str]:
    """The types that are allowed; empty where none is named."""
    kinds = schema.get("type")
    if kinds is None:
        return {_KINDS[type(value)] for value in _named(schema)}
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        return set()
    return {"number" if kind == "integer" else kind for kind in kinds}
