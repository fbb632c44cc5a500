"""The measurements of ``bench.never_slower`` on one model, in the order they are made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from edge_tr.bench.loops import DecoderLoop, Loop, timed
from edge_tr.bench.outcome import Outcome
from edge_tr.bench.pairs import Record, Records
from edge_tr.bench.prompts import Prompt, copied_share, interleave
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.decode.topk import default_threads
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.equality import TextPair, compare_texts
from edge_tr.measuring.kept_costs import costs_of
from edge_tr.session import Session
from edge_tr.target import Int32

from . import builds
from .cells import LEAST_COPIED, LEAST_COPIES
from .oracle import (
    K,
    Setting,
    best_settings,
    fixed_settings,
    load_candidates,
    rank_rates,
    save_candidates,
)
from .stock_plain import RemoteArm, StockBuild, own_arm, plain_ways

_PLAIN_QUESTIONS = 6
_PLAIN_TOKENS = 64


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes
    ----------
    n_tokens : generated tokens of each answer.
    every_arm : run every arm on every question; else plain-against-plain and the fixed
        settings take turns, which saves a quarter of the time.
    n_copies, least_copied : texts to copy that are enough, and which share of a plain answer
        must be copied for its text to count.
    n_positions : positions of the control of text equality.
    """

    n_tokens: int = 128
    every_arm: bool = True
    n_copies: int = LEAST_COPIES + 4
    least_copied: float = LEAST_COPIED
    n_positions: int = 2000


