"""Random inputs against the server and what reads files: ``python -m bench.fuzz --seconds 1200``.

A server of a small model runs in a process of its own and gets bodies, schemas, grammars and
histories; each finished answer to a schema is validated with ``jsonschema``. Beside it, texts
are walked at random through schemas over a real vocabulary, chat templates write histories, and
GGUF and matrix files are damaged. What must show is 0 in each of the last columns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from edge_tr import models

from . import fuzz_files, fuzz_inputs
from .fuzz_server import FuzzedServer
from .fuzz_walks import Walker, check_templates

Finding = Callable[[str, str], None]


class Fuzz:
    """Counts what was tried and what was found.

    Attributes
    ----------
    counts : crashes, hangs, status_500, invalid_answers, and what was tried.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(
            dict.fromkeys(("crashes", "hangs", "status_500", "invalid_answers"), 0)
        )

    def found(self, kind: str, what: str) -> None:
        """Count a fault and tell of it."""
        self.counts[kind] += 1
        print(f"{kind}: {what:.600}", file=sys.stderr, flush=True)


def run(seconds: float, seed: int, model: Path, vocabulary: Path) -> dict[str, object]:
    """Try for some seconds; the counts."""
    fuzz = Fuzz()
    rng = random.Random(seed)
    started = time.monotonic()
    with TemporaryDirectory() as folder, FuzzedServer(model, fuzz.found) as server:
        walker = Walker(vocabulary)
        files = fuzz_files.Files(Path(folder), model)
        while time.monotonic() - started < seconds:
            number = rng.randrange(1 << 62)
            one = random.Random(number)
            kind = one.choice(("bodies", "schemas", "grammars", "walks", "walks", "templates",
                               "files"))  # fmt: skip
            fuzz.counts[kind] += 1
            name = f"{kind} {number}"
            if kind == "bodies":
                server.send("/v1/chat/completions", fuzz_inputs.chat_body(one), name)
            elif kind == "schemas":
                server.answer(fuzz_inputs.schema(one), name, fuzz.counts)
            elif kind == "grammars":
                body = {"prompt": "a", "max_tokens": 8, "grammar": fuzz_inputs.grammar(one)}
                server.send("/v1/completions", body, name)
            elif kind == "walks":
                walker.walk(fuzz_inputs.schema(one), one, name, fuzz.found, fuzz.counts)
            elif kind == "templates":
                check_templates(one, name, fuzz.found)
            else:
                files.check(one, name, fuzz.found)
        files.load_kept(fuzz.found)
    return {"seed": seed, "seconds": round(time.monotonic() - started), **fuzz.counts}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args(argv)
    with TemporaryDirectory() as folder:
        tiny = models.write_tiny(Path(folder) / "tiny.gguf", "llama")
        with contextlib.suppress(KeyboardInterrupt):
            found = run(args.seconds, args.seed, tiny, models.location("smollm2-q4_0"))
    print(json.dumps(found) if args.json else "\n".join(f"{k}: {v}" for k, v in found.items()))
    faults = ("crashes", "hangs", "status_500", "invalid_answers")
    return int(any(found[name] for name in faults))


if __name__ == "__main__":
    sys.exit(main())
