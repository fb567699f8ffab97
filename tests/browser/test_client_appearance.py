"""What the card of handbill.js shows, and that a banner with nothing to show is neither shown nor counted."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Page

from tests.browser.conftest import MakePage
from tests.kit.recording_api import RecordingApi, banner
from tests.kit.waiting import eventually

KEY = "hbw_recorded"
CARD = "#slot .card"
SHOW = "(o) => { open(o).show(document.getElementById('slot'), 'home', 5) }"


def options(recorder: RecordingApi) -> dict[str, Any]:
    return {"url": recorder.url, "writeKey": KEY, "user": "ada", "timeoutMs": 60_000}


async def empty(page: Page) -> list[str]:
    """The banners that the page was told to have nothing to show."""
    found: list[str] = await page.evaluate(
        "told.filter((it) => it.name === 'empty').map((it) => it.showing.banner.banner_id)"
    )
    return found


PICTURES: list[tuple[dict[str, str], str]] = [
    ({"asset_url": "/asset.svg"}, "/asset.svg"),
    ({"asset_url": "/asset.svg", "image_url": "/image.svg"}, "/image.svg"),
    ({"asset_url": "/asset.svg", "image_url": "javascript:alert(1)"}, "/asset.svg"),
    ({"asset_url": "/asset.svg", "image_url": "/missing.svg"}, "/asset.svg"),
]


async def test_a_picture_alone_is_shown_and_counted(visit: MakePage, recorder: RecordingApi) -> None:
    for number, (fields, picture) in enumerate(PICTURES, start=1):
        recorder.banners = [banner(number, click_url="/r/abc", **fields)]
        page = await visit()
        await page.evaluate(SHOW, options(recorder))
        image = await page.wait_for_selector(f"{CARD} a img")
        assert image is not None
        assert await image.get_attribute("src") == recorder.url + picture
        assert await image.evaluate("(it) => it.complete && it.naturalWidth > 0")
        box = await image.bounding_box()
        assert box is not None
        assert box["height"] > 100, "there is something to see"
        link = page.get_by_role("link", name="Promotion")
        assert await link.evaluate("(it) => it.href.includes('/r/abc?c=clk_')")
        await eventually(lambda count=number: len(recorder.reports("/impression")) == count, what="it is counted")
        assert recorder.reports("/impression")[-1]["bannerPublicId"] == recorder.banners[0]["banner_id"]


async def test_a_picture_alone_is_not_counted_before_it_is_there(visit: MakePage, recorder: RecordingApi) -> None:
    recorder.banners = [banner(1, asset_url="/slow.svg")]
    page = await visit()
    release: list[Any] = []

    async def hold(route: Any) -> None:
        release.append(route)

    await page.route("**/slow.svg", hold)
    await page.evaluate(SHOW, options(recorder))
    await eventually(lambda: release, what="the picture is asked for")
    assert await page.query_selector(CARD) is None
    await page.evaluate("fetch(hb.at('/after'), {method: 'POST', mode: 'no-cors'})")
    await eventually(lambda: "/after" in recorder.seen, what="a later request")
    assert recorder.reports("/impression") == []
    await release[0].continue_()
    await page.wait_for_selector(f"{CARD} img")
    await eventually(lambda: recorder.reports("/impression"), what="the impression arrives")


async def test_a_banner_with_nothing_to_show_is_passed_over(visit: MakePage, recorder: RecordingApi) -> None:
    nothing: list[dict[str, Any]] = [
        banner(1, click_url="/r/abc"),
        banner(2, title="", description=None, image_url="data:image/png;base64,"),
        banner(3, image_url="/missing.svg", asset_url="/missing-too.svg"),
    ]
    recorder.banners = [*nothing, banner(4, title="Tea", image_url="/missing.svg")]
    page = await visit()
    await page.evaluate(SHOW, options(recorder))
    await page.wait_for_selector(f"{CARD} >> text=Tea")
    await page.wait_for_function("!document.querySelector('#slot > *').shadowRoot.querySelector('img')")
    await eventually(lambda: recorder.reports("/impression"), what="the impression arrives")
    assert await empty(page) == [one["banner_id"] for one in nothing]
    await page.evaluate("dispatchEvent(new Event('pagehide'))")
    await eventually(lambda: recorder.reports("/views"), what="the view arrives")
    shown = recorder.banners[3]["banner_id"]
    assert {one["bannerPublicId"] for one in recorder.reports("/impression")} == {shown}
    assert {one["banner_id"] for one in recorder.reports("/views")} == {shown}
    assert await page.evaluate("drawn.length") == 1, "no other card was ever on the page"


async def test_an_own_render_decides_what_is_shown(visit: MakePage, recorder: RecordingApi) -> None:
    recorder.banners = [banner(1), banner(2), banner(3)]
    page = await visit()
    await page.evaluate(
        """(o) => {
          const own = Object.assign(document.createElement("p"), {textContent: "own"});
          const drawings = [null, undefined, own];
          const render = () => drawings.shift();
          open({...o, render}).show(document.getElementById("slot"), "home", 5);
        }""",
        options(recorder),
    )
    await page.wait_for_selector("#slot >> text=own")
    (impression,) = await eventually(lambda: recorder.reports("/impression"), what="the impression arrives")
    assert impression["bannerPublicId"] == recorder.banners[2]["banner_id"]
    assert await empty(page) == [one["banner_id"] for one in recorder.banners[:2]]


async def test_a_link_can_be_seen_and_the_whole_card_is_it(visit: MakePage, recorder: RecordingApi) -> None:
    recorder.banners = [banner(1, title="Tea", click_url="/r/abc")]
    page = await visit()
    await page.evaluate(SHOW, options(recorder))
    assert await page.inner_text(f"{CARD} [part=cta]") == "→"
    box = await (await page.wait_for_selector(CARD)).bounding_box()  # type: ignore[union-attr]
    assert box is not None
    await page.evaluate(
        "addEventListener('click', (e) => { window.hit = e.composedPath()[0].tagName; e.preventDefault(); })"
    )
    await page.mouse.click(box["x"] + 3, box["y"] + box["height"] - 3)
    assert await page.evaluate("hit") == "A"
    recorder.banners = [banner(2, title="No link")]
    await page.evaluate("hb.show(document.getElementById('slot')), null")
    await page.wait_for_selector(f"{CARD} >> text=No link")
    assert await page.query_selector(f"{CARD} [part=cta]") is None


@pytest.mark.parametrize("slots", [["home", "home"], ["top", "home", "home"], ["top", *["home"] * 11]])
async def test_each_slot_of_a_placement_has_a_banner(
    visit: MakePage, recorder: RecordingApi, site: str, slots: list[str]
) -> None:
    """As long as there are enough: no placement takes those of another."""
    recorder.banners = [banner(number, title=str(number)) for number in range(1, 23)]
    if len(slots) <= 10:
        del recorder.banners[len(slots) :]
    page = await visit()
    script, url = quote(f"{site}handbill.js"), quote(recorder.url)
    await page.goto(f"{site}plain?src={script}&key={KEY}&url={url}&slots={','.join(slots)}")
    await page.wait_for_function(
        "[...document.querySelectorAll('[data-handbill]')].every((it) => it.childElementCount)"
    )
    shown = await page.eval_on_selector_all(
        "[data-handbill] > *", "(all) => all.map((it) => it.shadowRoot.querySelector('strong').textContent)"
    )
    assert len(set(shown)) == len(slots), "no banner twice"
    if len(slots) <= 10:
        assert shown == [one["title"] for one in recorder.banners]
    assert recorder.seen.count("/v1/decide") == 1


async def test_placements_beyond_ten_are_filled_by_more_decisions(
    visit: MakePage, recorder: RecordingApi, site: str
) -> None:
    recorder.banners = [banner(number, title=str(number)) for number in range(1, 11)]
    page = await visit()
    script, url = quote(f"{site}handbill.js"), quote(recorder.url)
    slots = ",".join(f"place-{number}" for number in range(23))
    await page.goto(f"{site}plain?src={script}&key={KEY}&url={url}&slots={slots}")
    await page.wait_for_function(
        "[...document.querySelectorAll('[data-handbill]')].every((it) => it.childElementCount)"
    )
    assert recorder.seen.count("/v1/decide") == 3
