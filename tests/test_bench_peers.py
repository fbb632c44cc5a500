"""llama.cpp's own programs: found, started, and their figures read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from programs import SERVER, posix, write_program

from edge_tr.bench import peers
from edge_tr.bench.peers import PeerError, PeerServer, common_options, find_peers, server_outcome
from edge_tr.bench.programs import Program, program_outcome, without_bos
from edge_tr.config import ContextConfig, DraftConfig
from edge_tr.errors import ConfigError
from edge_tr.session import Session

LOG = """
I encoded   58 tokens in    0.250 seconds, speed: 232.000 t/s
I decoded   11 tokens in    0.500 seconds, speed: 22.000 t/s
I n_drafted    = 30
I n_accept     = 4
"""


@pytest.fixture
def session(tiny_model: Callable[[str], Path]) -> Iterator[Session]:
    context = ContextConfig(n_ctx=256, n_threads=1, n_threads_batch=1)
    draft = DraftConfig(speculative="off", start="empty")
    with Session(tiny_model("llama"), context=context, draft=draft) as found:
        yield found


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str, str], Path]:
    """``fake(name, script)``: a folder with a Python script in place of a program."""

    return partial(write_program, tmp_path)


def start(session: Session, folder: Path) -> PeerServer:
    return PeerServer(session.model, session.target.config, folder, [])


def test_programs_that_are_not_built_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="make peers"):
        find_peers()


def test_the_newest_build_of_the_installed_version_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(peers, "version", lambda: "1.2+edge.tr.1")
    for age, name in ((0, "1.2-cpu-a"), (100, "1.2-cuda-b"), (-100, "1.3-cpu-c")):
        file = tmp_path / "peers" / name / "peers.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        os.utime(file, (1000 - age, 1000 - age))
    assert find_peers().name == "1.2-cpu-a"


def test_a_folder_without_a_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no llama-server"):
        find_peers(tmp_path)


def test_a_program_gets_our_context() -> None:
    config = ContextConfig(
        n_ctx=512, n_threads=3, n_threads_batch=3, flash_attn=True, type_k="q8_0", type_v="q8_0"
    )
    text = " ".join(common_options(Path("m.gguf"), config, -1))
    for words in ("-c 512", "-t 3", "-tb 3", "-fa on", "-ctk q8_0", "-ctv q8_0", "-ngl 999"):
        assert words in text


def test_the_first_token_of_a_server_is_no_decode_step() -> None:
    timings = {"prompt_ms": 100, "predicted_ms": 400, "predicted_n": 11}
    drafted = {"draft_n": 20, "draft_n_accepted": 4}
    outcome = server_outcome({"timings": timings | drafted, "tokens": [1, 2]})
    assert (outcome.n_steps, outcome.n_accepted, outcome.n_drafted) == (6, 4, 20)
    assert outcome.tps == pytest.approx(10 / 0.4)


def test_lookahead_counts_no_first_token() -> None:
    outcome = program_outcome("llama-lookahead", LOG, "\n\nprompt answer\n\n", b"prompt", 58)
    assert (outcome.n_tokens, outcome.n_steps, outcome.text) == (12, 7, " answer")


def test_lookup_counts_its_first_token() -> None:
    outcome = program_outcome("llama-lookup", LOG, "", b"prompt", 58)
    assert (outcome.n_tokens, outcome.n_steps, outcome.n_drafted) == (11, 6, 30)


def test_a_prompt_read_as_other_tokens_is_no_answer() -> None:
    outcome = program_outcome("llama-lookup", LOG, "", b"prompt", 57)
    assert "58 tokens of a prompt of 57" in outcome.error


@posix
def test_a_server_answers(session: Session, fake: Callable[[str, str], Path]) -> None:
    server = start(session, fake("llama-server", SERVER))
    try:
        outcome = server.answer(session.prompt_tokens("hello"), 3)
    finally:
        server.close()
    assert outcome.n_tokens == 3


@posix
def test_a_server_that_does_not_start_is_quoted(
    session: Session, fake: Callable[[str, str], Path]
) -> None:
    server = start(session, fake("llama-server", "print('no such option'); raise SystemExit(1)"))
    with pytest.raises(PeerError, match="did not start"):
        server.answer(session.prompt_tokens("hello"), 3)


@posix
def test_a_program_whose_log_is_lost_runs_once_more(
    session: Session, fake: Callable[[str, str], Path], tmp_path: Path
) -> None:
    prompt = session.prompt_tokens("hello")
    log = LOG.replace("58", str(len(prompt)))
    seen = tmp_path / "seen"
    script = (
        "import pathlib, sys\n"
        f"seen = pathlib.Path({str(seen)!r})\n"
        f"print({log!r} if seen.exists() else '', file=sys.stderr)\n"
        "seen.touch()\n"
    )
    folder = fake("llama-lookup", script)
    assert Program(session, folder, "llama-lookup").answer(prompt, 8).n_accepted == 4


@posix
def test_a_program_that_fails_is_quoted(session: Session, fake: Callable[[str, str], Path]) -> None:
    folder = fake("llama-lookahead", "import sys; sys.exit('out of memory')")
    with pytest.raises(PeerError, match="out of memory"):
        Program(session, folder, "llama-lookahead").answer(session.prompt_tokens("hello"), 8)


def test_the_first_token_that_programs_add_is_left_out(session: Session) -> None:
    prompt = session.model.tokenize("hello")
    text = session.model.detokenize(prompt.tolist(), special=True)
    assert session.model.tokenize(without_bos(session, text, prompt).decode()).tolist() == (
        prompt.tolist()
    )
