"""llama.cpp's lookahead and lookup programs as methods: one process for each answer.

They read a text, not token ids; the number of tokens that they make of it is compared.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edge_tr.bench.outcome import Outcome
from edge_tr.bench.peers import ANSWER_S, PeerError, common_options, executable
from edge_tr.session import Session
from edge_tr.target import Int32

_TRIES = 3
_ACCEPTED = re.compile(r"n_accept\s+=\s+(\d+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_GREEDY = ("--temp", "0", "--samplers", "top_k", "--top-k", "1")


@dataclass
class Program:
    """llama-lookahead or llama-lookup as a method: one process for each answer.

    Attributes
    ----------
    name : "llama-lookahead" or "llama-lookup".
    """

    session: Session
    folder: Path
    name: str

    def answer(self, prompt: Int32, n_tokens: int) -> Outcome:
        """See ``Method``.

        Raises
        ------
        PeerError : the program failed.
        """
        text = self.session.model.detokenize(prompt.tolist(), special=True)
        for _ in range(_TRIES):
            log, output = self._run(without_bos(self.session, text, prompt), n_tokens)
            if _ACCEPTED.search(log):  # what it logs last is lost now and then when it ends
                return program_outcome(self.name, log, output, text, len(prompt))
        raise PeerError(f"{self.name} printed no figures in {_TRIES} runs: {log[-300:]}")

    def _run(self, text: bytes, n_tokens: int) -> tuple[str, str]:
        """Its log and its output, in a directory of its own, so that it inherits nothing."""
        session, config = self.session, self.session.target.config
        # Lookahead stops one token above the limit and leaves the first one out, lookup counts it.
        n_predict = n_tokens - 2 if self.name == "llama-lookahead" else n_tokens - 1
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "prompt.txt"
            file.write_bytes(text)
            command = [
                str(self.folder / executable(self.name)),
                *common_options(session.model.path, config, session.model.n_gpu_layers),
                *("-bf", str(file), "--no-escape", "-n", str(max(1, n_predict)), *_GREEDY),
                *("--log-colors", "off"),
                # They give the whole prompt to one batch; the graphs still hold n_ubatch tokens.
                *("-b", str(config.n_ctx)),
            ]
            if self.name == "llama-lookup":
                command += ["-lcd", str(Path(directory) / "cache")]
            try:
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S
                )
            except subprocess.TimeoutExpired as error:
                raise PeerError(f"{self.name} took more than {ANSWER_S:.0f} s") from error
        log = done.stderr.decode("utf-8", "replace")
        if done.returncode != 0:
            raise PeerError(f"{self.name} ended with code {done.returncode}: {log[-300:]}")
        return log, done.stdout.decode("utf-8", "replace")

    def save(self) -> None:
        """Nothing: each answer starts anew."""

    def close(self) -> None:
        """Nothing runs between two answers."""


def without_bos(session: Session, text: bytes, prompt: Int32) -> bytes:
    """The text without the first token that these programs put in front themselves."""
    tokens = session.model.tokenize("a", add_special=True)
    bare = session.model.tokenize("a", add_special=False)
    puts_one = len(tokens) > len(bare) and tokens[0] != bare[0]
    if not puts_one or prompt[0] != tokens[0]:
        return text
    return text[len(session.model.piece(int(tokens[0]), special=True)) :]


def program_outcome(name: str, log: str, output: str, prompt: bytes, n_prompt: int) -> Outcome:
    """What the last lines of a program say.

    Lookahead does not count the first token, lookup does; a step accepts ``n_accept`` tokens
    less than it generates.
    """
    encoded = re.search(r"encoded\s+(\d+) tokens in\s+([\d.]+) seconds", log)
    decoded = re.search(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds", log)
    accepted = _ACCEPTED.search(log)
    drafted = re.search(r"n_drafted\s+=\s+(\d+)", log)
    if not (encoded and decoded and accepted):
        raise PeerError(f"{name} printed no figures: {log[-300:]}")
    if int(encoded[1]) != n_prompt:
        return Outcome(error=f"it read {encoded[1]} tokens of a prompt of {n_prompt}")
    n_behind_first = int(decoded[1]) - (name == "llama-lookup")
    n_accepted = int(accepted[1])
    answer = _COLOURS.sub("", output).lstrip("\n")
    start = prompt.decode("utf-8", "replace").lstrip("\n")
    return Outcome(
        n_tokens=n_behind_first + 1,
        n_steps=max(0, n_behind_first - n_accepted),
        prefill_s=float(encoded[2]),
        decode_s=float(decoded[2]),
        n_drafted=int(drafted[1]) if drafted else 0,
        n_accepted=n_accepted,
        text=answer[len(start) :].rstrip("\n") if answer.startswith(start) else None,
    )
