"""Seeded random inputs: JSON schemas, grammars, conversations, bodies of requests."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

TEXTS = (
    "C:\\x",
    "a\nb",
    'a"b',
    "🎉",
    "é",
    "",
    "\u2028",
    "<|im_end|>",
    "tab\t",
    "\ud800",
    "x" * 300,
)
_VALUES = (*TEXTS[:8], 1, 2.5, -3, True, False, None, [1, "x"], {"a": [1]}, 0, -0.5)
_NAMES = ("a", "b", "c", "", "na me", 'q"q', "é", "x\\y", "$ref2", "\n")
_PATTERNS = ("^\\d+$", "^[a-z]{2,5}$", "ab", "^x", "[A-Z]{2}$", '^(foo|bar)"?$', "\\\\", "^é+$",
             "^[^\\s]+$", "^(?:a|b)*c$")  # fmt: skip
_UNSUPPORTED = ("not", "if", "dependentRequired", "propertyNames", "unevaluatedProperties",
                "contains", "uniqueItems", "$dynamicRef")  # fmt: skip


def schema(rng: random.Random) -> Any:
    """A JSON schema of draft 2020-12, now and then with a keyword that cannot be followed."""
    names = ["n", "m"][: rng.choice([0, 0, 1, 2])]
    root = _schema(rng, 3, names)
    if names and isinstance(root, dict):
        root = root | {"$defs": {name: _schema(rng, 2, names) for name in names}}
    if isinstance(root, dict) and rng.random() < 0.05:
        root = root | {rng.choice(_UNSUPPORTED): rng.choice([{"type": "null"}, True])}
    return root


def _schema(rng: random.Random, depth: int, names: list[str]) -> Any:  # noqa: PLR0911
    kinds = ["string", "number", "simple", "enum", "const", "any"]
    kinds += ["object"] * 3 + ["array"] * 2 + ["anyOf", "oneOf", "allOf"] if depth else []
    kind = rng.choice(kinds + ["$ref"] * bool(names))
    if kind == "$ref":
        return {"$ref": f"#/$defs/{rng.choice(names)}"}
    if kind == "string":
        return _string(rng)
    if kind == "number":
        return _number(rng)
    if kind == "object":
        return _object(rng, depth, names)
    if kind == "array":
        return _array(rng, depth, names)
    if kind == "oneOf" and rng.random() < 0.7:
        return {"oneOf": [_branch(rng, depth, names, i) for i in range(rng.randint(1, 3))]}
    if kind in ("anyOf", "oneOf", "allOf"):
        return {kind: [_schema(rng, depth - 1, names) for _ in range(rng.randint(1, 3))]}
    if kind == "enum":
        return {"enum": [rng.choice(_VALUES) for _ in range(rng.randint(1, 4))]}
    if kind == "const":
        return {"const": rng.choice(_VALUES)}
    if kind == "any":
        return rng.choice([{}, True, {"description": "x"}])
    types = ["string", "integer", "boolean", "null", "array", "object"]
    return {"type": rng.choice([rng.choice(types), rng.sample(types, 2)])}


def _branch(rng: random.Random, depth: int, names: list[str], number: int) -> dict[str, Any]:
    """An object that a property tells from other branches, as a rule."""
    made = _object(rng, depth, names)
    value = number if rng.random() < 0.9 else rng.choice(_VALUES)
    made["properties"] = made.get("properties", {}) | {"kind": {"const": value}}
    return made


def _string(rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    low = rng.randint(0, 4)
    choice = rng.random()
    if choice < 0.4:
        made |= {"minLength": low, "maxLength": low + rng.choice([0, 8, 20_000])}
    elif choice < 0.6:
        made["pattern"] = rng.choice(_PATTERNS)
    elif choice < 0.7:
        made["format"] = rng.choice(["date", "uuid", "ipv4", "nonsense"])
    return made


def _number(rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {"type": rng.choice(["integer", "number"])}
    low = rng.randint(-20, 20)
    if rng.random() < 0.4:
        made["minimum"] = low
    if rng.random() < 0.4:
        made["maximum"] = low + rng.randint(0, 50)
    if rng.random() < 0.15:
        made["exclusiveMinimum"] = low - 1
    if rng.random() < 0.15:
        made["multipleOf"] = rng.choice([1, 2, 3, 7, 10])
    return made


def _object(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object"}
    chosen = rng.sample(_NAMES, rng.randint(0, 4))
    if chosen:
        made["properties"] = {name: _schema(rng, depth - 1, names) for name in chosen}
        made["required"] = rng.sample(chosen, rng.randint(0, len(chosen)))
    if rng.random() < 0.6:
        made["additionalProperties"] = rng.choice([False, False, {"type": "integer"}])
    if rng.random() < 0.1:
        made["patternProperties"] = {"^p_": _schema(rng, depth - 1, names)}
    if rng.random() < 0.1:
        made[rng.choice(["minProperties", "maxProperties"])] = rng.randint(0, 3)
    return made


def _array(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "array", "items": _schema(rng, depth - 1, names)}
    low = rng.randint(0, 2)
    if rng.random() < 0.6:
        made |= {"minItems": low, "maxItems": low + rng.choice([0, 2, 20_000])}
    if rng.random() < 0.15:
        made["prefixItems"] = [_schema(rng, depth - 1, names)]
    return made


def grammar(rng: random.Random) -> str:
    """GBNF, now and then broken."""
    names = ["root", "a", "b"][: rng.randint(1, 3)]
    text = "\n".join(f"{name} ::= {_alternatives(rng, 3, names)}" for name in names)
    if rng.random() < 0.3:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(["(", ")", '"', "[", "{", "*", "x", "\0", "\\", "{99999999}",
                                       "(" * 20_000]) + text[at:]  # fmt: skip
    return text


def _alternatives(rng: random.Random, depth: int, names: list[str]) -> str:
    def item() -> str:
        choice = rng.random()
        if choice < 0.3:
            return json.dumps(rng.choice(["a", "bc", "é", "{", ""]), ensure_ascii=False)
        if choice < 0.6:
            return rng.choice(["[a-z]", "[^a]", ".", "[0-9]", "[é-ü]", "[]"])
        if choice < 0.75 or not depth:
            return rng.choice(names)
        return f"({_alternatives(rng, depth - 1, names)})"

    signs = ("", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2000}")
    return " | ".join(
        " ".join(item() + rng.choice(signs) for _ in range(rng.randint(1, 3)))
        for _ in range(rng.randint(1, 3))
    )


def messages(rng: random.Random) -> list[dict[str, Any]]:
    """A conversation, not always in an order that makes sense."""
    made: list[dict[str, Any]] = []
    for i in range(rng.randint(1, 6)):
        role = rng.choice(["system", "user", "user", "assistant", "tool", "developer"])
        message: dict[str, Any] = {"role": role, "content": rng.choice(TEXTS)}
        if role == "assistant" and rng.random() < 0.5:
            arguments = json.dumps({rng.choice(_NAMES): rng.choice(_VALUES)})
            call = {"name": rng.choice(["f", "g", 'q"']), "arguments": arguments}
            message["tool_calls"] = [{"id": f"call{i}", "type": "function", "function": call}]
        if role == "tool":
            message["tool_call_id"] = f"call{i - 1}"
        if rng.random() < 0.1:
            message["reasoning_content"] = rng.choice(TEXTS)
        made.append(message)
    return made


def tools(rng: random.Random) -> list[dict[str, Any]]:
    """Up to two tools."""
    made = []
    for name in rng.sample(["f", "g"], rng.randint(0, 2)):
        parameters = _object(rng, 2, [])
        function = {"name": name, "description": rng.choice(TEXTS), "parameters": parameters}
        made.append({"type": "function", "function": function})
    return made


_ODD: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    "",
    -1,
    1e300,
    10**400,
    "\ud800",
    [[]],
    {"a": {}},
    "9" * 4301,
    1 << 63,
)


def chat_body(rng: random.Random) -> dict[str, Any]:
    """A request for /v1/chat/completions, often with a field that is not as it should be."""
    body: dict[str, Any] = {
        "messages": messages(rng),
        "max_tokens": rng.choice([0, 1, 8]),
        "temperature": rng.choice([0, 1]),
        "seed": rng.choice([0, 7, (1 << 63) + 5]),
        "stream": rng.random() < 0.3,
    }
    if rng.random() < 0.4:
        body["tools"] = tools(rng)
        body["tool_choice"] = rng.choice(["auto", "none", "required"])
    if rng.random() < 0.2:
        body["grammar"] = grammar(rng)
    if rng.random() < 0.2:
        body["response_format"] = {"type": "json_object", "schema": schema(rng)}
    if rng.random() < 0.2:
        body["logit_bias"] = {rng.choice(["1", "-1", "9" * 4301, "99999999"]): 5}
    return mutated(rng, body) if rng.random() < 0.6 else body


def mutated(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """The same with some values anywhere in it replaced."""
    body = copy.deepcopy(body)
    for _ in range(rng.randint(1, 3)):
        place: Any = body
        while True:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            if not keys:
                break
            key: Any = rng.choice(list(keys))
            if isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.7:
                place = place[key]
                continue
            place[key] = copy.deepcopy(rng.choice(_ODD))
            break
    return body
