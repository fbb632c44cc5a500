"""Drawing the next token, once for each emitted token."""

from __future__ import annotations

from typing import Protocol

from edge_tr.target import Float32


class Sampler(Protocol):
    """Draws tokens in the order they are emitted, as plain decoding would.

    Attributes
    ----------
    temperature : of the draws; 0 where the most probable token that is allowed is taken.
    """

    @property
    def temperature(self) -> float: ...

    def sample(self, batch_index: int, logits: Float32) -> int:
        """Draw the token after one place of the batch just decoded, and take note of it.

        Parameters
        ----------
        batch_index : place in the batch, for samplers that read llama.cpp's own buffer.
        logits : float32[n_vocab], the same row; not written.
        """
