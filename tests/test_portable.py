"""The portable wheel in a bare environment; the build takes half an hour, once for a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_tr.machine import isa
from native.build import build, make_plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not isa.is_x86(), reason="variants of x86-64"),
]

ROOT = Path(__file__).parent.parent
ANSWER = """
import json, sys
import llama_cpp
from edge_tr import Llama
llm = Llama(sys.argv[1], n_ctx=256, verbose=False, matrix_path=False)
answer = llm.create_completion("Copper is", max_tokens=12, temperature=0.0)
print(json.dumps([llama_cpp._cpu_variant.loaded, answer["choices"][0]["text"]]))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has what the two wheels ask for and no compiler on its path."""
    folder = tmp_path_factory.mktemp("bare")
    llama = build(make_plan("portable"))
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(wheel, check=True)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    wheels = map(str, [llama, *folder.glob("edge_tr*.whl")])
    install = [str(python), "-m", "pip", "install", "-q", *wheels]
    subprocess.run(install, check=True, env=os.environ | {"PATH": str(python.parent)})
    return python


def ask(python: Path, model: Path, folder: Path, **variables: str) -> tuple[str, str]:
    environment = os.environ | {"EDGE_TR_CACHE_DIR": str(folder)} | variables
    done = subprocess.run(
        [python, "-I", "-c", ANSWER, model], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    variant, text = json.loads(done.stdout)
    return variant, text


def test_the_wheel_is_small_and_holds_each_library_once() -> None:
    wheel = build(make_plan("portable"))
    assert wheel.stat().st_size <= 30 * 2**20


def test_every_variant_that_executes_answers(
    bare: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    model = tiny_model("llama")
    chosen, text = ask(bare, model, tmp_path)
    usable = {name for name, status in isa.probe().items() if status.usable}
    assert chosen != "sse42" or "avx2" not in usable
    for variant in ("sse42", "haswell") if "avx2" in usable else ("sse42",):
        assert ask(bare, model, tmp_path, EDGE_TR_CPU_VARIANT=variant) == (variant, text)


def test_llama_cpp_alone_has_a_processor(bare: Path) -> None:
    program = "import llama_cpp; print(llama_cpp.llama_print_system_info().decode())"
    done = subprocess.run([bare, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert "CPU : " in done.stdout
