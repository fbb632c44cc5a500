"""An OpenAI-compatible server over a drop-in ``Llama``; needs the extra ``server``."""

from __future__ import annotations

from importlib.util import find_spec

from edge_tr.errors import ConfigError


def require_extra() -> None:
    """See that the packages of the extra are there.

    Raises
    ------
    ConfigError : one is missing; the text says how to install it.
    """
    for package in ("starlette", "uvicorn", "pydantic", "prometheus_client"):
        if find_spec(package) is None:
            raise ConfigError(
                f"the server needs {package}, which is not installed; "
                'install the extra: pip install "edge-tr[server]"'
            )
