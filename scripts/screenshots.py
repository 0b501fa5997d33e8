"""Make the pictures of the page for docs/dashboard.md: `python -m scripts.screenshots [FOLDER]`.

Fills a store in memory, serves the gateway before it, and photographs every view in the system's Chromium, light and dark, at the
width of a phone and of a laptop. Only those in `DOCUMENTED` go into docs/images; the others are for looking at.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from playwright.async_api import async_playwright

from refold.config import flag_layer, resolve
from refold.gateway.admin import Admin
from refold.gateway.app import Gateway
from refold.gateway.auth import Rules
from refold.gateway.server import build
from refold.gateway.upstreams import Target, Targets
from refold.stores.memory import MemoryStore
from tests.dashboard.browser import CHROMIUM, FLAGS
from tests.dashboard.example_store import fill
from tests.gateway.served_gateway import serving

VIEWS = {
    "home": "/",
    "search": "/search?words=ferry",
    "effect": "/effect?days=7",
    "settings": "/settings",
    "operations": "/operations",
    "conversation": "/conversations/agents~1parser",
    "calls": "/conversations/agents~1parser/calls",
    "call": "/conversations/agents~1parser/calls/{totals[calls]}",
    "changes": "/conversations/agents~1parser/changes",
    "change": "/conversations/agents~1parser/changes/{changes[0][id]}",
    "messages": "/conversations/agents~1parser/messages",
    "recall": "/conversations/agents~1parser/recall?what=ferry",
    "compact": "/conversations/agents~1parser/compact",
    "pins": "/conversations/agents~1parser/pins",
    "replay": "/conversations/agents~1parser/replay",
    "delete": "/conversations/agents~1parser/delete",
}
DOCUMENTED = {("home", "light", 1280), ("home", "dark", 1280), ("home", "light", 390), ("conversation", "light", 1280), ("conversation", "dark", 1280), ("compact", "light", 1280)}  # fmt: skip
IMAGES = Path(__file__).parents[1] / "docs" / "images"


async def main(folder: Path) -> None:
    store = MemoryStore()
    began = time.time()
    await fill(store, time.time())
    print(f"filled in {time.time() - began:.1f} s")
    resolved = resolve([flag_layer({"compaction.window": "12000", "summariser.enabled": "false"})])
    target = Target(name="scripted", url="http://127.0.0.1:9/v1", formats=("chat",), is_private=True)
    gateway = Gateway(store, resolved, Targets([target]))
    async with (
        serving(build(gateway, Admin(gateway, "0.1.0"), Rules())) as port,
        async_playwright() as player,
    ):
        browser = await player.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        asked = await browser.new_page()
        answer = await asked.request.get(f"http://127.0.0.1:{port}{VIEWS['conversation']}.json")
        found = await answer.json()
        for theme in ("light", "dark"):
            for width in (1280, 390):
                size = {"width": width, "height": 900}
                context = await browser.new_context(
                    viewport=size, color_scheme=theme, reduced_motion="reduce"
                )
                page = await context.new_page()
                for name, url in VIEWS.items():
                    if folder == IMAGES and (name, theme, width) not in DOCUMENTED:
                        continue
                    await page.goto(f"http://127.0.0.1:{port}{url.format_map(found)}", wait_until="load")
                    await page.wait_for_selector("html[data-ready]")
                    if name == "compact":
                        await page.wait_for_selector("#preview .head")
                    if name == "replay":
                        await page.get_by_label("Window").select_option("4000")
                        await page.get_by_role("button", name="Replay").click()
                        await page.wait_for_selector("#over-time .plot")
                    path = folder / f"{name}-{theme}-{width}.png"
                    await page.screenshot(path=path, full_page=folder != IMAGES)
                await context.close()
        await browser.close()
    await gateway.close()


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    chosen.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(chosen))
