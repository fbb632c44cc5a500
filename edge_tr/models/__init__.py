"""Bring and make models: the two of PyPI, requantised ones, tiny ones, and shapes."""

from __future__ import annotations

from edge_tr.models.catalog import DEFAULT, Entry
from edge_tr.models.catalog import entries as available
from edge_tr.models.shapes import SHAPES, write_shape
from edge_tr.models.store import get, location, make, path
from edge_tr.models.tiny import TINY_ARCHITECTURES, write_tiny

__all__ = [
    "DEFAULT",
    "SHAPES",
    "TINY_ARCHITECTURES",
    "Entry",
    "available",
    "get",
    "location",
    "make",
    "path",
    "write_shape",
    "write_tiny",
]
