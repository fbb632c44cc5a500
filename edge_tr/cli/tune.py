"""``edge-tr tune``: what a decode step costs here, which tree fits, and what would fit better."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_tr.cli import options, plot
from edge_tr.cli.interrupt import Interruptible
from edge_tr.cli.output import note, write
from edge_tr.errors import ConfigError

if TYPE_CHECKING:
    from edge_tr.config import ContextConfig
    from edge_tr.costs.expected import Expectation, Recording
    from edge_tr.costs.table import CostTable
    from edge_tr.measuring.widths import WidthProbe
    from edge_tr.tuning import Alternative

_DESCRIPTION = """\
Measures what a decode step with n tokens costs here, T(n), with this model and these settings,
and keeps it for automatic mode. Shows the steps as a table and a plot, the tree that pays, the
widths whose results are equal to the last bit, and what another cache type, flash attention
setting or number of threads would bring. It changes no setting.

With --cost nothing is measured: recorded acceptance is taken through any tables of T(n), such as
those of machines that are not at hand. The speeds are expectations, not measurements.
"""
_EPILOG = """\
examples:
  edge-tr tune -m model.gguf
  edge-tr tune --flash-attn --cache-type-k q8_0 --cache-type-v q8_0 --svg steps.svg
  edge-tr tune --json > here.json
  edge-tr tune --cost here.json
  edge-tr tune --cost public
  edge-tr tune --cost table.json      {"name": "...", "widths": [1, 2, 4], "ratio": [1, 1.1, 1.3]}
