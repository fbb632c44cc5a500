"""Record which drafted nodes were accepted, for the simulator of ``edge-tr tune --cost``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from edge_tr.bench.questions import Question
from edge_tr.costs.expected import RecordedRun, Recording
from edge_tr.decode.decoder import Decoder
from edge_tr.drafts.adjacency import AdjacencyMatrix
from edge_tr.drafts.candidates import Candidates
from edge_tr.drafts.draft import Draft
from edge_tr.drafts.grown_tree import GrownTreeDrafter
from edge_tr.session import Session
from edge_tr.target import Float32, Int32, TargetModel

SIZES = (1, 3, 7, 15, 31, 80)
"""Nodes of the recorded trees; a tree learns from its own nodes, so each size has its run."""


class RecordingRecycler(GrownTreeDrafter):
    """Writes down, of each step, which nodes were accepted and how many were expected to be.

    Attributes
    ----------
    hits, expected : of each step, as ``RecordedRun`` keeps them.
    """

    hits: list[tuple[int, ...]]
    expected: list[Float32]

    def begin(self, tokens: Int32, temperature: float = 0.0) -> None:
        self.hits, self.expected = [], []
        super().begin(tokens, temperature)

    def learn(
        self, draft: Draft, ids: Int32, values: Float32, accepted: Int32, emitted: list[int]
    ) -> None:
        chances = self.chances[1 : draft.n]
        falling = np.argsort(-chances, kind="stable")
        place = np.zeros(draft.n, dtype=np.int32)
        place[1 + falling] = np.arange(1, draft.n)
        gained = np.zeros(self.max_nodes + 1, dtype=np.float32)
        gained[1 : draft.n] = chances[falling]
        self.hits.append(tuple(place[accepted].tolist()))
        self.expected.append(gained.cumsum())
        super().learn(draft, ids, values, accepted, emitted)


def record(
    target: TargetModel,
    prompts: Iterable[Int32],
    *,
    max_nodes: int,
    n_tokens: int,
    n_skipped: int,
    stop_tokens: frozenset[int],
) -> RecordedRun:
    """Answer each prompt from an empty matrix with trees of one size.

    An answer that runs in circles, as those of small models do, is left out: it would promise
    speed that useful texts do not have.

    Parameters
    ----------
    n_tokens : tokens of an answer, or a few more; fewer where the text ends.
    n_skipped : the steps that made the first so many tokens are left out.
    """
    hits: list[tuple[int, ...]] = []
    expected: list[Float32] = []
    for prompt in prompts:
        recycler = RecordingRecycler(
            Candidates(AdjacencyMatrix(target.n_vocab)),
            n_ctx=target.n_ctx,
            max_nodes=max_nodes,
            max_lanes=target.n_lanes,
        )
        decoder = Decoder(target, recycler)
        made, n_first = 0, 0
        # Without max_tokens, which would make the last trees less deep.
        for emitted in decoder.generate(prompt, stop_tokens=stop_tokens):
            made += len(emitted)
            n_first += made <= max(1, n_skipped)  # the prompt itself makes the first token
            if made >= n_tokens:
                break
        answer = decoder.tokens[len(prompt) :][:n_tokens]  # the same at every size
        if not runs_in_circles(answer):
            hits += recycler.hits[n_first:]
            expected += recycler.expected[n_first:]
    curves = np.array(expected, dtype=np.float64).reshape(len(hits), max_nodes + 1)
    return RecordedRun(max_nodes, tuple(hits), curves)


def record_questions(
    session: Session,
    questions: Sequence[Question],
    *,
    n_tokens: int,
    n_skipped: int = 16,
    progress: Callable[[str], None] = lambda line: None,
) -> Recording:
    """Record the answers to some questions with trees of every size of ``SIZES``."""
    room = session.target.n_ctx - n_tokens - 1 - max(SIZES)
    prompts = [session.prompt_tokens(question.turns[0])[-room:] for question in questions]
    runs = []
    for size in SIZES:
        run = record(
            session.target,
            prompts,
            max_nodes=size,
            n_tokens=n_tokens,
            n_skipped=n_skipped,
            stop_tokens=session.stop_tokens,
        )
        progress(f"{size} nodes: {len(run.hits)} steps, {run.mat:.2f} mean accepted tokens")
        runs.append(run)
    about = (
        f"{session.model.path.stem} on {len(questions)} questions, empty matrix, tokens "
        f"{n_skipped + 1} to {n_tokens} of each answer that does not run in circles"
    )
    return Recording(about, tuple(runs))


def runs_in_circles(answer: Int32, n: int = 8) -> bool:
    """Whether over a quarter of the answer's n-token pieces stand in it more than once."""
    pieces = Counter(tuple(answer[i : i + n].tolist()) for i in range(len(answer) - n + 1))
    n_repeated = sum(count for count in pieces.values() if count > 1)
    return n_repeated > 0.25 * sum(pieces.values())
