"""The conversation in the terminal: messages, slash commands, Ctrl-C, history."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_tr.cli import main

Chat = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def chat(
    tmp_path: Path,
    cache: Path,
    tiny_model: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Chat:
    """``chat(*lines, options=())``: exit code, stdout and stderr of a conversation."""
    monkeypatch.setenv("EDGE_TR_CACHE_DIR", str(cache))
    monkeypatch.setenv("EDGE_TR_DATA_DIR", str(tmp_path / "data"))

    def talk(*lines: str, options: tuple[object, ...] = ()) -> tuple[int, str, str]:
        text = "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        fixed = ("chat", "-m", tiny_model("llama"), "--threads", 1, "--ctx", 512, "--tree", "off")
        arguments = [str(part) for part in (*fixed, "--max-tokens", 8, *options)]
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return talk


def saved(path: Path) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = json.loads(path.read_text("utf-8"))
    return messages


def test_each_message_gets_an_answer(chat: Chat, tmp_path: Path) -> None:
    code, out, _ = chat("Hello", "More", f"/save {tmp_path / 'c.json'}")
    messages = saved(tmp_path / "c.json")
    assert code == 0
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2
    assert [m["content"] for m in messages[::2]] == ["Hello", "More"]
    answers = [m["content"] for m in messages[1::2]]
    assert out == "".join(answer.removesuffix("\n") + "\n" for answer in answers)


def test_exit_ends_before_the_rest(chat: Chat) -> None:
    code, out, _ = chat("/exit", "Hello")
    assert (code, out) == (0, "")


def test_an_empty_line_is_no_message(chat: Chat) -> None:
    assert chat("", "  ")[1] == ""


@pytest.mark.parametrize(
    "lines", [("one\\", "two"), ('"""', "one", "two", '"""')], ids=["backslash", "block"]
)
def test_a_message_of_two_lines(chat: Chat, tmp_path: Path, lines: tuple[str, ...]) -> None:
    chat(*lines, f"/save {tmp_path / 'c.json'}")
    assert saved(tmp_path / "c.json")[0]["content"] == "one\ntwo"


def test_help_tells_every_command(chat: Chat) -> None:
    err = chat("/help")[2]
    for name in ("/help", "/stats", "/system", "/retry", "/drop", "/reset", "/save", "/exit"):
        assert name in err


def test_stats_of_the_last_answer(chat: Chat) -> None:
    err = chat("Hello", "/stats")[2]
    assert "decode:  8 tokens" in err
    assert "mean accepted tokens" in err


def test_later_turns_reuse_the_cache(chat: Chat) -> None:
    err = chat("one two three", "/stats", "four five", "/stats", "six", "/stats")[2]
    words = [line.split() for line in err.splitlines() if "reused from the cache" in line]
    reused = [int(line[line.index("reused") - 1]) for line in words]
    assert len(reused) == 2
    assert reused[0] < reused[1]


def test_system_changes_the_instructions(chat: Chat, tmp_path: Path) -> None:
    err = chat("/system Be brief.", "/system", f"/save {tmp_path / 'c.json'}")[2]
    assert err.count("system: Be brief.") == 2
    assert saved(tmp_path / "c.json") == [{"role": "system", "content": "Be brief."}]


def test_instructions_from_the_command_line(chat: Chat) -> None:
    assert "system: Be kind." in chat("/system", options=("--system", "Be kind."))[2]


def test_reset_forgets_everything(chat: Chat, tmp_path: Path) -> None:
    chat("Hello", "/reset", f"/save {tmp_path / 'c.json'}")
    assert saved(tmp_path / "c.json") == []


def test_drop_forgets_the_oldest(chat: Chat, tmp_path: Path) -> None:
    chat("one", "two", "/drop", f"/save {tmp_path / 'c.json'}")
    assert saved(tmp_path / "c.json")[0]["content"] == "two"


def test_retry_answers_once_more(chat: Chat, tmp_path: Path) -> None:
    chat("Hello", "/retry", f"/save {tmp_path / 'c.json'}", options=("--temp", 1.5))
    assert [m["role"] for m in saved(tmp_path / "c.json")] == ["user", "assistant"]


def test_retry_draws_another_text(chat: Chat) -> None:
    out = chat("Hello", "/retry", options=("--temp", 1.5, "--max-tokens", 30))[1]
    first = out[: len(out) // 2]
    assert out != first * 2


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/nothing", "there is no command /nothing"),
        ("/save", "/save needs the name of a file"),
        ("/save /no/such/directory/file", "cannot be written"),
        ("/stats", "there is no answer yet"),
        ("/retry", "there is no message yet"),
        ("/drop", "there is nothing to forget"),
    ],
)
def test_a_command_that_fails(chat: Chat, line: str, told: str) -> None:
    code, _, err = chat(line)
    assert code == 0
    assert told in err


def test_a_message_that_does_not_fit(chat: Chat, tmp_path: Path) -> None:
    _, out, err = chat("Hello", "word " * 600, f"/save {tmp_path / 'c.json'}")
    assert "a context of 512 holds" in err
    assert "/drop forgets the oldest message" in err
    assert [m["content"] for m in saved(tmp_path / "c.json")[::2]] == ["Hello"]
    assert out


def test_a_first_message_that_does_not_fit_needs_more_room(chat: Chat) -> None:
    err = chat("word " * 600)[2]
    assert "--ctx makes more room" in err
    assert "/drop" not in err


def test_a_block_that_does_not_end_is_a_message(chat: Chat) -> None:
    assert chat('"""', "Hello")[1]


