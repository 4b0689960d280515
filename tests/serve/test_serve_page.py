"""The page at / in a real headless Chromium: a model is asked, and what it says stays text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from answering import Server, serving

from danlu.data.tokenizer import Tokenizer
from danlu.serve.torch_executor import TorchExecutor

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
if CHROMIUM is None and not os.environ.get("CI"):
    pytest.skip("no Chromium on this machine (Debian: apt-get install chromium); make browser-test", allow_module_level=True)

from playwright.sync_api import Page, expect, sync_playwright  # noqa: E402

expect.set_options(timeout=20_000)
HOSTILE = "<img src=x onerror=\"document.title='pwned'\">"


@pytest.fixture(scope="module")
def server(executor_of: Callable[..., TorchExecutor], tokenizer: Tokenizer) -> Iterator[Server]:
    with serving(executor_of(blocks=256, max_sequence_length=2048), tokenizer, api_key="key") as made:
        yield made


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_context(locale="en-US", viewport={"width": 360, "height": 740})
        browser.close()


@pytest.fixture
def page(context: Any, server: Server) -> Iterator[Page]:
    """The page, opened; it fails the test if its script fails or if it asks any other host for anything."""
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith((server.address, "data:")) else wrong.append(request.url))
    page.goto(f"{server.address}/")
    expect(page.locator("#model")).to_have_text("tiny")
    page.locator("#key").fill("key")
    page.locator("#temperature").fill("0")
    page.locator("#tokens").fill("12")
    yield page
    page.close()
    assert wrong == []


def say(page: Page, text: str) -> None:
    page.locator("#text").fill(text)
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_be_enabled()


def test_a_conversation(page: Page, server: Server) -> None:
    messages: list[Any] = []
    for number, text in enumerate(["the quick 炉火", HOSTILE]):
        messages.append({"role": "user", "content": text})
        made = server.client.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=12)
        answer = made.choices[0].message.content
        messages.append({"role": "assistant", "content": answer})
        say(page, text)
        expect(page.locator("article.user").nth(number)).to_have_text(text)
        assert page.locator("article.assistant").nth(number).evaluate("it => it.textContent") == answer
        expect(page.locator("#figures")).to_contain_text("tokens/s · first after")
        assert made.usage is not None
        # The second time, all of the prompt but its last token is in the cache.
        expect(page.locator("#figures")).to_contain_text(f"{made.usage.prompt_tokens - 1} of {made.usage.prompt_tokens} prompt")
    assert page.locator("img").count() == 0 and page.title() == "danlu serve"
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("#clear").click()
    expect(page.locator("article")).to_have_count(0)


def test_a_text_is_continued(page: Page, server: Server) -> None:
    page.locator("#mode").select_option("completion")
    say(page, "the quick")
    made = server.client.completions.create(model="tiny", prompt="the quick", temperature=0, max_tokens=12)
    assert page.locator("article.assistant").evaluate("it => it.textContent") == made.choices[0].text


def test_an_answer_is_stopped(page: Page, server: Server) -> None:
    page.locator("#tokens").fill("1900")
    page.locator("#text").fill("the")
    page.locator("#send").click()
    expect(page.locator("article.assistant")).not_to_be_empty()
    page.locator("#stop").click()
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("#send")).to_be_enabled()
    assert page.locator("article.error").count() == 0


@pytest.mark.parametrize("wrong", ["key", "text", "network"])
def test_what_is_refused_is_told(page: Page, wrong: str) -> None:
    if wrong == "key":
        page.locator("#key").fill("another")
    if wrong == "network":
        page.route("**/v1/**", lambda route: route.abort())
    say(page, "the " * (4000 if wrong == "text" else 1))
    expected = {"key": "the API key is missing or wrong", "text": "shorten the prompt", "network": "Failed to fetch"}[wrong]
    expect(page.locator("article.error")).to_contain_text(expected)
    page.unroute_all()
    page.locator("#key").fill("key")
    say(page, "the")
    assert page.locator("article.assistant").last.evaluate("it => it.textContent")
