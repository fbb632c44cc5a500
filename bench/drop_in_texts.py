"""Texts of ``edge_tr.Llama`` beside the stock class's: ``python -m bench.drop_in_texts --json``.

Every question is answered by the stock class, with a draft tree at every step, and in automatic
mode, in one configuration, of the same length, end of text ignored; greedy and with a seed; twice,
the second time with what the first has taught the matrix. Greedy texts are compared as everywhere
(``edge_tr.measuring.equality``). A draw with a seed has no gap of its own: where its text first
differs, what counts is how far apart both classes saw the two best logits of that place, behind
the same tokens. More than twice the control is a violation, as for greedy texts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from edge_tr import Llama, models
from edge_tr.bench.prompts import Prompt, question_prompts
from edge_tr.bench.questions import load_questions, sample
from edge_tr.config import CACHE_TYPES
from edge_tr.drafts.tree_text import read_tree
from edge_tr.llama.context_params import GGML_TYPES
from edge_tr.llama.model import chat_template
from edge_tr.machine import facts
from edge_tr.measuring.equality import Known, TextPair, compare_texts
from edge_tr.target import Float32, Int32

GREEDY, SEEDED = "greedy", "seeded"
_SEED = 7


@dataclass
class Text:
    """A text and the logits that each of its tokens was chosen from."""

    tokens: list[int]
    rows: list[Float32]


@dataclass
class Compared:
    """Texts of one arm and one way of choosing, against those of the stock class.

    Attributes
    ----------
    changes : at each first difference, how much the difference between the two logits that the
        stock class saw as best is another one.
    """

    pairs: list[TextPair] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    n_steps: int = 0
    n_drafted: int = 0

    def add(self, prompt: Prompt, plain: Text, own: Text, llm: Llama) -> None:
        """Count one question."""
        pair = TextPair(prompt.id, prompt.tokens, plain.tokens, own.tokens)
        self.pairs.append(pair)
        self.n_steps += llm.stats.n_steps
        self.n_drafted += llm.stats.n_drafted
        index = pair.first_difference
        if index is not None:
            best = np.argpartition(plain.rows[index], -2)[-2:]
            gaps = (float(np.subtract(*text.rows[index][best])) for text in (plain, own))
            self.changes.append(abs(next(gaps) - next(gaps)))

    @property
    def width(self) -> int:
        """Tokens of a step on average, rounded up; at least 2."""
        return max(2, 1 + ceil(self.n_drafted / max(1, self.n_steps)))


def answer(llm: llama_cpp.Llama, tokens: Int32, n_tokens: int, temperature: float) -> Text:
    """Answer a prompt, nothing reused."""
    rows: list[Float32] = []

    def look(_tokens: Any, row: Float32) -> Float32:
        rows.append(row.copy())
        return row

    llm.reset()
    llm.set_seed(_SEED)
    steps = llm.generate(
        tokens.tolist(), temp=temperature, logits_processor=llama_cpp.LogitsProcessorList([look])
    )
    with closing(steps):
        return Text(list(islice(steps, n_tokens)), rows)


def measure(
    stock: llama_cpp.Llama,
    arms: dict[str, Llama],
    prompts: Sequence[Prompt],
    *,
    n_tokens: int,
    temperature: float,
    n_positions: int,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Answer every prompt in every way, and compare."""
    ways = {GREEDY: 0.0, SEEDED: temperature}
    found = {(arm, way): Compared() for arm in arms for way in ways}
    plain_same = []
    texts: dict[tuple[str, str], list[int]] = {}
    for number in (1, 2):
        for i, prompt in enumerate(prompts):
            for way, temp in ways.items():
                plain = answer(stock, prompt.tokens, n_tokens, temp)
                before = texts.setdefault((prompt.id, way), plain.tokens)
                if number == 2:
                    plain_same.append(before == plain.tokens)
                for arm, llm in arms.items():
                    own = answer(llm, prompt.tokens, n_tokens, temp)
                    found[arm, way].add(prompt, plain, own, llm)
            progress(f"{'first' if number == 1 else 'second'} time, {i + 1} of {len(prompts)}")
    known: Known = {}
    result: dict[str, Any] = {}
    for arm, llm in arms.items():
        greedy, seeded = found[arm, GREEDY], found[arm, SEEDED]
        width = max(greedy.width, seeded.width)
        progress(f"{arm}: the control, in batches of 2 to {width}")
        llm.reset()
        assert llm._target is not None
        report = compare_texts(
            llm._target,
            greedy.pairs,
            widths=range(2, width + 1),
            n_positions=n_positions,
            more_texts=[prompt.tokens for prompt in prompts],
            known=known,
        )
        n_same = sum(pair.first_difference is None for pair in seeded.pairs)
        result[arm] = {
            GREEDY: report.to_dict(),
            SEEDED: {
                "n_texts": len(seeded.pairs),
                "identical_share": round(n_same / len(seeded.pairs), 4),
                "first_difference_changes": [round(change, 4) for change in seeded.changes],
                "violations": sum(change > 2 * report.control for change in seeded.changes),
            },
            "n_drafted": greedy.n_drafted + seeded.n_drafted,
            "notices": llm.notices,
        }
    share = round(sum(plain_same) / len(plain_same), 4)
    return {"arms": result, "plain_identical_share": share}


