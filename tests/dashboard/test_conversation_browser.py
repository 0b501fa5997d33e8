"""The pages of one conversation in the system's Chromium: pointing, keys, live pictures, and what axe says about every view."""

from __future__ import annotations

import pytest

from refold.engine.actions import record
from refold.engine.engine import OWNER, Engine
from refold.engine.history import timeline_of
from refold.model.tokens import Usage
from refold.stores.memory import MemoryStore
from tests.agent_session import SYSTEM, TOOLS, CachedPrompts, play
from tests.dashboard.browser import CHROMIUM
from tests.dashboard.conftest import serve

if CHROMIUM is None:
    pytest.skip("there is no Chromium here: apt-get install chromium", allow_module_level=True)
from tests.dashboard.test_browser import Tab, browser, findings

__all__ = ["browser"]
NAME, URL = "agent", "/conversations/agent"


class ServedModel:
    """A page with one conversation of an agent, which can go on."""

    def __init__(self, page, prompts: CachedPrompts, calls: int) -> None:
        self.page, self._prompts, self._calls = page, prompts, calls

    @property
    def line(self):
        return self.page.run(lambda: timeline_of(self.page.store, OWNER, NAME))

    def go_on(self) -> None:
        async def act() -> None:
            host = await self.page.gateway.host(OWNER)
            talk = await host.engine.conversation(NAME, window=6_000)
            await play(talk, 1, first=self._calls, prompts=self._prompts)

        self.page.run(act)
        self._calls += 1


@pytest.fixture(scope="module")
def served():
    store, prompts = MemoryStore(), CachedPrompts()

    async def fill() -> None:
        talk = await Engine(store, model="gpt-4o", window=6_000).conversation(
            NAME, system=SYSTEM, tools=TOOLS
        )
        await play(talk, 40, prompts=prompts)
        await talk.compact(keep=300)
        await play(talk, 4, first=40, prompts=prompts)
        asked = await Engine(store, model="gpt-4o", window=6_000).conversation("asked")
        await asked.add({"role": "user", "content": "Which ship?"})
        await asked.context()
        usage = Usage(20, output=4)
        reply = b'{"messages": [{"role": "assistant", "content": "The Vik."}], "is_whole": true}'
        await asked.record_call(lambda state: record(state, usage), usage, reply=reply)

    with serve(store, compaction_window="6000") as page:
        page.run(fill)
        yield ServedModel(page, prompts, 44)


@pytest.fixture
def tab(browser, served):
    made = Tab(browser, served.page.url)
    yield made
    assert made.said == []
    made.close()


def test_pointing_at_a_call_tells_about_it(tab, served):
    opened, call = tab.open(URL), served.line.replies[20]
    told = opened.locator("[data-told]")
    assert told.is_hidden()

    opened.locator("a.target").nth(20).hover()

    told.wait_for(state="visible")
    assert told.inner_text().startswith(f"call {call.number}: {call.tokens:,} tokens")
    opened.locator("h1").hover()
    told.wait_for(state="hidden")


def test_the_keyboard_reaches_every_call_through_one_tab_stop(tab, served):
    opened, replies = tab.open(URL), served.line.replies
    assert opened.locator("a.target[tabindex='0']").count() == 1
    opened.locator("a.target[tabindex='0']").focus()

    for key in ("ArrowLeft", "ArrowLeft", "ArrowRight"):
        opened.keyboard.press(key)
    told = opened.locator("[data-told]").inner_text()
    assert told.startswith(f"call {replies[-2].number}:")
    opened.keyboard.press("Home")
    assert opened.locator("[data-told]").inner_text().startswith(f"call {replies[0].number}:")
    opened.keyboard.press("Enter")
    opened.wait_for_url(f"**call={replies[0].number}#receipt")
    assert f"Receipt of call {replies[0].number}" in opened.locator("#receipt").inner_text()


def test_a_new_call_appears_by_itself(tab, served):
    opened = tab.open(URL)
    opened.wait_for_selector("[data-live-state][data-state='on']")
    before = opened.locator("a.target").count()

    served.go_on()

    opened.locator("a.target").nth(before).wait_for(state="attached")
    assert f"{served.line.replies[-1].tokens:,}" in opened.locator("a.target").last.get_attribute(
        "aria-label"
    )


def test_the_page_works_without_scripts(browser, served):
    context = browser.new_context(java_script_enabled=False)
    try:
        opened, replies = context.new_page(), served.line.replies
        opened.goto(f"{served.page.url}{URL}")
        opened.locator("a.target").nth(3).click()
        opened.wait_for_url(f"**call={replies[3].number}#receipt")
        assert f"Receipt of call {replies[3].number}" in opened.locator("#receipt").inner_text()
        opened.get_by_role("link", name="As sent, against everything").click()
        assert f"Call {replies[3].number}" in opened.locator("h2").first.inner_text()
    finally:
        context.close()


VIEWS = ("", "/calls", "/calls/{call}", "/changes", "/changes/{change}", "/messages", "/recall?what=clock")


def opened_views(tab, served):
    line = served.line
    for view in VIEWS:
        yield view, tab.open(URL + view.format(call=line.replies[-1].number, change=line.changes[-1].id))
    opened = tab.open("/conversations/asked/messages")
    assert "newest reply" in opened.locator(".everything").inner_text()
    yield "a reply that the client has not sent back", opened


@pytest.mark.parametrize(
    ("width", "theme"), [pytest.param(1280, "light", marks=pytest.mark.slow), (390, "dark")]
)
def test_no_view_is_too_wide_or_complains(browser, served, width, theme):
    tab = Tab(browser, served.page.url, width=width, theme=theme)
    try:
        for view, opened in opened_views(tab, served):
            assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
            assert opened.locator("h1").count() == 1, view
        assert tab.said == []
        assert tab.hosts == {served.page.url.removeprefix("http://")}
    finally:
        tab.close()


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
def test_axe_finds_nothing_serious_on_any_view(browser, served, width, theme):
    tab = Tab(browser, served.page.url, width=width, theme=theme)
    try:
        for view, opened in opened_views(tab, served):
            assert findings(opened) == [], view
            assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    finally:
        tab.close()
