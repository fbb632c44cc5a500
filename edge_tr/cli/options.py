"""Options that several commands share, and the configurations they become."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edge_tr.cli.output import note
from edge_tr.errors import ConfigError, ModelFileError

if TYPE_CHECKING:
    from edge_tr.config import DraftConfig, SamplingConfig
    from edge_tr.llama.target import ContextConfig

T = TypeVar("T")

_TREES = (
    "auto, off, paper, the number of nodes to take of the paper's tree (1 to 80), breadths such "
    "as b:3,2,1, or a JSON file with a list of rank paths"
)
_CONTEXT = {
    "ctx": "n_ctx",
    "threads": "n_threads",
    "batch": "n_batch",
    "flash_attn": "flash_attn",
    "cache_type_k": "type_k",
    "cache_type_v": "type_v",
}
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "seed": "seed",
}
_DRAFT = {"k": "k", "matrix": "matrix_path", "matrix_start": "start", "exact": "exact"}


def add_model(parser: argparse.ArgumentParser) -> None:
    """``-m``."""
    parser.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help="a GGUF file, or a name of `edge-tr model list` (default: SmolLM2-135M in Q4_0, "
        "brought on first use)",
    )


def add_rpc(parser: argparse._ActionsContainer) -> None:
    """``--rpc``, beside ``--gpu-layers``."""
    parser.add_argument(
        "--rpc",
        metavar="HOST:PORT[,HOST:PORT]",
        default="",
        help="place layers on these machines too, each running `edge-tr rpc-server`; "
        "--gpu-layers counts theirs",
    )


def placement(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of ``Model`` and ``Session``: on which devices the layers are."""
    return {"n_gpu_layers": args.gpu_layers, "rpc": args.rpc}


def add_gpu_layers(parser: argparse._ActionsContainer) -> None:
    """``--gpu-layers``."""
    parser.add_argument(
        "--gpu-layers",
        type=int,
        metavar="N",
        default=-1,
        help="layers on the GPU, where the build has one (default -1: all)",
    )


