"""The page in the system's Chromium: every view in both colours and two widths, by keyboard, live, and against hostile names."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refold.engine.engine import Engine
from refold.stores.memory import MemoryStore
from tests.dashboard.browser import CHROMIUM, FLAGS
from tests.dashboard.conftest import ServedPage, serve
from tests.dashboard.hostile import PAYLOADS

if CHROMIUM is None:
    pytest.skip("there is no Chromium here: apt-get install chromium", allow_module_level=True)
# Where there is a Chromium, these tests run or fail: a missing package is no reason to skip them.
import axe_playwright_python
from playwright import sync_api as playwright

PARSER = "/conversations/agents~1parser"
VIEWS = {
    "home": "/",
    "search": "/search?words=ferry",
    "effect": "/effect?days=30",
    "settings": "/settings",
    "operations": "/operations",
    "conversation": PARSER,
    "compact": f"{PARSER}/compact",
    "preview": f"{PARSER}/preview",
    "pins": f"{PARSER}/pins",
    "replay": f"{PARSER}/replay",
    "delete": f"{PARSER}/delete",
    "missing": "/conversations/nope",
}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


class Tab:
    """A tab, with everything that it complained about and every host that it asked."""

    def __init__(self, browser, url: str, *, width: int = 1280, theme: str = "light") -> None:
        self.url, self.said, self.hosts, self.failed = url, list[str](), set[str](), set[tuple[str, str]]()
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        self.context.set_default_timeout(15_000)
        self.page = self.context.new_page()
        self.page.on(
            "console", lambda one: self.said.append(one.text) if one.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda one: self.said.append(str(one)))
        self.page.on(
            "request", lambda one: self.hosts.add(one.url.split("/")[2] if "//" in one.url else one.url[:40])
        )

        self.page.on("requestfailed", lambda one: self.failed.add((one.url.split("/")[2], one.failure)))

    def open(self, path: str):
        self.page.goto(f"{self.url}{path}")
        self.page.wait_for_selector("html[data-ready]")
        return self.page

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def tab(browser, page):
    made = Tab(browser, page.url)
    yield made
    made.close()


def test_the_button_for_the_colours_follows_those_of_the_system(tab):
    opened = tab.open("/")
    button = opened.locator("[data-theme-switch]")
    assert button.text_content() == "Dark"
    opened.emulate_media(color_scheme="dark")
    playwright.expect(button).to_have_text("Light")
    opened.emulate_media(color_scheme="light")
    playwright.expect(button).to_have_text("Dark")
    button.click()
    opened.emulate_media(color_scheme="dark")
    playwright.expect(button).to_have_text("Light")


def findings(tab_page) -> list[str]:
    """What axe finds serious, by its own words."""
    source = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    tab_page.evaluate(source)
    found = tab_page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then((one) => one.violations)"
    )
    return [
        f"{one['id']}: {one['help']} {[node['target'] for node in one['nodes'][:3]]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize(
    ("width", "theme"), [pytest.param(1280, "light", marks=pytest.mark.slow), (390, "dark")]
)
def test_every_view_works_without_a_complaint_and_asks_no_other_host(browser, page, width, theme):
    tab = Tab(browser, page.url, width=width, theme=theme)
    try:
        for name, path in VIEWS.items():
            opened = tab.open(path)
            assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                f"{name} is too wide"
            )
            assert opened.locator("h1").count() == 1, name
            assert opened.locator("main").count() == 1, name
        allowed = {"Failed to load resource: the server responded with a status of 404 (Not Found)"}
        assert set(tab.said) <= allowed
        assert tab.hosts == {page.url.removeprefix("http://")}
    finally:
        tab.close()


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
def test_no_view_is_too_wide_and_none_has_a_serious_finding(browser, page, width, theme):
    tab = Tab(browser, page.url, width=width, theme=theme)
    try:
        for name, path in VIEWS.items():
            opened = tab.open(path)
            assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
            assert findings(opened) == [], name
    finally:
        tab.close()


def test_the_bars_of_the_list_have_their_style(tab):
    assert tab.open("/").locator(".window-bar").first.bounding_box()["height"] == 8


def test_colours_follow_the_system_and_the_switch_is_kept(tab):
    opened = tab.open("/")
    light = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    opened.get_by_role("button", name="Use dark colours").click()
    dark = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    assert tab.open("/settings").evaluate("getComputedStyle(document.body).backgroundColor") == dark
    opened.emulate_media(color_scheme="dark")
    opened.get_by_role("button", name="Use light colours").click()
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == light


def test_a_conversation_is_compacted_by_keyboard_alone(tab, page):
    write(page, "by keyboard", 14)
    opened = tab.open("/")
    keys = opened.keyboard
    keys.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Skip to the content"
    keys.press("Enter")
    assert opened.evaluate("document.activeElement.id") == "main"

    def press_until(test: str, most: int = 80) -> None:
        for _ in range(most):
            if opened.evaluate(f"({test})(document.activeElement)"):
                return
            keys.press("Tab")
        raise AssertionError(f"the keyboard does not reach {test}")

    press_until("one => one.textContent.trim() === 'by keyboard'")
    keys.press("Enter")
    opened.wait_for_url("**/conversations/by%20keyboard")
    opened.wait_for_selector("html[data-ready]")
    press_until("one => one.textContent.trim() === 'Compact' && one.closest('nav.tabs')")
    keys.press("Enter")
    opened.wait_for_url("**/compact")
    opened.wait_for_selector("html[data-ready]")
    press_until("one => one.id === 'keep'")
    keys.type("1000")
    press_until("one => one.matches('button.main')")
    keys.press("Enter")
    opened.wait_for_url("**done=compacted")
    assert opened.get_by_role("status").filter(has_text="The conversation was compacted.").is_visible()


def test_the_page_changes_while_somebody_looks(tab, page):
    write(page, "watched", 3)
    opened = tab.open("/?words=watched")
    row = opened.locator("#conversations tbody tr")
    assert "6" in row.locator("td.num").first.inner_text()
    opened.wait_for_selector("[data-live-state][data-state=on]")

    async def grow() -> None:
        host = await page.gateway.host("local")
        chat = await host.engine.conversation("watched")
        await chat.add({"role": "user", "content": "one more"})
        await chat.context()
        await chat.record({"prompt_tokens": 50, "completion_tokens": 5})

    page.run(grow)
    playwright.expect(row.locator("td.num").first).to_have_text("7")


def test_a_name_is_shown_with_all_of_its_spaces(tab, page):
    write(page, "two  spaces", 1)
    opened = tab.open("/conversations/two%20%20spaces/delete")
    assert opened.locator("h1").inner_text() == "two  spaces"
    assert "two  spaces" in opened.locator("label[for=confirm]").inner_text()


def test_a_part_with_the_focus_catches_up_when_the_focus_has_left(tab, page):
    write(page, "focused", 3)
    opened = tab.open("/?words=focused")
    opened.wait_for_selector("[data-live-state][data-state=on]")
    opened.locator("#conversations .scroll").focus()

    async def switch_off() -> None:
        host = await page.gateway.host("local")
        await host.engine.switch("focused", on=False)
        page.gateway.events.note_change("local", "focused")

    with opened.expect_response(lambda one: one.url.endswith("/?words=focused")) as found:
        page.run(switch_off)
    found.value.finished()
    assert opened.locator("#conversations .tag", has_text="off").count() == 0

    opened.locator("#words").focus()
    playwright.expect(opened.locator("#conversations .tag", has_text="off")).to_have_count(1)


def test_the_page_is_live_during_the_demo(browser):
    """`refold demo` on a terminal tells the address of its page, where the calls appear without a reload."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "refold", "demo", "--speed", "2"]
    with subprocess.Popen(command, stdout=end, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stderr.readline().rpartition(" ")[2].strip().rstrip("/")
            tab = Tab(browser, url)
            opened = tab.open("/")
            opened.evaluate("window.isFirst = true")
            opened.locator("a[href='/conversations/demo']").first.wait_for()
            assert opened.evaluate("window.isFirst"), "the row came without a reload"
            opened = tab.open("/conversations/demo")
            opened.evaluate("window.isFirst = true")
            before = opened.locator("a.target").count()
            opened.locator("a.target").nth(before + 2).wait_for(state="attached")
            assert opened.evaluate("window.isFirst")
            assert tab.said == []
            tab.close()
        finally:
            process.send_signal(signal.SIGINT)
            process.stderr.read()
            os.close(end)
            os.close(terminal)


@pytest.mark.parametrize(
    ("width", "theme"), [pytest.param(1280, "light", marks=pytest.mark.slow), (390, "dark")]
)
def test_a_replay_is_drawn_when_it_is_done_and_read_by_keyboard(browser, page, width, theme):
    tab = Tab(browser, page.url, width=width, theme=theme)
    try:
        opened = tab.open(f"{PARSER}/replay")
        opened.get_by_label("Window").select_option("4000")
        opened.get_by_role("button", name="Replay").press("Enter")
        opened.wait_for_selector("#result figure svg")  # the page looks again by itself
        assert opened.locator("#result figure circle").count() == 6
        opened.locator("#over-time").get_by_role("link", name="opal", exact=True).press("Enter")
        opened.wait_for_url("**shown=opal*")
        opened.wait_for_selector("html[data-ready]")
        opened.locator("a.target[tabindex='0']").focus()
        opened.keyboard.press("Home")
        assert opened.locator("[data-told]").inner_text().startswith("call 1:")
        opened.keyboard.press("Enter")
        opened.wait_for_url("**call=1#over-time")
        assert "Call 1:" in opened.locator("#over-time .card").inner_text()
        assert findings(opened) == []
        assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.said == []
        assert tab.hosts == {page.url.removeprefix("http://")}
    finally:
        tab.close()


@pytest.mark.slow
def test_hostile_texts_are_shown_as_texts(browser):
    """Names, titles, tools and messages that would act if they were anything but text."""
    assert len(PAYLOADS) >= 60
    store = MemoryStore()
    with serve(store) as page:
        page.run(lambda: write_hostile(store))
        tab = Tab(browser, page.url)
        try:
            opened = tab.open("/?limit=100")
            assert opened.locator("#conversations tbody tr").count() == len(PAYLOADS)
            urls = opened.eval_on_selector_all(".name a", "all => all.map((one) => one.getAttribute('href'))")
            assert len(set(urls)) == len(PAYLOADS)
            check_harmless(tab)
            for url in urls[:: max(1, len(urls) // 3)]:
                opened = tab.open(url)
                check_harmless(tab)
                tab.open(f"{url}/compact")
                opened.wait_for_selector("#preview .head")
                opened.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
                check_harmless(tab)
                tab.open(f"{url}/delete")
                check_harmless(tab)
            tab.open(
                "/search?words=%3C%2Fscript%3E%3Cscript%3Epwned%3D1%3C%2Fscript%3E%22%20onfocus%3D%22pwned%3D1"
            )
            check_harmless(tab)
            tab.open("/effect?by=conversation")
            check_harmless(tab)
            assert tab.hosts == {page.url.removeprefix("http://")}
        finally:
            tab.close()


def check_harmless(tab: Tab) -> None:
    page = tab.page
    assert page.evaluate("typeof pwned") == "undefined"
    assert page.locator("img, iframe, object, embed, base, svg script, math").count() == 0
    assert page.locator("script:not([src^='/static/'])").count() == 0
    assert page.evaluate(
        "[...document.querySelectorAll('*')].every((one) => ![...one.attributes].some((a) => a.name.startsWith('on')))"
    )
    shown = page.evaluate("document.body.innerText")
    assert not {"\u202e", "\u2066", "\u200b"} & set(shown)


def test_an_injected_script_does_not_run(tab):
    opened = tab.open("/")
    opened.evaluate(
        """() => {
            const one = document.createElement("script"); one.textContent = "window.pwned = 1"; document.body.append(one);
            const other = document.createElement("div"); other.innerHTML = '<img src=x onerror="window.pwned = 1">'; document.body.append(other);
            const far = document.createElement("script"); far.src = "https://example.com/x.js"; document.body.append(far);
            const style = document.createElement("style"); style.textContent = "body { display: none }"; document.head.append(style);
        }"""
    )
    opened.evaluate("fetch('https://example.com/').catch(() => {})")
    assert opened.evaluate("typeof window.pwned") == "undefined"
    assert opened.evaluate("getComputedStyle(document.body).display") != "none"
    assert any("Content Security Policy" in one for one in tab.said)
    assert {host for host, why in tab.failed if why == "csp"} == {"example.com"}


def test_a_person_signs_in_and_out(browser):
    store = MemoryStore()
    with serve(store) as page:
        key = page.make_key("anna")
        tab = Tab(browser, page.url)
        try:
            opened = tab.open("/effect?days=7")
            assert opened.url.endswith("/sign-in?next=%2Feffect%3Fdays%3D7")
            opened.get_by_label("Key").fill(key)
            opened.keyboard.press("Enter")
            opened.wait_for_url("**/effect?days=7")
            assert opened.evaluate("document.cookie") == ""
            opened.get_by_role("button", name="Sign out").click()
            opened.wait_for_url("**/sign-in?done=signed-out")
        finally:
            tab.close()


def write(page: ServedPage, name: str, turns: int) -> None:
    async def act() -> None:
        engine = Engine(page.store, model="gpt-4o", window=12_000, embedder=None)
        chat = await engine.conversation(name, title=name)
        for turn in range(turns):
            await chat.add({"role": "user", "content": f"Question {turn} " + "about the ferry " * 40})
            await chat.add({"role": "assistant", "content": f"Answer {turn} " + "it leaves at noon " * 60})
        await engine.rest()

    page.run(act)


async def write_hostile(store: MemoryStore) -> None:
    engine = Engine(store, model="gpt-4o", window=12_000, embedder=None, clock=time.time)
    for at, text in enumerate(PAYLOADS):
        printable = "".join(one for one in text if one.isprintable())[:180] or "x"
        chat = await engine.conversation(f"{at} {printable}", title=text)
        call = {"id": "c1", "type": "function", "function": {"name": text[:60] or "x", "arguments": "{}"}}
        await chat.add({"role": "user", "content": text * 3})
        await chat.add({"role": "assistant", "content": text, "tool_calls": [call]})
        await chat.add({"role": "tool", "tool_call_id": "c1", "content": text * 20})
    await engine.rest()
