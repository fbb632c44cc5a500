"""edge_tr: a GGUF model answers faster on the machine it is on, with the same answer.

``edge_tr.Llama`` takes the place of ``llama_cpp.Llama``; ``edge_tr.TokenRecyclingDraft`` is a
draft model for those who must keep the stock class. Both load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_tr.llama.draft_for_stock import TokenRecyclingDraft
    from edge_tr.llama.drop_in import Llama

__version__ = "0.1.0"

__all__ = ["Llama", "TokenRecyclingDraft", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Llama":
        from edge_tr.llama.drop_in import Llama

        return Llama
    if name == "TokenRecyclingDraft":
        from edge_tr.llama.draft_for_stock import TokenRecyclingDraft

        return TokenRecyclingDraft
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
