"""The report of a replay in a real browser: it draws, sorts and changes its colours, and does nothing else.

pip brings the driver (playwright), and no browser: that is the system's, or one that playwright fetches by itself.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from refold.replay import REFERENCE, run, tabulate
from refold.replay.candidate import DropOldest, candidates
from refold.replay.report import page
from refold.replay.summarisers import ReplaySummarisers, choose, open_summarisers
from refold.testing import ScriptedUpstream
from tests.replay.recordings import recordings

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
INSTALLED = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
NO_BROWSER = "there is no Chromium here: apt-get install chromium, or playwright install chromium"

pytestmark = pytest.mark.feature("N6")

EVIL = '<img src="https://example.com/x" onerror="pwned = 1"><script>pwned = 1</script>'


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page of three recordings, one of which is called something nasty."""
    folder = tmp_path_factory.mktemp("report")
    first, *rest = recordings(folder)
    corpus = [type(first)(EVIL, *_others(first)), *rest]
    cells = run(corpus, [*candidates(("refold",)), DropOldest], (2_000, 8_000))
    file = folder / "report.html"
    file.write_text(page(tabulate(cells, REFERENCE), cells), encoding="utf-8")
    return file.as_uri()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A page of a session whose summaries a model wrote, and sometimes did not."""
    folder = tmp_path_factory.mktemp("written")
    with ScriptedUpstream(
        "Files were read.", "Files were changed.", otherwise="I'm sorry, I can't."
    ) as server:
        order = ReplaySummarisers((None, choose(f"gpt-4o-mini@{server.url}/v1")), folder=folder / "kept")
        with open_summarisers(order, environ={}) as opened:
            cells = run(recordings(folder)[:1], candidates(("refold",), opened), (4_000,))
            table = tabulate(cells, REFERENCE, opened.spending)
    file = folder / "report.html"
    file.write_text(page(table, cells), encoding="utf-8")
    return file.as_uri(), table


def _others(recording):
    return [getattr(recording, name) for name in recording.__struct_fields__[1:]]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = INSTALLED or driver.chromium.executable_path
        if not Path(found).exists():
            pytest.skip(NO_BROWSER)
        launched = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=lambda param: f"{param[0]}-{param[1]}")
def opened(browser, report, request):
    """The page as it is opened, with everything it complained about or asked for."""
    width, scheme = request.param
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    tab = context.new_page()
    tab.said = []
    tab.on("console", lambda message: tab.said.append(message.text))
    tab.on("pageerror", lambda error: tab.said.append(str(error)))
    tab.on("request", lambda asked: tab.said.append(asked.url) if asked.url != report else None)
    tab.goto(report)
    tab.wait_for_selector("#every tbody tr")
    yield tab
    assert tab.said == []
    context.close()


def test_a_model_that_wrote_summaries_is_shown_with_its_dollars_and_its_failures(browser, written):
    uri, table = written
    digest, modelled = table.rows
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(uri)
    tab.wait_for_selector("#every tbody tr")

    assert sorted(tab.locator(".point text").all_text_contents()) == ["refold", "refold +"]
    assert tab.locator("figcaption", has_text="+ is with summaries by gpt-4o-mini").count() == 1
    row = tab.locator("tbody tr", has_text="refold + gpt-4o-mini").first.inner_text()
    assert f"{modelled.summaries.dollars:,.4f}" in row
    assert f"{modelled.summaries.failed} of {modelled.summaries.asked}" in row
    assert modelled.summaries.failed > 0
    assert digest.summaries is None
    wide = tab.locator(".wide").first
    assert wide.evaluate("one => one.scrollWidth <= one.clientWidth")

    tab.locator("#choice select").nth(2).select_option(label="refold + gpt-4o-mini")
    assert f"{modelled.summaries.dollars:,.4f}" in tab.locator("#every tbody").inner_text()
    why = tab.locator("#changes").inner_text()
    assert "; by the model" in why
    assert "; the model failed, a digest serves" in why
    tab.close()


def test_what_the_columns_mean_can_be_read_without_a_pointer(opened):
    meanings = opened.locator("details")
    assert not meanings.locator("dl").is_visible()

    meanings.locator("summary").click()

    heads = [head for head in opened.locator(".wide thead").first.inner_text().split("\t")[1:] if head]
    assert opened.locator("dt").all_inner_texts() == [head.strip() for head in heads]


def texts(tab, column: int) -> list[str]:
    return tab.locator(f"#every tbody tr > :nth-child({column})").all_inner_texts()


def test_it_fits_the_screen_and_runs_nothing_from_a_name(opened):
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert opened.evaluate("typeof pwned") == "undefined"
    assert EVIL in texts(opened, 1)
    assert opened.locator("img").count() == 0


def test_the_table_is_sorted_by_a_click_and_by_another_the_other_way(opened):
    calls = opened.locator("#every thead button", has_text="calls").first

    calls.click()
    down = [int(text) for text in texts(opened, 3)]
    calls.click()
    up = [int(text) for text in texts(opened, 3)]

    assert down == sorted(up, reverse=True)
    assert up == sorted(up)
    assert len(set(up)) > 1


def test_a_recording_is_drawn_with_its_compactions_and_their_reasons(opened):
    opened.locator("#every tbody button", has_text="mixed").click()

    assert opened.locator("#timeline .size").get_attribute("d").count("L") > 50
    assert opened.locator("#timeline .summarise").count() > 3
    reasons = opened.locator("#changes .why").all_inner_texts()
    assert any("do not fit into 2,000" in reason for reason in reasons)
    opened.locator("#timeline svg").focus()
    opened.keyboard.press("ArrowRight")
    assert opened.locator(".told").inner_text().startswith("Call 1\n")


def test_another_candidate_and_another_window_are_drawn_when_chosen(opened):
    def drawn() -> str:
        return opened.locator("#timeline .size").get_attribute("d")

    first = drawn()
    opened.locator("#choice select").nth(2).select_option(label="drop oldest")
    second = drawn()
    opened.locator("#choice select").nth(1).select_option(label="8,000 tokens")

    assert len({first, second, drawn()}) == 3
    assert "rewritten" in opened.locator("#changes").inner_text()


def test_light_and_dark_follow_the_system_until_the_reader_decides(opened):
    def paper() -> str:
        return opened.evaluate("getComputedStyle(document.body).backgroundColor")

    button, before = opened.locator("#theme"), paper()
    is_dark = button.inner_text() == "Light"
    button.click()

    assert is_dark == opened.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert paper() != before
    assert button.inner_text() == ("Dark" if is_dark else "Light")
