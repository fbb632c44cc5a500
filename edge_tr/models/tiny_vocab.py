"""A small byte-level BPE vocabulary for the tiny models: any text can be encoded with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from edge_tr.errors import ConfigError

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
N_VOCAB_MIN = 256 + len(SPECIAL_TOKENS) + 1

_TEXT = """
the of and to in a is that it was for on are as with his they at be this from have or by one had
not but what all were when we there can an your which their said if do will each about how up out
them then she many some so these would other into has more her two like him see time could no make
than first been its who now people my made over did down only way find use may water long little
very after words called just where most know get through back much before go good new write our
user assistant system name value type number string object array function return print import
answer question text model token draft tree path leaf node matrix step accept verify language
{"name": "value", "type": "string", "items": [1, 2, 3], "done": true, "left": false, "none": null}
for i in range(10): print(i) if x == y: return None def main(self, args): pass # comment
0 1 2 3 4 5 6 7 8 9 10 20 50 100 1000 2024
"""


@dataclass(frozen=True)
class TinyVocab:
    """Tokens by id, with the merges that build them.

    Ids 0 to 255 are the single bytes, then the merged tokens, then tokens that only fill up a
    larger vocabulary (they decode to text, encoding never yields them), then `SPECIAL_TOKENS`.
    """

    tokens: tuple[str, ...]
    merges: tuple[str, ...]

    def id_of(self, token: str) -> int:
        """Id of a token given in GPT-2's spelling of bytes."""
        return self.tokens.index(token)


def byte_characters() -> list[str]:
    """GPT-2's printable character for each byte value, 256 strings."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def tiny_vocab(n_vocab: int) -> TinyVocab:
    """Train merges on a fixed text and fill the vocabulary up to `n_vocab` tokens.

    Raises
    ------
    ConfigError
        `n_vocab` is below `N_VOCAB_MIN`.
    """
    if n_vocab < N_VOCAB_MIN:
        raise ConfigError(f"n_vocab is {n_vocab}; at least {N_VOCAB_MIN} are needed")
    characters = byte_characters()
    room = n_vocab - 256 - len(SPECIAL_TOKENS)
    merges = _train(characters, room)
    tokens = [*characters, *(left + right for left, right in merges)]
    known = set(tokens)
    words = tokens[256:] or characters
    fillers = (a + b for a in words for b in words)
    while len(tokens) < n_vocab - len(SPECIAL_TOKENS):
        filler = next(fillers, None) or f"\u0120unused{len(tokens)}"
        if filler not in known:
            known.add(filler)
            tokens.append(filler)
    spelled = tuple(f"{left} {right}" for left, right in merges)
    return TinyVocab((*tokens, *SPECIAL_TOKENS), spelled)


def _train(characters: list[str], n_merges: int) -> list[tuple[str, str]]:
    """The most frequent pairs first, ties by spelling; fewer than asked when none are left."""
    words = Counter(" " + word for word in _TEXT.split())
    pieces = {w: [characters[b] for b in w.encode()] for w in words}
    merges: list[tuple[str, str]] = []
    while len(merges) < n_merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in pieces.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        pieces = {word: _merge(parts, best) for word, parts in pieces.items()}
    return merges


def _merge(parts: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for part in parts:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged
