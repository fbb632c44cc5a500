"""Fill the adjacency matrix and the history from texts of the user's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic

import numpy as np

from edge_tr.decode.topk import TopK, default_threads
from edge_tr.drafting import Drafting
from edge_tr.errors import ConfigError
from edge_tr.files.whole_file import write_whole
from edge_tr.session import Session
from edge_tr.target import Float32, Int32

_PART = 1024
"""Tokens that are read at a time, each part without what stands before it."""

_SAVE_S = 30.0
"""Seconds after which what was learned is saved, so that a learner who is stopped goes on there."""


class Progress:
    """How much of each text was learned, in a file beside the matrix.

    Parameters
    ----------
    path : the file; one that cannot be read counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done: dict[str, int] = {}
        try:
            done = json.loads(path.read_text("utf-8"))
            self._done = {str(key): int(n) for key, n in done.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            pass

    def of(self, key: str) -> int:
        """Tokens of a text that were learned."""
        return self._done.get(key, 0)

    def save(self, key: str, n: int) -> None:
        """Keep it; see ``write_whole`` for the errors."""
        self._done[key] = n
        text = json.dumps(self._done, indent=0)
        write_whole(self._path, lambda stream: stream.write(text.encode()))


def learn_files(
    session: Session,
    files: Sequence[Path],
    *,
    fast: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> int:
    """Learn texts; number of tokens that were learned now.

    A text that was learned before from the same bytes in the same way is left out, one that was
    stopped is gone on with.

    Parameters
    ----------
    session : whose matrix and history learn; both are saved.
    files : texts in UTF-8.
    fast : look at the tokens only: they go into the history, and tokens without a row get one of
        what follows them in the text. Else the model reads the texts, and each row holds what it
        expects there.

    Raises
    ------
    ConfigError : a file cannot be read, or is no text; before anything is learned.
    MatrixFileError : what was learned cannot be saved.
    """
    texts = [(file, _text_of(file)) for file in files]
    done = Progress(session.matrix_path.with_suffix(".learned.json"))
    n_learned = 0
    for file, text in texts:
        key = hashlib.sha256(text.encode()).hexdigest() + (" fast" if fast else "")
        tokens = session.model.tokenize(text, add_special=False, parse_special=False)
        first = min(done.of(key), len(tokens))
        saved = monotonic()
        try:
            for n in _learn(session, tokens, first, fast):
                n_learned += n - first
                first = n
                progress(f"{file}: {n} of {len(tokens)} tokens")
                if monotonic() - saved > _SAVE_S:
                    _save(session, done, key, n)
                    saved = monotonic()
        finally:
            _save(session, done, key, first)
    return n_learned


def _save(session: Drafting, done: Progress, key: str, n: int) -> None:
    session.save_matrix()
    done.save(key, n)


def _text_of(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"{file} cannot be learned from: {reason}") from None


def _learn(session: Session, tokens: Int32, first: int, fast: bool) -> Iterator[int]:
    """Learn a text from a token on, part by part; how many tokens are learned after each."""
    part = min(_PART, session.target.n_ctx - 2)
    topk = TopK(session.draft.k, default_threads())
    while first < len(tokens):
        new = tokens[first : first + part]
        if fast:
            _count(session, new)
        else:
            _read(session, new, topk)
        session.history.add(new)
        first += len(new)
        yield first


def _read(session: Session, tokens: Int32, topk: TopK) -> None:
    """Have the model read tokens, and its rows take the place of older ones."""

    def rows(start: int, logits: Float32) -> None:
        ids, values = topk(logits)
        read = tokens[start : start + len(ids)]
        before = np.concatenate((tokens[start - 1 : start] if start else [-1], read[:-1]))
        session.candidates.recycle(read, before.astype(np.int32), ids, values)

    session.decoder.read(tokens, rows=rows)


def _count(session: Session, tokens: Int32) -> None:
    """Give tokens without a row one of what follows them here, the most frequent first."""
    k = session.draft.k
    pairs, counts = np.unique(np.stack((tokens[:-1], tokens[1:])), axis=1, return_counts=True)
    falling = np.lexsort((pairs[1], -counts, pairs[0]))
    of, next_, count = pairs[0][falling], pairs[1][falling], counts[falling]
    starts = np.flatnonzero(np.diff(of, prepend=-1))
    rank = np.arange(len(of)) - np.repeat(starts, np.diff([*starts, len(of)]))
    is_new = (session.matrix.rows[of, 0] < 0) & (rank < k)
    tokens_of, places = np.unique(of[is_new], return_inverse=True)
    ids = np.full((len(tokens_of), k), -1, dtype=np.int32)
    values = np.full((len(tokens_of), k), -np.inf, dtype=np.float32)
    ids[places, rank[is_new]] = next_[is_new]
    values[places, rank[is_new]] = np.log(count[is_new])
    none = np.full(len(tokens_of), -1, dtype=np.int32)
    if len(tokens_of):
        session.candidates.recycle(tokens_of.astype(np.int32), none, ids, values)
