"""The pages that the API itself serves: the script for shops on other sites, and the demo shop."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import aiohttp

from tests.browser.conftest import MakePage, Shop
from tests.kit.vectors import vectors

HOUR = 3600


async def test_two_lines_are_enough_for_a_shop_on_another_site(visit: MakePage, shop: Shop, site: str) -> None:
    await shop.banner(z_duration_sec=HOUR, title="<b>Tea</b>", image_url="/demo/lanterns.svg", cta_link="/demo#pots")
    page = await visit()
    address = f"{site}plain?src={quote(shop.url + '/handbill.js')}&key={shop.write_key}"
    await page.goto(address)
    await page.wait_for_selector("#slot .card")
    assert await page.inner_text("#slot .card strong") == "<b>Tea</b>", "what a banner says is text, never markup"
    await page.click("#slot .card a")
    await page.wait_for_url(f"{shop.url}/demo#pots")
    await page.goto(address)  # were a beacon ever lost, the next page would send what it carried
    views = await shop.views(1)
    assert [(view["user_id"], view["counted"]) for view in views] == [("bea", False)], "it was left for where it leads"
    await shop.counted("banners.banner_clicks", 1)


async def test_the_demo_shop(visit: MakePage, shop: Shop, handbill_env: dict[str, str]) -> None:
    secrets = Path(handbill_env["HANDBILL_HOME"]) / "secrets"
    page = await visit()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    await page.goto(f"{shop.url}/demo")
    await page.wait_for_selector("text=There is no demo tenant")

    await shop.banner(z_duration_sec=HOUR, x_times=1, image_url="/demo/lanterns.svg")
    secrets.mkdir(parents=True, exist_ok=True)
    demo = {"write_key": shop.write_key, "placement_id": shop.placement, "secret_key": "hbs_hidden"}
    (secrets / "demo.json").write_text(json.dumps(demo))
    await page.goto(f"{shop.url}/demo")
    await page.wait_for_selector("#slot .card img")
    assert "Take a look" in await page.evaluate("""
        getComputedStyle(document.querySelector("#slot > *").shadowRoot.querySelector("[part=cta]"), "::before").content
    """), "there is a visible call to action"
    assert "hbs_hidden" not in await page.content()
    await page.evaluate("handbill.options.accidentalCloseMs = 0")
    await page.click("#slot .card button")
    await page.wait_for_selector("text=this counts as a view")
    await page.wait_for_selector("text=The server keeps the view")
    await page.click("#again")
    await page.wait_for_selector("text=Nothing to show")
    await page.click("#other")
    await page.wait_for_selector("#slot .card")
    assert faults == []
    await _the_script_may_be_kept(shop)


async def _the_script_may_be_kept(shop: Shop) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{shop.url}/handbill.js") as reply:
            assert reply.headers["content-type"].startswith("text/javascript")
            assert reply.headers["cross-origin-resource-policy"] == "cross-origin"
            tag = reply.headers["etag"]
        async with http.get(f"{shop.url}/handbill.js", headers={"If-None-Match": tag}) as reply:
            assert (reply.status, await reply.read()) == (304, b"")
        async with http.get(f"{shop.url}/handbill.js") as reply:
            assert (reply.headers["content-encoding"], reply.headers["vary"]) == ("gzip", "Accept-Encoding")
            text = await reply.text()
        async with http.get(f"{shop.url}/handbill.js", headers={"Accept-Encoding": "identity"}) as reply:
            assert "content-encoding" not in reply.headers
            assert await reply.text() == text
        async with http.get(f"{shop.url}/handbill/vectors.json") as reply:
            assert await reply.json() == vectors()
        async with http.get(f"{shop.url}/demo/secrets.json") as reply:
            assert (reply.status, (await reply.json())["code"]) == (404, "NOT_FOUND")