def test_an_answer_that_fills_the_context(chat: Chat) -> None:
    err = chat("word " * 100, options=("--max-tokens", 4000))[2]
    assert "the context is full; /drop" in err


def test_a_model_without_a_template(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_tr.llama.model.Model.chat_template", None)
    code, _, err = chat("Hello")
    assert code == 3
    assert "has no chat template" in err


def test_a_limit_that_is_not_allowed(chat: Chat) -> None:
    code, _, err = chat(options=("--max-tokens", 0))
    assert code == 2
    assert "--max-tokens 0 is not allowed" in err


class Terminal:
    """A child that talks over a pseudo terminal."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self._child = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=os.environ | env,
            start_new_session=True, close_fds=True,
            # Ignored where the tests run in the background; the child would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until ``text`` came."""
        while text not in self.seen:
            self._read(text)
        self.seen = self.seen.partition(text)[2]

    def wait_for_any(self) -> None:
        """Read until something came."""
        while not self.seen.strip():
            self._read("anything")

    def interrupt(self) -> None:
        self._child.send_signal(signal.SIGINT)

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl-C until ``text`` comes; readline misses one that comes too early."""
        for _ in range(12):
            self.interrupt()
            if select.select([self._master], [], [], 5)[0]:
                break
        self.wait_for(text)

    def _read(self, awaited: str) -> None:
        ready, _, _ = select.select([self._master], [], [], 60)
        try:
            data = os.read(self._master, 4096) if ready else b""
        except OSError:  # Linux: the child closed its end
            data = b""
        assert data, f"{awaited!r} did not come; there was {self.seen!r}"
        self.seen += data.decode("utf-8", "replace")

    def leave(self) -> int:
        """Type /exit; the exit code."""
        self.type("/exit\n")
        return self.wait()

    def wait(self) -> int:
        return self._child.wait(60)

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        os.close(self._master)


@pytest.fixture
def terminal(
    tmp_path: Path, cache: Path, tiny_model: Callable[[str], Path]
) -> Iterator[Callable[[], Terminal]]:
    """``terminal()``: a conversation that has begun."""
    if os.name == "nt":
        pytest.skip("needs a pseudo terminal")
    opened: list[Terminal] = []

    def start() -> Terminal:
        fixed = ("chat", "-m", tiny_model("llama"), "--threads", "1", "--ctx", "32000")
        command = [sys.executable, "-m", "edge_tr.cli", *map(str, fixed), "--tree", "off"]
        directories = {"EDGE_TR_DATA_DIR": str(tmp_path), "EDGE_TR_CACHE_DIR": str(cache)}
        child = Terminal(command, directories | {"TERM": "dumb"})
        opened.append(child)
        child.wait_for("/help tells the commands")
        child.wait_for("> ")
        return child

    yield start
    for child in opened:
        child.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Callable[[], Terminal]) -> None:
    child = terminal()
    child.type("Hello\n")
    child.wait_for("Hello\r\n")
    child.wait_for_any()
    child.interrupt()
    child.wait_for("edge-tr: interrupted")
    child.wait_for("> ")
    child.type("/stats\n")
    child.wait_for("interrupted")
    assert child.leave() == 0


def test_ctrl_c_at_the_prompt_says_how_to_leave(terminal: Callable[[], Terminal]) -> None:
    child = terminal()
    child.interrupt_until("/exit or Ctrl-D leaves")
    child.wait_for("> ")
    assert child.leave() == 0


def test_ctrl_d_leaves(terminal: Callable[[], Terminal]) -> None:
    child = terminal()
    child.type("\x04")
    assert child.wait() == 0


def test_what_was_typed_is_remembered(terminal: Callable[[], Terminal], tmp_path: Path) -> None:
    child = terminal()
    child.type("/system remembered\n")
    child.wait_for("system: remembered")
    assert child.leave() == 0
    history = tmp_path / "chat_history"
    assert "/system remembered" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_loading_is_told(chat: Chat) -> None:
    assert "edge-tr: loading llama.gguf (" in chat()[2]
