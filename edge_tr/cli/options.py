"""Options that several commands share, and the configurations they become."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edge_tr.cli.output import note
from edge_tr.drafts.tree_text import TREE_FORMS, read_tree
from edge_tr.errors import ConfigError, ModelFileError

if TYPE_CHECKING:
    from edge_tr.config import ContextConfig, DraftConfig, SamplingConfig

T = TypeVar("T")

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
_LEARNED = {
    "k": "k",
    "matrix": "matrix_path",
    "history": "history_path",
    "n_history": "n_history",
}
_DRAFT = _LEARNED | {"matrix_start": "start", "exact": "exact"}


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
        "--flash-attn",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="flash attention (default: where edge_tr's own kernels do all of it)",
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
    """Options of drafting."""
    group = parser.add_argument_group("drafting")
    group.add_argument(
        "--tree",
        metavar="TREE",
        default="auto",
        help=f"the draft tree: {TREE_FORMS} (default auto: what pays on this machine)",
    )
    group.add_argument(
        "--exact",
        action="store_true",
        default=None,
        help="draft only with batch widths whose results are equal to the last bit",
    )
    add_learned(group)
    group.add_argument(
        "--matrix-start",
        choices=("inherited", "empty", "random"),
        help="start with the saved matrix (default), an empty or a random one",
    )
    group.add_argument(
        "--no-save",
        action="store_true",
        help="do not save matrix and history at the "
        "end; a matrix that did not start inherited is saved with --matrix only",
    )
    group.add_argument("--no-harvest", action="store_true", help="learn nothing from the prompt")


def add_learned(group: argparse._ActionsContainer) -> None:
    """Where what is learned is kept, and how much of it."""
    group.add_argument(
        "--matrix",
        type=Path,
        metavar="FILE",
        help="file of the adjacency matrix "
        "(default: one for each tokenizer; `edge-tr matrix path`)",
    )
    group.add_argument(
        "--k",
        type=int,
        metavar="K",
        help="candidates of each row of the adjacency matrix (1 to 16, default 8)",
    )
    group.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="keep the tokens of prompts and answers in this file, to draft from in later runs "
        "(default: in memory only); it holds your texts",
    )
    group.add_argument(
        "--n-history",
        type=int,
        metavar="N",
        help="tokens of earlier texts to keep (default 1048576; 0: none)",
    )


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
    from edge_tr.config import ContextConfig, lanes_for

    more: dict[str, Any] = {"n_lanes": lanes_for(tree(args))}
    if args.threads is not None:
        more["n_threads_batch"] = args.threads
    return configured(ContextConfig, args, _CONTEXT, **more)


def draft_config(args: argparse.Namespace) -> DraftConfig:
    """How the options ask to draft."""
    from edge_tr.config import DraftConfig

    more = {"speculative": tree(args), "harvest": not args.no_harvest}
    return configured(DraftConfig, args, _DRAFT, **more)


def learned_config(args: argparse.Namespace) -> DraftConfig:
    """Where what is learned is to be kept."""
    from edge_tr.config import DraftConfig

    return configured(DraftConfig, args, _LEARNED)


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
        blamed = [option for option, name in names.items() if error.field in (name, option)]
        if not blamed:
            raise
        text = str(error).removeprefix(f"{error.field} ")
        raise ConfigError(f"--{blamed[0].replace('_', '-')} {text}") from None


def tree(args: argparse.Namespace) -> Any:
    """What ``--tree`` says.

    Raises
    ------
    ConfigError : none of the forms allowed, or a file that cannot be read.
    """
    return configured(read_tree, args, {"tree": "text"})


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
