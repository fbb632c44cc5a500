"""edge_tr: a GGUF model answers faster on the machine it is on, with the same answer.

``Session`` is an open model that answers; ``Llama`` takes the place of ``llama_cpp.Llama``;
``TokenRecyclingDraft`` is a draft model for those who must keep the stock class. All load when
they are first used.

Where a prompt goes::

    cli, server, plugin          what the user gave, and where the answer is shown
      Session.answer             session   the open model; whose turn it is
        Model.chat_tokens        llama/model, chat/   messages -> tokens
        Answer                   answer    tokens -> pieces of text, why it ended
          Decoder.generate       decode/decoder   until a stop token or the limit
            Committed.read         decode/committed   prefill
            StepLoop.next          decode/step_loop   one decode step:
              Drafter.propose        drafts/grown_tree  (automatic), fixed_tree   draft
              Target.decode          llama/target   verify: one call for the whole tree
              Step.follow_best, draw decode/verify   accept
              LaneCache.commit       decode/lanes    keep or redo
              Drafter.learn          drafts/candidates   recycle
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_tr.config import ContextConfig, DraftConfig, SamplingConfig
    from edge_tr.llama.draft_for_stock import TokenRecyclingDraft
    from edge_tr.llama.drop_in import Llama
    from edge_tr.session import Session

__version__ = "0.1.0"
__all__ = [
    "ContextConfig",
    "DraftConfig",
    "Llama",
    "SamplingConfig",
    "Session",
    "TokenRecyclingDraft",
    "__version__",
]

_HOMES = {
    "ContextConfig": "edge_tr.config",
    "DraftConfig": "edge_tr.config",
    "Llama": "edge_tr.llama.drop_in",
    "SamplingConfig": "edge_tr.config",
    "Session": "edge_tr.session",
    "TokenRecyclingDraft": "edge_tr.llama.draft_for_stock",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