class ModelRun:
    """One model, open for the measurements.

    Parameters
    ----------
    name, path : the model.
    context : configuration of every arm.
    records : finished measurements; those that are there are not made again.
    state : directory for what the drafters have learned, so that a stopped run goes on with it.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        context: ContextConfig,
        plan: Plan,
        records: Records,
        state: Path,
    ) -> None:
        self.name = name
        self.context = context
        self.plan = plan
        self.records = records
        self._state = state
        self._started = perf_counter()
        self._matrix = state / f"{name}-auto.npz"
        self._exit = ExitStack()
        if not records.of(name, "measured"):
            self._measure_costs(path)
        draft = DraftConfig(k=K, start="inherited", matrix_path=self._matrix)
        self.session = self._exit.enter_context(Session(path, context=context, draft=draft))
        self.fingerprint = self.session.model.fingerprint()
        self.stock = self._exit.enter_context(closing(StockBuild(path, context)))
        self.auto = DecoderLoop(self.session.decoder)

    def _measure_costs(self, path: Path) -> None:
        with Session(path, context=self.context, draft=DraftConfig(speculative="off")) as session:
            if not session.target.plain_reason:
                costs_of(
                    session.target,
                    k=K,
                    n_threads=default_threads(),
                    anew=True,
                    progress=self.say,
                )

    def __enter__(self) -> ModelRun:
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def say(self, line: str) -> None:
        """Tell the user, on stderr."""
        seconds = perf_counter() - self._started
        print(f"[{self.name} {seconds:5.0f} s] {line}", file=sys.stderr, flush=True)

    def tokenize(self, text: str) -> Int32:
        """A user's message in the model's chat template, as tokens."""
        return self.session.prompt_tokens(text)

    def timed(self, arm: Loop | RemoteArm, prompt: Int32, n_tokens: int | None = None) -> Outcome:
        """One answer of this process or of the stock build's, once the other one rests."""
        builds.settle()
        n_tokens = n_tokens or self.plan.n_tokens
        if isinstance(arm, RemoteArm):
            return arm.answer(prompt, n_tokens, self.session.stop_tokens)
        return timed(arm, prompt, n_tokens, self.session.stop_tokens)

    def _once(self, phase: str, measure: Callable[[], Any]) -> Any:
        """Result of a phase that is measured in one go."""
        found = self.records.find(self.name, phase, "")
        if found is None:
            found = self.records.append(self.name, phase, "", result=measure())
        return found["result"]

    def choose_plain(self, prompts: Sequence[Prompt]) -> str:
        """The fastest way of plain decoding of the stock build, one of ``plain_ways``."""
        return str(self._once("plain", lambda: self._measure_plain(prompts))["fastest"])

    def _measure_plain(self, prompts: Sequence[Prompt]) -> dict[str, Any]:
        first, *others = plain_ways(self.context)
        ratios: dict[str, list[float]] = {name: [] for name in others}
        with ExitStack() as stack:
            arms = {}
            for name in (first, *others):
                arms[name] = self.stock.arm(name, name)
                stack.callback(arms[name].close)
            for i, prompt in enumerate([prompts[0], *prompts[:_PLAIN_QUESTIONS]]):
                names = list(arms) if i % 2 else list(arms)[::-1]
                n_tokens = min(_PLAIN_TOKENS, self.plan.n_tokens)
                tps = {n: self.timed(arms[n], prompt.tokens, n_tokens).whole_tps for n in names}
                for name in others if i > 0 else ():  # the first answer warms up
                    ratios[name].append(tps[name] / tps[first])
        speeds = {first: 1.0} | {name: round(median(found), 4) for name, found in ratios.items()}
        self.say("speeds of the stock build's plain decoding: " + str(speeds))
        return {
            "fastest": max(speeds, key=speeds.__getitem__),
            "speeds": speeds,
        }

    def choose_fixed(self, prompts: Sequence[Prompt], *, grown: bool) -> dict[str, Setting]:
        """The best fixed setting of each kind on questions that are not measured."""
        best = self._once("fixed", lambda: self._measure_fixed(prompts, grown))["best"]
        return {kind: Setting.from_dict(setting) for kind, setting in best.items()}

    def _measure_fixed(self, prompts: Sequence[Prompt], grown: bool) -> dict[str, Any]:
        tokens = [prompt.tokens for prompt in prompts]
        with LlamaTarget(self.session.model, self.context) as target:
            rates = rank_rates(target, tokens, self.plan.n_tokens)
            self.say("rates of the ranks: " + " ".join(f"{rate:.3f}" for rate in rates))
            settings = fixed_settings(rates, grown=grown)
            best, speeds = best_settings(
                target,
                settings,
                tokens,
                self.plan.n_tokens,
                n_threads=default_threads(),
                progress=self.say,
            )
        return {
            "rates": [round(rate, 4) for rate in rates],
            "tps": speeds,
            "best": {kind: setting.to_dict() for kind, setting in best.items()},
        }

    def measure(self, prompts: Sequence[Prompt], plain: str, fixed: dict[str, Setting]) -> None:
        """Every arm on every prompt, interleaved; the order turns round from one to the next."""
        with ExitStack() as stack:
            arms: dict[str, Loop | RemoteArm] = {}
            for name in ("plain2", "plain"):
                arms[name] = self.stock.arm(name, plain)
                stack.callback(arms[name].close)
            arms["own"] = self._own_plain(plain, stack)
            arms["auto"] = self.auto
            learned = {}
            for kind, setting in fixed.items():
                target = stack.enter_context(LlamaTarget(self.session.model, self.context))
                file = self._state / f"{self.name}-{kind}.npz"
                learned[file] = load_candidates(file, self.fingerprint, target.n_vocab)
                decoder = setting.decoder(target, learned[file], n_threads=default_threads())
                arms[kind] = DecoderLoop(decoder)
            self._warm_up(arms, prompts[0].tokens)
            turns = interleave(prompts)
            for i, (turn, place, prompt) in enumerate(turns):
                names = self._arms_of(list(arms), turn, prompt.category)
                if (turn // 2 + place) % 2:
                    names.reverse()
                if self._measure_once("measured", prompt, {n: arms[n] for n in names}):
                    self.say(f"question {i + 1} of {len(turns)}: {self._last()}")
                if i + 1 == len(turns) or turns[i + 1][0] != turn:
                    self.session.save_matrix()
                    for file, candidates in learned.items():
                        save_candidates(file, candidates, self.fingerprint)

    def _own_plain(self, plain: str, stack: ExitStack) -> Loop:
        """The same way of plain decoding in this build."""
        arm = own_arm(plain, self.session.model, self.context)
        stack.callback(arm.close)
        return arm

    def _warm_up(self, arms: dict[str, Loop | RemoteArm], prompt: Int32) -> None:
        """Let every plain arm touch its memory once; the drafters stay as they are."""
        for arm in arms.values():
            if not isinstance(arm, DecoderLoop):
                self.timed(arm, prompt[-8:], 4)

    def _arms_of(self, names: list[str], turn: int, category: str) -> list[str]:
        if category == "adversarial":
            return names[:4]
        if self.plan.every_arm:
            return names
        return names[:4] if turn % 2 == 0 else names[1:]

    def _measure_once(
        self, phase: str, prompt: Prompt, arms: dict[str, Loop | RemoteArm], **more: Any
    ) -> bool:
        if self.records.find(self.name, phase, prompt.id):
            return False
        answers = {name: self.timed(arm, prompt.tokens).to_dict() for name, arm in arms.items()}
        self.records.append(
            self.name, phase, prompt.id, category=prompt.category, answers=answers, **more
        )
        return True

    def _last(self) -> str:
        record = self.records.all[-1]
        tps = {name: Outcome(**answer).whole_tps for name, answer in record["answers"].items()}
        speeds = ", ".join(f"{name} {value / tps['plain']:.3f}" for name, value in tps.items())
        return f"{record['category']} ({tps['plain']:.1f} tokens/s plain): {speeds}"

    def measure_copies(self, prompts: Sequence[Prompt], plain: str) -> None:
        """Automatic against plain on the texts that the model really copies."""
        with ExitStack() as stack:
            own = self._own_plain(plain, stack)
            reference = self.stock.arm("copies", plain)
            stack.callback(reference.close)
            shares: dict[str, float] = {}
            for prompt in prompts:
                found = self.records.find(self.name, "copy_screen", prompt.id)
                if found is None:
                    answer = self.timed(own, prompt.tokens)
                    share = copied_share(prompt.tokens.tolist(), answer.tokens)
                    found = self.records.append(
                        self.name, "copy_screen", prompt.id, copied_share=share
                    )
                    self.say(f"{prompt.id}: {share:.0%} of the plain answer is copied")
                shares[prompt.id] = found["copied_share"]
                if sum(s >= self.plan.least_copied for s in shares.values()) >= self.plan.n_copies:
                    break
            chosen = [p for p in prompts if shares.get(p.id, -1) >= self.plan.least_copied]
            for i, prompt in enumerate(chosen):
                arms: dict[str, Loop | RemoteArm]
                arms = {"plain": reference, "own": own, "auto": self.auto}
                if i % 2:
                    arms = dict(reversed(arms.items()))
                if self._measure_once("copy_edit", prompt, arms, copied_share=shares[prompt.id]):
                    self.say(f"copy {i + 1} of {len(chosen)}: {self._last()}")

    def compare_texts(self, prompts: Sequence[Prompt]) -> None:
        """Whether drafted and plain texts of this build are the same, and what rounding
        explains."""
        self._once("equality", lambda: self._equality(prompts))

    def _equality(self, prompts: Sequence[Prompt]) -> dict[str, Any]:
        tokens = {prompt.id: prompt.tokens for prompt in prompts}
        pairs, widths, same = [], [2], []
        for record in self._answered():
            answers = {name: Outcome(**a) for name, a in record["answers"].items()}
            own, auto = answers["own"], answers["auto"]
            pairs.append(TextPair(record["id"], tokens[record["id"]], own.tokens, auto.tokens))
            widths.append(_mean_width(auto.stats))
            if "plain2" in answers:
                same.append(answers["plain2"].tokens == answers["plain"].tokens)
        self.say(f"comparing {len(pairs)} texts")
        with LlamaTarget(self.session.model, self.context) as target:
            report = compare_texts(
                target,
                pairs,
                widths=range(2, max(widths) + 1),
                n_positions=self.plan.n_positions,
            )
        return report.to_dict() | {
            "plain_identical_share": sum(same) / max(1, len(same)),
            "waiting_share": self.stock.waiting_share,
        }

    def _answered(self) -> list[Record]:
        return self.records.of(self.name, "measured") + self.records.of(self.name, "copy_edit")


def _mean_width(stats: dict[str, Any]) -> int:
    """Tokens of a drafted step on average, rounded up."""
    n_steps = stats["n_steps"] - stats["n_plain_steps"]
    return 1 + ceil(stats["n_drafted"] / n_steps) if n_steps else 1
