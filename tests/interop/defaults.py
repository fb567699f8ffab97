"""PostHog's clients with nothing configured but the address: no error anywhere, no flags, and their events arrive."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from benches._shop import house
from handbill.events.model import PERSONLESS
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.house import House
from tests.browser.conftest import AGENT, PATIENCE_MS
from tests.interop.browser import Shop, shop
from tests.kit.captured import Sender
from tests.kit.stack import stack
from tests.kit.waiting import eventually

BROWSER = "posthog in Chromium with its defaults"
NODE = "posthog in Node with its defaults"
LOAD = """new Promise((loaded) => {
  const done = (error) => loaded(error && `${error}`);
  window.__PosthogExtensions__.loadExternalDependency(window.posthog, "surveys", done);
})"""
"""As posthog-js does when a page asks for a survey: the script is there, and empty."""


async def run(home: Path, only: str) -> tuple[int, int]:
    """Passed and failed."""
    wanted = [name for name in (BROWSER, NODE) if only in name]
    if not wanted:
        return 0, 0
    failed = 0
    async with shop(home) as chromium, stack() as built, house(built) as ours, built.api() as port:
        url = f"http://127.0.0.1:{port}"
        for name in wanted:
            try:
                await (in_browser(chromium, ours, url) if name == BROWSER else in_node(home, ours, url))
                word = "ok    "
            except AssertionError as error:
                failed += 1
                word = f"FAILED {error}"
            print(f"{word} {name} causes no error", flush=True)
    return len(wanted) - failed, failed


async def sender_of(ours: House, name: str) -> Sender:
    tenant = await ours.tenants.create_tenant(NewTenant(name=name, slug=name), actor="interop")
    key = await ours.tenants.create_key(tenant.tenant_id, NewKey(kind="write", name="site"), actor="interop")
    return Sender(tenant.tenant_id, key.key, "", ours.redis)


async def in_node(home: Path, ours: House, url: str) -> None:
    sender = await sender_of(ours, "defaults-node")
    child = await asyncio.create_subprocess_exec(
        "node", "defaults.js", url, sender.write_key, cwd=home, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(child.communicate(), 120)
    assert json.loads(out) == {"found": [None, {}, None, {}], "errors": []}, out
    placed = [event for event in await sender.events() if event.name == "order placed"]
    assert [(event.ip, event.user_agent) for event in placed] == [(None, None)] * 2, placed


async def in_browser(chromium: Shop, ours: House, url: str) -> None:
    sender = await sender_of(ours, "defaults")
    page = await chromium.open("defaults.html", url=url, key=sender.write_key)
    await page.wait_for_selector("body[data-flags][data-features]", state="attached", timeout=PATIENCE_MS)
    shown = await page.evaluate("({ ...document.body.dataset })")
    assert shown == {"flags": "[[],null]", "features": "[]"}, shown
    await page.click("#buy", timeout=PATIENCE_MS)

    async def arrived() -> bool:
        return {"$pageview", "$autocapture"} <= {event.name for event in await sender.events()}

    await eventually(arrived, what="$pageview and $autocapture arrived")
    for event in await sender.events():
        assert PERSONLESS in event.marks, f"{event.name} makes a person of somebody who was not identified"
        assert (event.ip, event.user_agent) == ("127.0.0.1", AGENT), event
    scripts = await page.evaluate("[...document.scripts].map((each) => each.src).filter((src) => src)")
    assert scripts == [f"{url}/array/{sender.write_key}/config.js"], scripts
    refused = await page.evaluate(LOAD)
    assert refused is None, refused
    await page.context.close()
    assert chromium.errors == [], chromium.errors
