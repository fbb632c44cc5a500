"""GBNF of a JSON schema, as llama-cpp-python writes it."""

from __future__ import annotations

import json
from typing import Any

from llama_cpp.llama_grammar import json_schema_to_gbnf

from edge_tr.errors import ConfigError


def schema_grammar(schema: Any) -> str:
    """GBNF of a JSON schema.

    Raises
    ------
    ConfigError : it uses something that no grammar can express.
    """
    try:
        return str(json_schema_to_gbnf(json.dumps(schema)))
    except Exception as error:  # it raises whatever the schema made it stumble on
        why = str(error) or type(error).__name__
        raise ConfigError(f"the JSON schema cannot be followed: {why}") from None
