"""libFuzzer, through atheris, on what reads a file: ``python -m bench.fuzz_guided matrix``.

It damages a file again and again, guided by the lines that are reached, and ends at the first
error that is no refusal. Checksums are not compared. Needs ``pip install atheris``, which has
wheels for Linux; what it has found worth keeping lies in ``--corpus``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

from edge_tr.kernels import candidates, matches  # noqa: F401  Numba must not see what is added below

with atheris.instrument_imports(include=["edge_tr", "zipfile"]):
    from bench import fuzz_files
    from edge_tr import models


def fuzz(kind: str, seconds: int, seed: int, corpus: Path) -> None:
    """Damage files of a kind; does not return."""
    corpus.mkdir(parents=True, exist_ok=True)
    if kind == "gguf":
        models.write_tiny(corpus / "whole", "llama")
    elif kind == "matrix":
        fuzz_files.saved_matrix(corpus / "whole")
    else:
        fuzz_files.saved_history(corpus / "whole")
    read = fuzz_files.READERS[kind]
    with TemporaryDirectory() as folder, fuzz_files.unguarded():
        path = Path(folder) / f"one.{kind}"

        def one_input(data: bytes) -> None:
            path.write_bytes(data)
            with suppress(*fuzz_files.REFUSALS):
                read(path)

        options = [f"-max_total_time={seconds}", f"-seed={seed + 1}", "-max_len=2000000",
                   "-rss_limit_mb=4096", "-timeout=600", f"-artifact_prefix={corpus}/"]  # fmt: skip
        atheris.Setup([sys.argv[0], *options, str(corpus)], one_input)
        atheris.Fuzz()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz_guided", description=__doc__)
    parser.add_argument("kind", choices=["gguf", "matrix", "history"], help="what is damaged")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=Path("build/corpus"))
    args = parser.parse_args(argv)
    fuzz(args.kind, args.seconds, args.seed, args.corpus / args.kind)


if __name__ == "__main__":
    main()
