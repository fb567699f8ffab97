"""posthog-js with nothing configured but the address: no error in the console, no flags, and its own events arrive."""

from __future__ import annotations

from pathlib import Path

from benches._shop import house
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.house import House
from tests.browser.conftest import PATIENCE_MS
from tests.interop.browser import Shop, shop
from tests.kit.captured import Sender
from tests.kit.stack import stack
from tests.kit.waiting import eventually

NAME = "posthog in Chromium with its defaults"

LOAD = """new Promise((loaded) => {
  const done = (error) => loaded(error && `${error}`);
  window.__PosthogExtensions__.loadExternalDependency(window.posthog, "surveys", done);
})"""
"""As posthog-js does when a page asks for a survey: the script is there, and empty."""


async def run(home: Path, only: str) -> tuple[int, int]:
    """Passed and failed."""
    if only not in NAME:
        return 0, 0
    async with shop(home) as chromium, stack() as built, house(built) as ours, built.api() as port:
        try:
            await one(chromium, ours, f"http://127.0.0.1:{port}")
        except AssertionError as error:
            print(f"FAILED {error} {NAME} causes no error", flush=True)
            return 0, 1
    print(f"ok     {NAME} causes no error", flush=True)
    return 1, 0


async def one(chromium: Shop, ours: House, url: str) -> None:
    tenant = await ours.tenants.create_tenant(NewTenant(name="defaults", slug="defaults"), actor="interop")
    key = await ours.tenants.create_key(tenant.tenant_id, NewKey(kind="write", name="site"), actor="interop")
    page = await chromium.open("defaults.html", url=url, key=key.key)
    await page.wait_for_selector("body[data-flags][data-features]", state="attached", timeout=PATIENCE_MS)
    shown = await page.evaluate("({ ...document.body.dataset })")
    assert shown == {"flags": "[[],null]", "features": "[]"}, shown
    await page.click("#buy", timeout=PATIENCE_MS)
    sender = Sender(tenant.tenant_id, key.key, "", ours.redis)

    async def arrived() -> bool:
        return {"$pageview", "$autocapture"} <= {event.name for event in await sender.events()}

    await eventually(arrived, what="$pageview and $autocapture arrived")
    scripts = await page.evaluate("[...document.scripts].map((each) => each.src).filter((src) => src)")
    assert scripts == [f"{url}/array/{key.key}/config.js"], scripts
    refused = await page.evaluate(LOAD)
    assert refused is None, refused
    await page.context.close()
    assert chromium.errors == [], chromium.errors
