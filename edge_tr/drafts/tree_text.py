"""Trees as users write them: ``--tree`` of the commands, ``-o tree`` of the plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edge_tr.errors import ConfigError

if TYPE_CHECKING:
    from edge_tr.drafts.template import TreeTemplate

TREE_FORMS = (
    "auto, off, paper, the number of nodes to take of the paper's tree (1 to 80), breadths such "
    "as b:3,2,1, or a JSON file with a list of rank paths"
)


def read_tree(text: str) -> Literal["auto", "off"] | TreeTemplate:
    """The setting ``speculative`` of a ``DraftConfig``.

    Raises
    ------
    ConfigError : none of the forms allowed, or a file that cannot be read.
    """
    from edge_tr.drafts.template import TreeTemplate

    if text == "auto":
        return "auto"
    if text == "off":
        return "off"
    paper = TreeTemplate.paper()
    if text == "paper":
        return paper
    if text.isascii() and text.isdigit() and len(text) < 4:
        if not 1 <= int(text) <= paper.n_nodes:
            raise ConfigError(f"tree {text} is not allowed; use {TREE_FORMS}", field="tree")
        return paper.prefix(int(text))
    try:
        if text.startswith("b:"):
            return TreeTemplate.from_breadths([int(number) for number in text[2:].split(",")])
        return TreeTemplate(_read_paths(text))
    except (ValueError, OSError) as error:
        why = f"{error}; " if isinstance(error, ConfigError) else ""
        raise ConfigError(
            f"tree {text[:80]} is not allowed: {why}use {TREE_FORMS}", field="tree"
        ) from None


def _read_paths(name: str) -> list[list[int]]:
    if not Path(name).is_file():
        raise ConfigError("there is no such file")
    try:
        content = json.loads(Path(name).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"it cannot be read as JSON: {error}") from None
    paths = content.get("paths") if isinstance(content, dict) else content
    if not isinstance(paths, list) or not all(isinstance(path, list) for path in paths):
        raise ConfigError("it holds no list of rank paths, such as [[0], [1], [0, 0]]")
    return paths
