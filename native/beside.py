"""Run a command with another build of llama.cpp than the installed one, which stays as it is.

``python native/beside.py --preset vulkan -- python -m pytest -m gpu`` builds the preset once per
machine, unpacks its wheel beside the kept one, and puts it in front of this Python's packages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from edge_tr.errors import NativeBuildError  # noqa: E402
from edge_tr.machine.build_check import NO_FUSION  # noqa: E402
from native import vulkan  # noqa: E402
from native.build import PRESETS, Plan, build, make_plan  # noqa: E402

SOFTWARE = {
    "GGML_VK_VISIBLE_DEVICES": "0",
    NO_FUSION: "1",
    "GGML_VK_DISABLE_GRAPH_OPTIMIZE": "1",
}
"""llama.cpp takes a Vulkan device that is no GPU only by its number. Mesa 22.3 dies of fused
kernels, and with flash attention and experts of kernels in another order."""
_GPUS = """
import json
from edge_tr.llama import devices
print(json.dumps([devices.description(device) for device in devices.gpus()]))
"""


def unpack(plan: Plan) -> Path:
    """Folder with the wheel's packages, built and unpacked unless that was done before.

    Raises
    ------
    NativeBuildError : see ``build``; or pip could not unpack the wheel.
    """
    wheel, folder = build(plan), plan.folder / "unpacked"
    if folder.exists() and folder.stat().st_mtime >= wheel.stat().st_mtime:
        return folder
    with tempfile.TemporaryDirectory(dir=plan.folder) as work:
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", work]
        if subprocess.run([*pip, str(wheel)], check=False).returncode != 0:
            raise NativeBuildError(f"pip could not unpack {wheel} (see above)")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(work, folder)
    return folder


def environment_of(folder: Path) -> dict[str, str]:
    """This process's environment, with the packages of the folder before all others."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def gpus(environment: dict[str, str]) -> list[str]:
    """What the GPUs are that llama.cpp sees in an environment.

    Raises
    ------
    NativeBuildError : it cannot be loaded.
    """
    command = [sys.executable, "-c", _GPUS]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NativeBuildError(f"this build cannot be loaded: {done.stderr.strip()[-500:]}")
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Run a command with another build of llama.cpp.")
    parser.add_argument("--preset", choices=PRESETS, required=True)
    parser.add_argument(
        "--software",
        action="store_true",
        help="where llama.cpp sees no GPU, let a Vulkan driver that computes on the CPU be one",
    )
    parser.add_argument("command", nargs="+", help="begin it with --; python is this Python")
    options = parser.parse_args()
    try:
        environment = environment_of(unpack(make_plan(options.preset)))
        found = gpus(environment)
        if options.software and not found:
            environment |= SOFTWARE | vulkan.mesa_environment()
            found = gpus(environment)
    except NativeBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.preset} build, GPUs: {', '.join(found) or 'none'}", flush=True)
    command = options.command
    if command[0] == "python":
        command = [sys.executable, *command[1:]]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
