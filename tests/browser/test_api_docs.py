"""The page /docs in a real browser: it lists the operations, sends a request, and asks no other server for anything."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import aiohttp
from playwright.async_api import Page

from tests.browser.conftest import MakePage, Shop


def watch(page: Page) -> tuple[list[str], set[str]]:
    """Errors on the page's console (a violation of its policy is one), and the servers it asked."""
    errors: list[str] = []
    hosts: set[str] = set()
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    return errors, hosts


async def test_an_operation_is_read_and_tried_with_a_key(visit: MakePage, shop: Shop) -> None:
    page = await visit()
    errors, hosts = watch(page)
    await page.goto(f"{shop.url}/docs")
    await page.wait_for_selector(".opblock-tag")
    assert await page.locator(".opblock-tag").count() > 10, "every group of operations is there"
    await page.click("button.authorize")
    await page.fill("input[aria-label='auth-bearer-value']", shop.secret_key)
    await page.locator(".modal-ux button.authorize").first.click()
    await page.click("button.btn-done")
    await page.click("[data-tag='Placements']")
    operation = page.locator("#operations-Placements-listPlacements")
    await operation.locator(".opblock-summary-control").click()
    await operation.locator("button.execute").click()
    reply = operation.locator(".live-responses-table tr.response")
    await reply.wait_for()
    assert (await reply.locator(".response-col_status").inner_text()).strip() == "200"
    body = json.loads(await reply.locator("pre code").first.inner_text())
    assert [each["placement_id"] for each in body["items"]] == [shop.placement]
    assert errors == []
    assert hosts == {urlsplit(shop.url).netloc}


async def test_parts_are_compressed_and_nothing_else_is_served(shop: Shop) -> None:
    async with aiohttp.ClientSession(auto_decompress=False) as http:
        async with http.get(f"{shop.url}/docs/swagger-ui-bundle.js", headers={"Accept-Encoding": "gzip"}) as reply:
            assert (reply.status, reply.headers["Content-Encoding"]) == (200, "gzip")
            assert len(await reply.read()) < 600_000
            known = reply.headers["ETag"]
        async with http.get(f"{shop.url}/docs/swagger-ui-bundle.js", headers={"If-None-Match": known}) as reply:
            assert reply.status == 304
        for name in ("index.css", "oauth2-redirect.html", "..%2F__init__.py", "swagger-editor.js"):
            async with http.get(f"{shop.url}/docs/{name}") as reply:
                assert reply.status == 404, name