def table(result: dict[str, Any]) -> list[str]:
    """The numbers for a person."""
    lines = [f"stock class against itself: {result['plain_identical_share']:.0%} of texts equal"]
    for arm, ways in result["arms"].items():
        for way in (GREEDY, SEEDED):
            found = ways[way]
            lines.append(
                f"{arm}, {way}: {found['identical_share']:.0%} of {found['n_texts']} texts equal, "
                f"{found['violations']} violations (control {ways[GREEDY]['control']:.3f})"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; the exit code is 1 where there are violations."""
    parser = argparse.ArgumentParser(prog="python -m bench.drop_in_texts", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--model", default=models.DEFAULT)
    parser.add_argument("--tree", default="15", help="the forced tree, as `edge-tr run --tree`")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--positions", type=int, default=2000, help="of the control, at least")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--flash-attn", action="store_true")
    parser.add_argument("--cache-type", default="f16", choices=CACHE_TYPES)
    parser.add_argument("--questions", type=Path, help="directory of Spec-Bench and MBPP")
    options = parser.parse_args(arguments)
    context = {
        "n_ctx": 4096,
        "n_threads": options.threads,
        "flash_attn": options.flash_attn,
        "type_k": GGML_TYPES[options.cache_type],
        "type_v": GGML_TYPES[options.cache_type],
    }
    path = str(models.path(options.model))
    with ExitStack() as stack:
        stock = stack.enter_context(closing(llama_cpp.Llama(path, verbose=False, **context)))
        arms = {}
        for arm in ("forced", "auto"):
            tree: Any = read_tree(options.tree) if arm == "forced" else arm
            llm = Llama(path, speculative=tree, matrix_path=False, verbose=False, **context)
            arms[arm] = stack.enter_context(llm)

        def tokenize(text: str) -> Int32:
            template = chat_template(stock.model)
            if template is None:
                tokens = stock.tokenize(text.encode("utf-8"), special=False)
            else:
                text = template.render([{"role": "user", "content": text}])
                tokens = stock.tokenize(text.encode("utf-8"), add_bos=False, special=True)
            return np.array(tokens, dtype=np.int32)

        questions = sample(load_questions(options.questions), options.per_category)
        room = context["n_ctx"] - options.tokens - 1
        result = measure(
            stock,
            arms,
            question_prompts(questions, tokenize, room),
            n_tokens=options.tokens,
            temperature=options.temperature,
            n_positions=options.positions,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
    about = {"processor": facts.processor(), "cores": facts.n_cores()}
    settings = {name: str(value) for name, value in vars(options).items()}
    result |= {"settings": settings, "machine": about}
    print("\n".join(table(result)))
    if options.json:
        print(json.dumps(result))
    ways = [arm[way] for arm in result["arms"].values() for way in (GREEDY, SEEDED)]
    return int(any(way["violations"] for way in ways))


if __name__ == "__main__":
    sys.exit(main())
