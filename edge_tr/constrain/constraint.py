"""Which tokens may come next, so that a text follows a schema or a grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edge_tr.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_STEP_ITEMS = 50_000
"""Items of the parser in one step; an ambiguous grammar takes up to two seconds for them."""


class Rules(NamedTuple):
    """What a text must follow.

    Attributes
    ----------
    text : as llguidance reads it.
    name : what the user calls it, for messages.
    """

    text: str
    name: str


class Constraint:
    """The state of one text that follows rules.

    It is asked for each token that is emitted, and for no other node of a draft tree.

    Parameters
    ----------
    vocabulary : an ``LLTokenizer``; see ``edge_tr.llama.vocabulary``.
    rules : what to follow.

    Raises
    ------
    ConfigError : the rules cannot be followed; the text says why.
    """

    def __init__(self, vocabulary: Any, rules: Rules) -> None:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(step_max_items=_MAX_STEP_ITEMS, verbose_errors=False)
        self._matcher = LLMatcher(vocabulary, rules.text, log_level=0, limits=limits)
        self._name = rules.name
        self._n_vocab = int(vocabulary.vocab_size)
        self._bits = np.zeros((self._n_vocab + 31) // 32, dtype=np.int32)
        self._ends = list(vocabulary.eos_tokens)
        self._ended = False
        if self._matcher.is_error():
            raise ConfigError(f"the {self._name} cannot be followed: {self._why()}")
        self.allowed()

    def allowed(self) -> NDArray[np.bool_]:
        """bool[n_vocab]; the tokens that may come next, at least one.

        Raises
        ------
        ConfigError : the rules are too ambiguous here, or no token fits.
        """
        if self._ended:
            allowed = np.zeros(self._n_vocab, dtype=np.bool_)
            allowed[self._ends] = True
            return allowed
        bits = self._bits
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._matcher.is_error():
            raise ConfigError(f"the {self._name} cannot be followed any further: {self._why()}")
        allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: self._n_vocab].view(bool)
        if not allowed.any():
            raise ConfigError(f"the {self._name} allows no token of this model here")
        return allowed

    def accept(self, token: int) -> None:
        """Take note of the token that was emitted.

        Raises
        ------
        ConfigError : the rules are too ambiguous here.
        """
        if token in self._ends:
            self._ended = True
        elif not self._ended and not self._matcher.consume_token(token):
            raise ConfigError(f"the {self._name} cannot be followed any further: {self._why()}")

    def _why(self) -> str:
        """The reason that llguidance gives, in one line."""
        text = str(self._matcher.get_error()).strip()
        return text.partition("\n")[0][:300] or "it gave no reason"
