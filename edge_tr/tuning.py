"""What a decode step costs in these settings and in others like them, and what that would bring."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge_tr.config import ContextConfig
from edge_tr.costs.expected import Expectation, Recording, RelativeCosts, expect
from edge_tr.costs.table import CostTable
from edge_tr.decode.topk import default_threads
from edge_tr.errors import ConfigError, ModelLoadError
from edge_tr.llama.model import Model
from edge_tr.llama.target import LlamaTarget
from edge_tr.measuring.kept_costs import costs_of
from edge_tr.measuring.widths import WidthProbe, probe_widths


@dataclass(frozen=True)
class Setting:
    """One way to open the context, measured.

    Attributes
    ----------
    name : for people.
    table, probe : what a step costs, and which widths are bit-equal.
    """

    name: str
    config: ContextConfig
    table: CostTable
    probe: WidthProbe

    def expectation(self, recording: Recording, n_past: int) -> Expectation:
        """What drafting is expected to bring behind so many tokens."""
        widths = self.table.widths
        seconds = self.table.at(n_past, widths[-1])
        ratio = tuple(float(seconds[w] / seconds[1]) for w in widths)
        return expect(recording, RelativeCosts(f"{n_past} past tokens", widths, ratio))

    def tps(self, recording: Recording, n_past: int) -> float:
        """Expected tokens per second behind so many tokens."""
        return self.expectation(recording, n_past).speedup / float(self.table.at(n_past, 1)[1])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "context": asdict(self.config),
            "costs": self.table.to_dict(),
            "equal_widths": asdict(self.probe),
        }


@dataclass(frozen=True)
class Alternative:
    """Another setting beside the user's own.

    Attributes
    ----------
    tps : by number of past tokens, expected tokens per second of the own setting and of this.
    """

    setting: Setting
    tps: dict[int, tuple[float, float]]

    @property
    def gain(self) -> float:
        """By which share it is faster where it gains least."""
        return min(other / own for own, other in self.tps.values()) - 1

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        tps = {str(n): {"own": own, "this": this} for n, (own, this) in self.tps.items()}
        return self.setting.to_dict() | {"expected_tps": tps}


def other_configs(config: ContextConfig) -> list[tuple[str, ContextConfig]]:
    """Settings worth comparing with ``config``, each with a name for people."""
    found = []
    if config.flash_attn and config.type_v not in ("f16", "f32", "bf16"):
        off = replace(config, flash_attn=False, type_k="f16", type_v="f16")
        found.append(("flash attention off, f16 cache", off))
    elif config.flash_attn:
        found.append(("flash attention off", replace(config, flash_attn=False)))
    else:
        found.append(("flash attention on", replace(config, flash_attn=True)))
    if not (config.flash_attn and config.type_k == config.type_v == "q8_0"):
        exact = replace(config, flash_attn=True, type_k="q8_0", type_v="q8_0")
        found.append(("flash attention on, q8_0 cache", exact))
    n_cores = os.cpu_count() or 1
    for n in sorted({max(1, n_cores // 2), n_cores} - {config.n_threads or n_cores}):
        name = f"{n} thread{'s' if n > 1 else ''}"
        found.append((name, replace(config, n_threads=n, n_threads_batch=n)))
    return found


def measure(
    model: Model,
    name: str,
    config: ContextConfig,
    *,
    budget_s: float,
    k: int = 8,
    keep: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Setting:
    """Open a context, measure its costs and its bit-equal widths, and close it.

    Parameters
    ----------
    budget_s : seconds for the costs.
    keep : keep the costs for sessions with the same settings.

    Raises
    ------
    ModelLoadError : llama.cpp refuses the setting with this model.
    ConfigError : nothing can be drafted with it.
    """
    progress(f"{name}: opening the model")
    with LlamaTarget(model, config) as target:
        if target.plain_reason:
            raise ConfigError(target.plain_reason)
        if target.n_batch < 2:
            raise ConfigError("a batch of one token holds no draft; --batch must be 2 or more")
        table = costs_of(
            target,
            k=k,
            n_threads=default_threads(),
            budget_s=budget_s,
            anew=True,
            keep=keep,
            progress=lambda line: progress(f"{name}: {line}"),
        )
        probe = probe_widths(target, max_width=min(16, target.n_batch, target.n_ctx // 4))
        config = replace(config, flash_attn=target.config.flash_attn)
    return Setting(name, config, table, probe)


def alternatives(
    model: Model,
    own: Setting,
    recording: Recording,
    *,
    budget_s: float,
    k: int = 8,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[list[Alternative], float]:
    """Measure other settings, and the own one again.

    Returns
    -------
    The settings that llama.cpp allows with this model, and by which share a plain step of the
    own setting changed from the first measurement to the last.
    """
    found = []
    for name, config in other_configs(own.config):
        try:
            other = measure(model, name, config, budget_s=budget_s, k=k, progress=progress)
        except ModelLoadError:
            continue
        a, b = own.table.contexts, other.table.contexts
        common = sorted({max(a[0], b[0]), min(a[-1], b[-1])})
        tps = {n: (own.tps(recording, n), other.tps(recording, n)) for n in common}
        found.append(Alternative(other, tps))
    again = measure(
        model, f"{own.name} again", own.config, budget_s=budget_s, k=k, progress=progress
    )
    return found, abs(again.table.seconds[0][0] / own.table.seconds[0][0] - 1)
