"""Two decoders that use one target in turn."""

from __future__ import annotations

from fake_target import FakeTarget, HashModel

from edge_tr.decode.decoder import Decoder


def test_two_decoders_in_turn_do_not_mix() -> None:
    prompts = [[1, 2, 3, 4], [5, 6, 7], [1, 2, 3, 4, 5]]
    expected = [
        [t for step in Decoder(_target()).generate(p, max_tokens=12) for t in step] for p in prompts
    ]
    target = _target()
    first, second = Decoder(target), Decoder(target)
    found = [
        [t for step in decoder.generate(p, max_tokens=12) for t in step]
        for decoder, p in zip((first, second, first), prompts, strict=True)
    ]
    assert found == expected


def _target() -> FakeTarget:
    return FakeTarget(HashModel())