"""
_EXPECTATION = (
    "Speeds are expectations from acceptance recorded with another text and model, not\n"
    "measurements; `edge-tr demo` measures."
)
_LEAST_GAIN = 0.05
"""Smaller gains of another setting are not worth changing it."""

_PAYS = 1.02


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``tune`` to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tune",
        parents=[common],
        help="measure decode steps, show which draft tree pays and which settings would help",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    parser.add_argument(
        "--seconds",
        type=float,
        default=12.0,
        metavar="S",
        help="time for the measurement; each other setting gets half of it (default 12)",
    )
    parser.add_argument("--only-this", action="store_true", help="try no other settings")
    parser.add_argument(
        "--k",
        type=int,
        default=8,
        metavar="K",
        help="candidates of each row of the adjacency matrix (1 to 16, default 8)",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the plot to a file")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    simulator = parser.add_argument_group("expectations without measuring")
    simulator.add_argument(
        "--cost",
        metavar="FILE",
        help="tables of T(n) to expect speeds for; public: the figures that come with edge-tr",
    )
    simulator.add_argument(
        "--acceptance",
        type=Path,
        metavar="FILE",
        help="recorded acceptance (python -m bench.mat --record FILE) instead of the one that "
        "comes with edge-tr",
    )
    options.add_rpc(options.add_context(parser))
    parser.set_defaults(command=run, tree="auto")


def run(args: argparse.Namespace) -> int:
    """Measure and show, or simulate."""
    from edge_tr.costs.expected import DEFAULT_RECORDING, read_recording

    if args.seconds <= 0:
        raise ConfigError(f"--seconds {args.seconds} is not allowed; it must be above 0")
    if args.svg:
        options.check_writable("--svg", args.svg)
    recording = read_recording(args.acceptance or DEFAULT_RECORDING)
    if args.cost is not None:
        for option in ("model", "ctx", "threads", "batch", "flash_attn", "rpc"):
            if getattr(args, option) not in (None, ""):
                flag = option.replace("_", "-")
                raise ConfigError(f"--{flag} does nothing with --cost, which measures nothing")
        return _simulate(args, recording)
    options.prepare_llama(args)
    path = options.model_path(args)
    config = options.context_config(args)
    return Interruptible().run(lambda: _tune(args, path, config, recording))


def _simulate(args: argparse.Namespace, recording: Recording) -> int:
    from edge_tr.costs.expected import PUBLIC_TABLES, expect, read_costs

    tables = read_costs(PUBLIC_TABLES if args.cost == "public" else Path(args.cost))
    expectations = [expect(recording, costs) for costs in tables]
    if args.svg:
        args.svg.write_text(plot.svg(expectations), encoding="utf-8")
    if args.json:
        facts = {
            "acceptance": recording.about,
            "kind": "expectation",
            "tables": [e.to_dict() for e in expectations],
        }
        write(json.dumps(facts) + "\n")
        return 0
    lines = []
    for e in expectations:
        known = f"known up to {e.costs.widths[-1]} tokens"
        lines += [e.costs.name, f"  {_choice(e)}"]
        lines += [f"  {what}" for what in (known, e.costs.note, e.costs.source) if what]
    lines += ["", f"Acceptance: {recording.about}.", _EXPECTATION]
    write("\n".join(lines) + "\n")
    return 0


def _tune(args: argparse.Namespace, path: Path, config: ContextConfig, recording: Recording) -> int:
    from edge_tr import tuning
    from edge_tr.llama.model import Model

    with Model(path, **options.placement(args)) as model:
        if model.plain_reason:
            reason = {"model": str(path), "plain_reason": model.plain_reason}
            write((json.dumps(reason) if args.json else model.plain_reason) + "\n")
            return 0
        common = {"k": args.k, "progress": note}
        own = tuning.measure(
            model, "these settings", config, budget_s=args.seconds, keep=True, **common
        )
        others: list[Alternative] = []
        drift = 0.0
        if not args.only_this:
            others, drift = tuning.alternatives(
                model, own, recording, budget_s=args.seconds / 2, **common
            )
    expectations = [own.expectation(recording, n_past) for n_past in own.table.contexts]
    if args.svg:
        args.svg.write_text(plot.svg(expectations), encoding="utf-8")
    if args.json:
        facts: dict[str, Any] = {
            **own.to_dict(),
            "name": path.name,
            "model": str(path),
            "acceptance": recording.about,
            "expectations": [e.to_dict() for e in expectations],
            "others": [other.to_dict() for other in others],
            "drift": round(drift, 3),
        }
        write(json.dumps(facts) + "\n")
        return 0
    lines = [*_table(own.table), ""]
    for e in expectations:
        lines += [f"Plain steps of time behind {e.costs.name} (o: tokens expected):"]
        lines += [*plot.bars(e), ""]
    lines += [f"Behind {e.costs.name}: {_choice(e)}." for e in expectations]
    lines += [_EXPECTATION, "", _equal_widths(own.probe)]
    if not args.only_this:
        lines += ["", *_recommendations(others, drift)]
    write("\n".join(lines) + "\n")
    return 0


def _table(table: CostTable) -> list[str]:
    n = len(table.contexts)
    lines = [
        f"{'tokens':>6}" + "".join(f"{f'behind {past} tokens':>24}" for past in table.contexts),
        f"{'':>6}" + f"{'ms':>12}{'T(n)/T(1)':>12}" * n,
    ]
    for i, width in enumerate(table.widths):
        cells = [f"{row[i] * 1e3:>12.2f}{row[i] / row[0]:>12.2f}" for row in table.seconds]
        lines.append(f"{width:>6}{''.join(cells)}")
    changed = f"{table.change_s * 1e3:.2f} ms longer"
    return [*lines, f"A step that is not as wide as the one before takes {changed}."]


def _choice(e: Expectation) -> str:
    best = e.speedup_of[e.best_nodes]
    fixed = f"the best fixed tree has {_count(e.best_nodes, 'node')} ({best:.2f} times)"
    if e.best_nodes == 0:
        fixed = "no fixed tree pays"
    if e.speedup < _PAYS:
        return "drafting does not pay on typical text, only on what repeats; none is the best tree"
    return (
        f"{e.speedup:.2f} times as fast as plain decoding expected, with {e.mean_nodes:.1f} nodes "
        f"a step on average and {e.mat:.2f} mean accepted tokens; {fixed}"
    )


def _equal_widths(probe: WidthProbe) -> str:
    if probe.tree_width < 2:
        return "Equal to one-token decoding to the last bit: no width; --exact would not draft."
    return (
        f"Equal to one-token decoding to the last bit: chains of up to {probe.chain_width} tokens "
        f"and trees of up to {probe.tree_width} (tried up to {probe.n_probed})."
    )


def _recommendations(others: list[Alternative], drift: float) -> list[str]:
    lines = ["Other settings, tokens per second expected (in brackets: these settings):"]
    for other in others:
        name, probe = other.setting.name, other.setting.probe
        speeds = [
            f"{this:.1f} ({own:.1f}) behind {n_past}" for n_past, (own, this) in other.tps.items()
        ]
        exact = f"equal bits up to {probe.tree_width} tokens"
        if probe.tree_width < 2:
            exact = "no width has equal bits"
        lines.append(f"  {name}: {', '.join(speeds)}; {exact}")
    if drift > _LEAST_GAIN:
        lines.append(
            f"A plain step changed by {drift:.0%} between the first measurement and the last; "
            "differences below that mean nothing."
        )
    least = max(_LEAST_GAIN, drift)
    faster = []
    for other in sorted(others, key=lambda other: -other.gain):
        gains = {n: this / own - 1 for n, (own, this) in other.tps.items()}
        if max(gains.values()) >= least:
            where = ", ".join(f"{gain:+.0%} behind {n} tokens" for n, gain in gains.items())
            faster.append(f"Clearly faster with {other.setting.name}: {where}.")
    lines += faster or ["None of them is clearly faster."]
    return [*lines, "Nothing was changed; the choice is yours."]


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
