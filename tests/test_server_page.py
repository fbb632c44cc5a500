"""The page at / in a real browser: chat, drafted tokens marked, statistics."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from serving import Running, held, serving

from edge_tr.drafts.template import TreeTemplate

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium; on Debian: apt install chromium"
)


@pytest.fixture(scope="module")
def running(tiny_model: Callable[[str], Path]) -> Iterator[Running]:
    tree = TreeTemplate.from_breadths([3, 2])
    with serving(tiny_model("llama"), n_ctx=4096, tree=tree) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, running: Running) -> Iterator[Page]:
    """The open page; a test fails when it asks for anything that is not of this server."""
    foreign: list[str] = []
    faults: list[str] = []

    def on_request(request: Request) -> None:
        if not request.url.startswith((running.url, "data:")):
            foreign.append(request.url)

    def on_message(message: ConsoleMessage) -> None:
        if message.type == "error" and "the server responded with a status" not in message.text:
            faults.append(message.text)

    page = browser.new_page()
    page.on("request", on_request)
    page.on("console", on_message)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(running.url)
    yield page
    page.close()
    assert foreign == []
    assert faults == []


def ask(page: Page, text: str, n: int, max_tokens: int = 200) -> Locator:
    """Send a message; the box of answer ``n`` once it is complete."""
    page.get_by_text("Settings").click()
    page.get_by_label("Most tokens").fill(str(max_tokens))
    page.get_by_text("Settings").click()
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")
    box = page.locator(".assistant").nth(n)
    page.wait_for_selector(f".assistant[data-done] >> nth={n}")
    return box


def test_an_answer_appears(page: Page) -> None:
    assert ask(page, "Hello", 0).inner_text()


def test_drafted_tokens_are_marked(page: Page) -> None:
    box = ask(page, "1 2 3 4 5 6 7 8 9 10", 0, max_tokens=1000)
    assert box.locator(".drafted").count() > 0
    assert box.locator("span:not(.drafted)").count() > 0


def test_statistics_tell_speed_and_mat(page: Page) -> None:
    ask(page, "Hello", 0)
    told = page.locator("#stats").inner_text()
    assert "tokens/s" in told
    assert "MAT " in told


def test_a_second_turn_reuses_the_first(page: Page) -> None:
    ask(page, "Hello", 0)
    _, n_first = prompt_tokens(page)
    ask(page, "and then", 1)
    n_reused, _ = prompt_tokens(page)
    assert n_reused >= n_first - 1


def prompt_tokens(page: Page) -> tuple[int, int]:
    """Reused tokens of the last prompt, and all of it."""
    words = page.locator("#stats").inner_text().split(" · ")[-1].split()
    return int(words[0]), int(words[2])


def test_stop_keeps_what_was_written(
    page: Page, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(running.service.session, 5, monkeypatch):
        page.get_by_label("Message").fill("Hello")
        page.get_by_label("Message").press("Enter")
        page.wait_for_selector(".assistant span")
        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector(".assistant[data-done]")
    assert page.locator(".assistant span").count() > 0


def test_an_error_is_shown(page: Page) -> None:
    page.get_by_label("Message").fill("word " * 5000)
    page.get_by_label("Message").press("Enter")
    page.wait_for_selector(".error")
    assert "a context of 4096" in page.locator(".error").inner_text()
