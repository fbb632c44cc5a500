"""Options of the command line become configurations."""

from __future__ import annotations

import argparse
from pathlib import Path

from edge_tr.cli import make_parser, options
from edge_tr.config import ContextConfig, DraftConfig, SamplingConfig
from edge_tr.drafts.template import TreeTemplate


def test_options_reach_the_configurations() -> None:
    line = "run x --ctx 1 --threads 2 --batch 3 --flash-attn --cache-type-k q4_0 --tree b:16,8"
    line += " --cache-type-v q8_0 --k 16 --exact --matrix m --matrix-start random --no-harvest"
    line += " --temp 0.5 --top-k 6 --top-p 0.7 --min-p 0.8 --seed 9 --repeat-penalty 1.5"
    args: argparse.Namespace = make_parser().parse_args(line.split())
    assert options.context_config(args) == ContextConfig(
        n_ctx=1,
        n_threads=2,
        n_threads_batch=2,
        n_batch=3,
        flash_attn=True,
        type_k="q4_0",
        type_v="q8_0",
        n_lanes=128,
    )
    assert options.draft_config(args) == DraftConfig(
        speculative=TreeTemplate.from_breadths([16, 8]),
        k=16,
        exact=True,
        matrix_path=Path("m"),
        start="random",
        harvest=False,
    )
    assert options.sampling_config(args) == SamplingConfig(
        temperature=0.5, top_k=6, top_p=0.7, min_p=0.8, seed=9, repeat_penalty=1.5
    )
