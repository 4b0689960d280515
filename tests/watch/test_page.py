"""The page in a real headless Chromium: what a person sees and does, and what the page must never do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_server import record, serving, until, values

from danlu.watch import facts
from danlu.watch.histogram import histogram
from danlu.watch.report import write_report
from danlu.watch.server import health
from danlu.watch.store import Recorder

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
if CHROMIUM is None and not os.environ.get("CI"):
    pytest.skip("no Chromium on this machine (Debian: apt-get install chromium); make browser-test", allow_module_level=True)

from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402

expect.set_options(timeout=20_000)
HOSTILE = "<img src=x onerror=\"document.title='pwned'\"></script><script>document.title='pwned'</script>"
STEPS = 6000
FINDING = {
    "rule": "spike",
    "severity": "warning",
    "confidence": 0.9,
    "step": 3000,
    "verdict": {"en": f"The loss spikes {HOSTILE}", "zh": "损失突增"},
    "why": [{"en": "5 at step 3000", "zh": "第 3000 步为 5"}],
    "next": {"en": "Lower the rate", "zh": "降低学习率"},
    "patch": {"train.optimizer.learning_rate": 1e-4},
    "considered": [],
    "chart": None,
    "symptoms": [],
}


def diagnose(_: Path) -> dict[str, object]:
    return {"name": "x", "worst": "warning", "findings": [FINDING], "silent": ["a"], "not_enough_data": {}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, and one whose every text is hostile."""
    root = tmp_path_factory.mktemp("runs")
    record(root / "first", range(1, STEPS + 1), noise=0.5)
    record(root / "second", range(1, 2001), noise=0.5)
    hostile = record(root / HOSTILE.replace("/", "∕"), range(1, 61))
    with Recorder.open(hostile / "metrics.sqlite") as recorder:
        recorder.start_segment(61, {})
        recorder.event(61, HOSTILE, HOSTILE)
        recorder.scalars(
            61, {HOSTILE: 1.0, f"layer/{HOSTILE}/update_rms": 1.0, "layer/b/update_rms": 2.0, "system/cpu_cores@1": 3.0}
        )
        recorder.histograms(61, {f"layer/{HOSTILE}/update": histogram([1.0, -2.0, 0.0])})
    (hostile / "samples.json").write_text('[{"prompt": "' + HOSTILE.replace('"', '\\"') + '", "text": "x"}]', encoding="utf-8")
    (hostile / "recipe.yaml").write_text("name: '" + HOSTILE.replace("'", "''") + "'\n", encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test if its script fails, or if it asks any other host for anything."""
    context = browser.new_context(locale="en-US", viewport={"width": 1300, "height": 900})
    page = context.new_page()
    page.set_default_timeout(20_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    own = ("http://127.0.0.1:", "file://", "data:")
    context.on("request", lambda request: None if request.url.startswith(own) else wrong.append(request.url))
    yield page
    context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with serving(root, diagnose=diagnose) as address:
        yield address


def opened(page: Page, address: str, place: str = "") -> None:
    page.goto(f"{address}/{place}")
    page.wait_for_selector(".chart[data-drawn]")
    page.wait_for_selector("#doctor:not(.pending)")  # its size moves what is below it
    until(lambda: page.evaluate("charts.charts.every((one) => !one.inSight || !(one.stale || one.loading))"))


def shown_x(page: Page) -> list[float]:
    """First and last place on the axis of the first chart, once it is drawn."""
    until(lambda: page.evaluate("Boolean(charts.charts[0].drawn)"))
    found: list[float] = page.evaluate("charts.charts[0].span()")
    return found


def test_the_first_screen_says_whether_the_run_is_healthy(page: Page, address: str) -> None:
    opened(page, address, "#run=first")
    expect(page.locator("#name")).to_have_text("first")
    expect(page.locator("#status")).to_have_text("finished")
    expect(page.locator("#progress")).to_contain_text("Step 6,000 of 6,000 100%")
    expect(page.locator("#doctor")).to_contain_text("Something costs quality or time")
    expect(page.locator("#doctor .finding")).to_contain_text("train.optimizer.learning_rate=0.0001")
    expect(page.locator("#headline .tile")).not_to_have_count(0)
    top = [page.locator(place).first.bounding_box() for place in ("#doctor", "#headline", "#curves .chart")]
    assert all(box is not None and box["y"] < 900 for box in top), "all of it without scrolling"
    expect(page.locator(".chart .caption").first).to_contain_text("of 6,120 points shown, extremes kept")


def test_a_zoom_fetches_full_detail_and_a_link_carries_it(page: Page, address: str) -> None:
    opened(page, address, "#run=first")
    box = page.locator(".chart .u-over").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + 50, steps=4)
    page.mouse.up()
    low, high = shown_x(page)
    assert 0.38 * STEPS < low < 0.42 * STEPS and 0.43 * STEPS < high < 0.47 * STEPS
    expect(page.locator(".chart .caption").first).not_to_contain_text("extremes kept")
    drawn = "charts.charts[0].found['train/loss'].first.x"
    until(lambda: (points := page.evaluate(drawn)) == list(range(int(points[0]), int(points[-1]) + 1)))
    points = page.evaluate(drawn)
    assert points[0] <= low and points[-1] >= high
    assert page.evaluate("charts.charts[1].span()") == [low, high], "the charts go together"
    link = page.url
    assert "from=" in link and "to=" in link
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector(".chart[data-drawn]")
    assert shown_x(page) == pytest.approx([low, high], rel=1e-6)
    page.locator(".chart .u-over").first.dblclick()
    until(lambda: shown_x(page) == [1, STEPS])
    assert "from=" not in page.url


def test_a_new_step_is_on_the_page_without_a_reload(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "ALIVE_SECONDS", 2.5)
    folder = tmp_path / "live"
    folder.mkdir()
    recorder = Recorder.open(folder / "metrics.sqlite")
    recorder.start_segment(1, {"steps": 100})
    for step in range(1, 11):
        recorder.scalars(step, values(step))
    recorder.flush()
    newest = "charts.charts[0].found['train/loss'].live.x.at(-1)"
    with serving(tmp_path) as address:
        opened(page, address)
        expect(page.locator("#status")).to_have_text("running")
        recorder.scalars(11, values(11) | {"my/own": 4.5})
        until(lambda: page.evaluate(newest) == 11)
        page.context.set_offline(True)  # a laptop that sleeps
        recorder.scalars(12, values(12))
        recorder.event(12, "resume", "while nobody looked")
        recorder.event(12, "sample", "The furnace glows", prompt="The ")
        recorder.flush()
        page.context.set_offline(False)
        until(lambda: page.evaluate(newest) == 12)
        expect(page.locator("#events")).to_contain_text("while nobody looked")
        expect(page.locator("#charts")).to_contain_text("my/own")
        expect(page.locator("#samples .sample")).to_have_text("after step 12The furnace glows")
        recorder.close()
        expect(page.locator("#status")).to_have_text("broken off")


def test_the_doctor_is_asked_again_until_it_has_seen_the_newest_step(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LEAST_SECONDS", 1.0)
    record(tmp_path / "live", range(1, 11), ends=None)
    with serving(tmp_path, diagnose=diagnose) as address:
        opened(page, address)
        expect(page.locator("#doctor")).to_contain_text("step 10")
        record(tmp_path / "live", range(11, 21))
        expect(page.locator("#status")).to_have_text("finished")
        expect(page.locator("#doctor")).to_contain_text("step 20")


def test_runs_side_by_side(page: Page, address: str) -> None:
    opened(page, address, "#run=first&run=second")
    until(lambda: page.evaluate("charts.charts[0].lines.length") == 4)
    expect(page.locator("#runs-count")).to_have_text("2 of 3 drawn")
    for axis, last in (("tokens", STEPS * 1000.0), ("flops", STEPS * 2e9)):
        page.locator("#axis").select_option(axis)
        until(lambda last=last: page.evaluate("Math.max(...charts.charts[0].drawn.map((one) => one.xs.at(-1)))") == last)
        assert f"x={axis}" in page.url
    page.locator("#axis").select_option("time")
    until(lambda: 0 < page.evaluate("Math.max(...charts.charts[0].drawn.map((one) => one.xs.at(-1)))") < 1000)
    page.locator("#axis").select_option("step")
    page.get_by_label("Draw second").uncheck()
    until(lambda: page.evaluate("charts.charts[0].lines.length") == 2)
    page.locator("[data-focus=second]").click()
    expect(page.locator("#name")).to_have_text("second")
    page.locator("#runs-filter").fill("sec")
    expect(page.locator("#run-list li")).to_have_count(1)
    page.locator("#filter").fill("gradient")
    expect(page.locator(".chart:visible")).to_have_count(1)


def test_smoothing_leaves_the_raw_curve_behind(page: Page, address: str) -> None:
    opened(page, address, "#run=first")
    kinds = "charts.charts[0].drawn.map((one) => one.kind)"
    assert page.evaluate(kinds) == ["behind", "smooth", "raw"]
    page.locator("#smoothing").fill("0")
    assert page.evaluate(kinds) == ["raw", "raw"] and "smooth=0" in page.url
    page.locator(".chart .log").first.click()
    assert page.evaluate("charts.charts[0].plot.scales.left.distr") == 3 and "log=loss" in page.url
    page.locator("#log-x").check()
    until(lambda: page.evaluate("charts.charts[0].plot.scales.x.distr") == 3)


def test_by_the_keyboard_alone(page: Page, address: str) -> None:
    opened(page, address, "#run=first")
    page.keyboard.press("+")
    low, high = shown_x(page)
    assert high - low == pytest.approx((STEPS - 1) / 2)
    page.keyboard.press("ArrowRight")
    assert shown_x(page)[0] > low
    page.keyboard.press("0")
    until(lambda: shown_x(page) == [1, STEPS])
    page.keyboard.press("x")
    expect(page.locator("#axis")).to_have_value("tokens")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("memory")
    expect(page.locator("#filter")).to_be_focused()
    expect(page.locator(".chart:visible")).to_have_count(1)
    page.keyboard.press("Escape")
    for _ in range(150):  # everything can be reached, though a chart that comes in takes the focus back to the start
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('log')"):
            break
    page.keyboard.press("Enter")
    expect(page.locator(".log[aria-pressed=true]")).to_have_count(1)


def test_both_languages_and_both_themes(page: Page, address: str) -> None:
    opened(page, address, "#run=first")
    page.get_by_role("button", name="中文").click()
    expect(page.locator("#status")).to_have_text("已完成")
    expect(page.locator("#doctor .finding")).to_contain_text("损失突增")
    expect(page.locator(".chart h3").first).to_have_text("损失")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.reload()
    expect(page.locator("#status")).to_have_text("已完成")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_a_narrow_screen(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    opened(page, address, "#run=first&run=second")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    box = page.locator(".chart").first.bounding_box()
    assert box is not None and box["width"] > 300


def test_hostile_names_and_texts_stay_text(page: Page, address: str) -> None:
    from urllib.parse import quote

    opened(page, address, "#run=" + quote(HOSTILE.replace("/", "∕"), safe=""))
    expect(page.locator("#name")).to_have_text(HOSTILE)
    for place in ("#events", "#samples", "#charts", "#run-list", "#doctor", "#layers", "#recipe"):
        expect(page.locator(place)).to_contain_text("<img src=x onerror=")
    assert page.locator("img").count() == 0 and "pwned" not in page.evaluate("document.title.slice(0, 6)")
    expect(page.locator("#pictures canvas")).to_have_count(2)


@pytest.mark.parametrize("place", ["#run=nope&focus=nope&x=nope&from=a&to=b&smooth=1e9&log=%00", "#" + "run=x&" * 3000])
def test_an_address_that_means_nothing(page: Page, address: str, place: str) -> None:
    opened(page, address, place)
    expect(page.locator("#name")).not_to_be_empty()


def test_the_report_draws_the_same_from_a_file(page: Page, root: Path) -> None:
    said = {"state": "ready", "step": STEPS, "current": True, **diagnose(root)}
    page.goto(write_report(root / "first", said).as_uri())
    page.wait_for_selector(".chart[data-drawn]")
    expect(page.locator("#status")).to_have_text("finished")
    expect(page.locator(".chart .caption").first).to_contain_text("of 6,120 points shown, extremes kept")
    expect(page.locator("#doctor .finding")).to_contain_text("The loss spikes")
    page.locator("#axis").select_option("tokens")
    until(lambda: shown_x(page) == [1000, STEPS * 1000])
    page.keyboard.press("+")
    assert shown_x(page)[0] > 1_000_000
    hostile = next(folder for folder in root.iterdir() if folder.name.startswith("<img"))
    page.goto(write_report(hostile).as_uri())
    expect(page.locator("#pictures canvas")).to_have_count(2)
    assert page.locator("img").count() == 0
