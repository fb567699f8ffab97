"""A real Chromium, and a shop's page in which an unmodified client of another product runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

from aiohttp import web
from playwright.async_api import Browser, Page, async_playwright

from tests.browser.conftest import AGENT, ARGUMENTS, PATIENCE_MS
from tests.kit.optional import find

PAGES = Path(__file__).parent / "node"
SOURCE = {"id": "shop", "name": "Shop", "enabled": True, "config": {}, "connections": [], "destinations": []}
"""What RudderStack's client asks its configuration for."""


class Shop:
    """Every person comes with a browser of their own: nothing is stored from the one before."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._browser = browser
        self._address = address
        self.errors: list[str] = []

    async def visit(self, client: str, url: str, key: str, person: str) -> Page:
        """The page, when everything was called; the client may still have to send it."""
        page = await self.open("order.html", client=client, url=url, key=key, person=person)
        await page.wait_for_selector("body[data-done]", state="attached", timeout=PATIENCE_MS)
        return page

    async def open(self, name: str, **query: str) -> Page:
        """One of the shop's pages, in a browser of its own."""
        context = await self._browser.new_context(user_agent=AGENT)
        page = await context.new_page()
        page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        await page.goto(f"{self._address}/{name}?{urlencode(query)}", timeout=PATIENCE_MS)
        return page


@asynccontextmanager
async def shop(home: Path) -> AsyncIterator[Shop]:
    """`home` is where the clients are installed. Raises AssertionError if there is no Chromium."""
    path = find("chromium")
    assert path is not None, "Chromium is needed for the clients of browsers; apt-get install chromium"

    async def page(request: web.Request) -> web.FileResponse:
        return web.FileResponse(PAGES / f"{request.match_info['name']}.html")

    async def source(_: web.Request) -> web.Response:
        return web.json_response({"source": SOURCE})

    app = web.Application()
    app.router.add_get("/{name:order|defaults}.html", page)
    app.router.add_get("/sourceConfig/", source)
    app.router.add_static("/node_modules", home / "node_modules")
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=path, args=ARGUMENTS, timeout=PATIENCE_MS)
            yield Shop(browser, f"http://127.0.0.1:{runner.addresses[0][1]}")
            await browser.close()
    finally:
        await runner.cleanup()
