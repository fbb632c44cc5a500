"""A record of finished measurements that a stopped run goes on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edge_tr.errors import ConfigError

Record = dict[str, Any]

FORMAT = 2
"""Of the file; its first line says so."""


class Records:
    """Measurements of one run, a JSON object a line, appended as they are finished.

    Parameters
    ----------
    path : file; None keeps them in memory only.
    settings : what decides the measurements; stands in the first line.

    Attributes
    ----------
    all : the records so far, each with its "model", "phase" and "id".

    Raises
    ------
    ConfigError : the file holds the measurements of other settings, is of another format, or
        cannot be read.
    """

    def __init__(self, path: Path | None, settings: Record) -> None:
        self.path = path
        self.all: list[Record] = []
        self._index: dict[tuple[str, str, str], Record] = {}
        if path is None:
            return
        if path.exists():
            self._load(path, settings)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                json.dumps({"format": FORMAT, "settings": settings}) + "\n", encoding="utf-8"
            )

    def _load(self, path: Path, settings: Record) -> None:
        text = path.read_text(encoding="utf-8")
        lines = text.split("\n")
        if lines.pop():  # a line that was cut short when the run was stopped
            path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        try:
            found, *records = (json.loads(line) for line in lines)
            form, found = found.get("format", 1), found["settings"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is not a record of measurements: {error!r}") from error
        if form != FORMAT:
            raise ConfigError(
                f"{path} is of format {form}, this edge_tr goes on from format {FORMAT}; use "
                "another directory"
            )
        # Through JSON, where a tuple is a list.
        wanted = json.loads(json.dumps(settings))
        if found != wanted:
            changed = sorted(k for k in found | wanted if found.get(k) != wanted.get(k))
            raise ConfigError(
                f"{path} was measured with other settings ({', '.join(changed)}); "
                "use the same ones or another directory"
            )
        for record in records:
            self._keep(record)

    def _keep(self, record: Record) -> None:
        self.all.append(record)
        self._index[record["model"], record["phase"], record["id"]] = record

    def find(self, model: str, phase: str, id: str) -> Record | None:
        """The record of a finished measurement."""
        return self._index.get((model, phase, id))

    def of(self, model: str, phase: str) -> list[Record]:
        """All records of one phase, in the order they were measured."""
        return [r for r in self.all if r["model"] == model and r["phase"] == phase]

    def append(self, model: str, phase: str, id: str, **values: Any) -> Record:
        """Keep a measurement that was just finished."""
        record = {"model": model, "phase": phase, "id": id, **values}
        self._keep(record)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        return record