def add_context(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Options of the context; the group."""
    group = parser.add_argument_group("model and context")
    group.add_argument(
        "--ctx",
        type=int,
        metavar="N",
        help="tokens of prompt and answer together, which llama.cpp rounds up to a multiple of 256 "
        "(default 4096; 0: as the model was trained)",
    )
    group.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all cores)")
    group.add_argument(
        "--batch", type=int, metavar="N", help="most tokens of one call of the model (default 512)"
    )
    group.add_argument(
        "--flash-attn", action="store_true", default=None, help="use flash attention"
    )
    for letter, what in (("k", "keys"), ("v", "values")):
        group.add_argument(
            f"--cache-type-{letter}",
            metavar="TYPE",
            help=f"type of the {what} in the cache: f16 (default), q8_0, f32, bf16 ...",
        )
    add_gpu_layers(group)
    return group


def add_drafting(parser: argparse.ArgumentParser) -> None:
    """Options of drafting, all of them."""
    group = add_tree(parser)
    group.add_argument(
        "--k",
        type=int,
        metavar="K",
        help="candidates of each row of the adjacency matrix (1 to 16, default 8)",
    )
    group.add_argument(
        "--matrix-start",
        choices=("inherited", "empty", "random"),
        help="start with the saved matrix (default), an empty or a random one",
    )
    group.add_argument(
        "--no-save",
        action="store_true",
        help="do not save the matrix at the "
        "end; one that did not start inherited is saved with --matrix only",
    )
    group.add_argument("--no-harvest", action="store_true", help="learn nothing from the prompt")


def add_tree(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Options of drafting that the drop-in ``Llama`` has too; the group."""
    group = parser.add_argument_group("drafting")
    group.add_argument(
        "--tree",
        metavar="TREE",
        default="auto",
        help=f"the draft tree: {_TREES} (default auto: what pays on this machine)",
    )
    group.add_argument(
        "--exact",
        action="store_true",
        default=None,
        help="draft only with batch widths whose results are equal to the last bit",
    )
    group.add_argument(
        "--matrix",
        type=Path,
        metavar="FILE",
        help="file of the adjacency matrix "
        "(default: one for each tokenizer; `edge-tr matrix path`)",
    )
    return group


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Options of the choice of each token."""
    group = parser.add_argument_group("choice of each token")
    for flag, kind, what in (
        ("--temp", float, "temperature; 0 takes the most probable token (default 0)"),
        ("--top-k", int, "keep the N most probable tokens (default 40; 0: all)"),
        ("--top-p", float, "keep this share of the probability (default 0.95)"),
        ("--min-p", float, "drop tokens below this share of the best one (default 0.05)"),
        ("--repeat-penalty", float, "above 1 makes repeated tokens rarer (default 1)"),
        ("--seed", int, "the same seed gives the same text (default: a new one each time)"),
    ):
        group.add_argument(flag, type=kind, metavar="N", help=what)


def prepare_llama(args: argparse.Namespace) -> None:
    """Before llama.cpp is imported: see that it works here, and where its log goes.

    Raises
    ------
    NativeBuildError : it would crash this process.
    """
    from edge_tr.machine.build_check import require_working_build

    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # a debugger would write to stdout
    require_working_build()
    if args.verbose:
        from edge_tr.llama.library import log_to_stderr

        log_to_stderr()


def context_config(args: argparse.Namespace) -> ContextConfig:
    """The context that the options ask for, with a lane for each leaf of a forced tree."""
    from edge_tr.drafts.template import TreeTemplate
    from edge_tr.llama.target import ContextConfig

    more: dict[str, Any] = {}
    if args.threads is not None:
        more["n_threads_batch"] = args.threads
    tree = parse_tree(args.tree)
    if isinstance(tree, TreeTemplate):
        more["n_lanes"] = max(tree.n_leaves, ContextConfig.n_lanes)
    return configured(ContextConfig, args, _CONTEXT, **more)


def draft_config(args: argparse.Namespace) -> DraftConfig:
    """How the options ask to draft."""
    from edge_tr.config import DraftConfig

    more = {"speculative": parse_tree(args.tree), "harvest": not args.no_harvest}
    return configured(DraftConfig, args, _DRAFT, **more)


def llama_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of the drop-in ``Llama`` that the options ask for."""
    from edge_tr.llama.target import CACHE_TYPES

    context = context_config(args)
    return {
        "n_gpu_layers": args.gpu_layers,
        "rpc_servers": args.rpc,
        "n_ctx": context.n_ctx,
        "n_batch": context.n_batch,
        "n_ubatch": context.n_ubatch,
        "n_threads": args.threads,
        "n_threads_batch": args.threads,
        "flash_attn": context.flash_attn,
        "type_k": CACHE_TYPES[context.type_k],
        "type_v": CACHE_TYPES[context.type_v],
        "speculative": parse_tree(args.tree),
        "exact": bool(args.exact),
        "matrix_path": args.matrix,
        "verbose": args.verbose,
    }


def sampling_config(args: argparse.Namespace) -> SamplingConfig:
    """How the options ask to choose tokens; a seed is drawn here, so that it can be told."""
    import secrets

    from edge_tr.config import SamplingConfig

    more = {"seed": secrets.randbelow(1 << 31)} if args.temp and args.seed is None else {}
    return configured(SamplingConfig, args, _SAMPLING, **more)


def configured(
    make: Callable[..., T], args: argparse.Namespace, names: dict[str, str], **more: Any
) -> T:
    """A configuration of the options that were given; an error names the option, not the setting.

    Parameters
    ----------
    names : setting of each option.
    """
    values = {name: getattr(args, option) for option, name in names.items()}
    try:
        return make(**{name: v for name, v in values.items() if v is not None}, **more)
    except ConfigError as error:
        setting, _, text = str(error).partition(" ")
        option = next((option for option, name in names.items() if name == setting), None)
        if option is None:
            raise
        raise ConfigError(f"--{option.replace('_', '-')} {text}") from None


def parse_tree(text: str) -> Any:
    """ "auto", "off" or a TreeTemplate.

    Raises
    ------
    ConfigError : none of the forms allowed, or a file that cannot be read.
    """
    from edge_tr.drafts.template import TreeTemplate

    if text in ("auto", "off"):
        return text
    paper = TreeTemplate.paper()
    if text == "paper":
        return paper
    if text.isascii() and text.isdigit() and len(text) < 4:
        if not 1 <= int(text) <= paper.n_nodes:
            raise ConfigError(f"--tree {text} is not allowed; use {_TREES}")
        return paper.prefix(int(text))
    try:
        if text.startswith("b:"):
            return TreeTemplate.from_breadths([int(number) for number in text[2:].split(",")])
        return TreeTemplate(_read_paths(text))
    except (ValueError, OSError) as error:
        why = f"{error}; " if isinstance(error, ConfigError) else ""
        raise ConfigError(f"--tree {text[:80]} is not allowed: {why}use {_TREES}") from None


def _read_paths(name: str) -> list[list[int]]:
    if not Path(name).is_file():
        raise ConfigError("there is no such file")
    try:
        content = json.loads(Path(name).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"it cannot be read as JSON: {error}") from None
    paths = content.get("paths") if isinstance(content, dict) else content
    if not isinstance(paths, list) or not all(isinstance(path, list) for path in paths):
        raise ConfigError("it holds no list of rank paths, such as [[0], [1], [0, 0]]")
    return paths


def check_writable(flag: str, file: Path) -> None:
    """See, before work that takes long, that a file can be written.

    Raises
    ------
    ConfigError : it is a folder, or its own folder is missing or closed to us.
    """
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(
            f"{flag} {file} cannot be written; it must be a file in a folder of yours"
        )


def model_path(args: argparse.Namespace) -> Path:
    """The model's file; one of the catalogue is brought or made when it is missing.

    Raises
    ------
    ModelFileError : no file and no name of the catalogue, or it could not be brought.
    """
    from edge_tr import models

    name = models.DEFAULT if args.model is None else args.model
    is_file = name.lower().endswith(".gguf") or os.sep in name or Path(name).exists()
    if args.model is not None and is_file:
        return Path(name)
    try:
        return models.path(name, progress=note)
    except ConfigError as error:
        raise ModelFileError(f"{error}, or give a file that ends in .gguf") from None
