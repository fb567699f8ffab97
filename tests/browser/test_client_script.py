"""handbill.js in a real browser, against the real server."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from playwright.async_api import Page

from handbill.events.model import CapturedEvent
from handbill.infra.redis import Redis
from tests.browser.conftest import MakePage, Shop
from tests.kit.captured import Sender
from tests.kit.vectors import vectors
from tests.kit.waiting import eventually

HOUR = 3600
CARD = "#slot .card"


async def told(page: Page, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await page.evaluate(
        "(name) => JSON.parse(JSON.stringify(told.filter((it) => it.name === name)))", name
    )
    return found


async def waiting(page: Page) -> int:
    count: int = await page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('hb:')).length")
    return count


async def sent(page: Page, count: int) -> None:
    """Until so many requests with reports were taken. A refusal is a fault; a line that broke is tried again."""

    async def taken() -> bool:
        statuses = [(one["kind"], one["status"]) for one in await told(page, "sent")]
        final = [status for _, status in statuses if status not in (0, 503)]
        assert final == [202] * count, statuses
        return True

    await eventually(taken, what=f"{count} requests are taken")


async def show(page: Page, options: dict[str, Any]) -> None:
    """Open the script's client and ask for the slot; returns once the answer is there."""
    await page.evaluate("(options) => { open(options).show(document.getElementById('slot')) }", options)
    await page.wait_for_function("told.some((it) => it.name === 'decided')")


async def test_it_shows_for_its_time_counts_once_and_the_third_open_shows_nothing(visit: MakePage, shop: Shop) -> None:
    await shop.banner(x_times=2, z_duration_sec=1, description="Until Sunday.")
    page = await visit()
    for count in (1, 2):
        await show(page, shop.options)
        await page.wait_for_function("told.some((it) => it.name === 'closed')")
        assert await page.query_selector(CARD) is None
        (drawn,) = await page.evaluate("drawn")
        assert "Lantern week" in drawn["text"]
        assert drawn["href"].startswith(f"{shop.url}/r/")
        (shown,), (closed,), (viewable,) = [await told(page, name) for name in ("shown", "closed", "viewable")]
        assert closed["how"] == "timer"
        assert closed["at"] - shown["at"] >= 999, "it stays its time"
        assert closed["report"]["view_duration_ms"] >= 1000
        assert viewable["at"] <= closed["at"]
        await sent(page, 2)
        assert await waiting(page) == 0
        views = await shop.views(count)
        assert all(view["counted"] and not view["dismissed"] and view["user_id"] == "ada" for view in views)
        await visit(page)  # the page is opened again; nothing that was told before may be told twice
    await show(page, shop.options)
    (decided,) = await told(page, "decided")
    assert [one["banners"] for one in decided["decisions"]] in ([], [[]])
    assert "error" not in decided
    assert await page.query_selector(CARD) is None
    await shop.counted("banners.banner_impressions", 2)
    await shop.views(2)


async def test_a_dismissal_counts_and_a_quick_close_does_not(visit: MakePage, shop: Shop) -> None:
    await shop.banner(x_times=3, z_duration_sec=HOUR)
    page = await visit()
    await show(page, shop.options)
    await page.wait_for_function(
        "told.some((it) => it.name === 'shown' && performance.now() - it.at > 600)", polling=50
    )
    await page.click(f"{CARD} button")
    await sent(page, 2)
    (view,) = await shop.views(1)
    assert (view["dismissed"], view["counted"]) == (True, True)

    await visit(page)  # a hand that was faster than the eye: with an hour's limit, however slow this machine is
    await show(page, {**shop.options, "accidentalCloseMs": HOUR * 1000})
    await page.click(f"{CARD} button")
    await sent(page, 2)
    views = await shop.views(2)
    assert [view["counted"] for view in views if not view["dismissed"]] == [False]

    await visit(page)  # the page is left before the time is over: only a beacon can still tell
    await show(page, shop.options)
    await page.wait_for_function("told.some((it) => it.name === 'shown')")
    await sent(page, 1)
    await page.evaluate("hb.flush = async () => {}; dispatchEvent(new Event('pagehide'))")
    views = await shop.views(3)
    assert sum(view["counted"] for view in views) == 1
    assert await waiting(page) == 1, "a beacon has no answer, so the report is kept"
    await visit(page)
    await page.evaluate("(options) => { open(options) }", shop.options)
    await page.wait_for_function("Object.keys(localStorage).every((key) => !key.startsWith('hb:'))")
    await shop.views(3)
    await shop.counted("banners.banner_impressions", 3)


async def test_offline_waits_and_online_sends_once(visit: MakePage, shop: Shop) -> None:
    await shop.banner(z_duration_sec=1)
    page = await visit()
    await page.evaluate("(options) => { open(options) }", shop.proved("cyd"))
    decision = await page.evaluate("hb.decide({placements: ['home']})")
    await page.context.set_offline(True)
    await page.evaluate("(one) => { hb.present(document.getElementById('slot'), one) }", decision[0])
    await page.wait_for_function("told.some((it) => it.name === 'closed')")
    assert await page.evaluate("hb.decide()") == [], "without a network there is nothing to show, and no error"
    assert await waiting(page) == 2
    assert await shop.rows("caps.user_views") == []
    await page.context.set_offline(False)
    await sent(page, 2)
    assert await waiting(page) == 0
    (view,) = await shop.views(1)
    assert (view["counted"], view["user_id"], view["marks"]) == (True, "cyd", [])
    await shop.counted("banners.banner_impressions", 1)


async def test_nobody_is_followed_who_asks_for_it_and_failures_are_empty(visit: MakePage, shop: Shop) -> None:
    await shop.banner(z_duration_sec=1)
    anonymous = "drawn.map(({href}) => new URL(href).searchParams.get('anonymous'))"
    page = await visit()
    await page.evaluate("Object.defineProperty(navigator, 'doNotTrack', {value: '1', configurable: true})")
    await show(page, shop.options)
    await page.wait_for_function("told.some((it) => it.name === 'closed')")
    assert await told(page, "report") == []
    assert await page.evaluate(anonymous) == ["1"], "also a click through the link is nobody's"
    assert await page.evaluate("Object.keys(localStorage).length + Object.keys(sessionStorage).length") == 0

    await visit(page)
    await show(page, {**shop.options, "needsConsent": "ads", "user": None})
    await page.wait_for_function("told.some((it) => it.name === 'closed')")
    assert await told(page, "report") == []
    await page.evaluate("hb.consent(['ads']); hb.show(document.getElementById('slot'))")
    await sent(page, 2)
    assert await page.evaluate(anonymous) == ["1", None]
    assert await page.evaluate("localStorage.getItem('hb-device') !== null")
    await page.evaluate("hb.consent([])")
    assert await page.evaluate("Object.keys(localStorage).length + Object.keys(sessionStorage).length") == 0
    (view,) = await shop.views(1)
    assert view["user_id"] != "ada"

    ask = "(options) => open(options).track('signed_up', {plan: 'free'}).then(String, (error) => error.code)"
    assert await page.evaluate(ask, {**shop.options, "needsConsent": "ads"}) == "off"
    for broken in ({"writeKey": "hbw_unknown"}, {"url": "http://127.0.0.1:1"}):
        assert await page.evaluate("(options) => open(options).decide()", {**shop.options, **broken}) == []


async def test_the_script_keeps_to_the_vectors(visit: MakePage) -> None:
    page = await visit()
    found = await page.evaluate(
        """(page) => {
          const { reportOf, fateOf, fitting, decisionsOf, bodyOf, refusedOf, HORIZON_MS, BATCH_MAX } = Handbill.rules;
          const { understoodOf, batchesOf, partsOf, waitOf, newId, BATCH_BYTES } = Handbill.rules;
          const refused = (v) => {
            const { by, all } = refusedOf(v.status, v.answer);
            const codes = Array.from({ length: v.count }, (_, place) => [place, by.get(place) || all]);
            return Object.fromEntries(codes.filter(([, code]) => code));
          };
          return {
            limits: [HORIZON_MS, BATCH_MAX, BATCH_BYTES],
            reports: page.reports.map((v) => reportOf(v.visible_ms, v.how)),
            fates: page.fates.map((v) => fateOf(v.status, v.retry_after, v.tries, v.count, v.understood)),
            understood: page.understood.map((v) => understoodOf(v.status, v.answer, v.count)),
            batches: page.batches.map((v) => batchesOf(v.sizes, (size) => size).map((batch) => batch.length)),
            placements: page.placements.map((v) => partsOf(v.names)),
            openings: page.openings.map((v) => waitOf(v.open_ms, v.open_after_ms)),
            ids: Array.from({ length: 10_000 }, newId),
            queues: page.queues.map((v) => fitting(v.at.map((at) => ({ at })), v.now, v.max).map((e) => e.at)),
            answers: page.answers.map((v) => decisionsOf(v.reply).map((d) => d.banners.map((b) => b.banner_id))),
            payloads: page.payloads.map((v) => ({
              impression: bodyOf.impression(v.showing),
              view: bodyOf.view(v.showing, v.report),
              click: bodyOf.click(v.showing, v.destination, v.clicked_at),
            })),
            events: page.events.map((v) => bodyOf.event(v.moment, v.event, v.properties, v.person)),
            refusals: page.refusals.map(refused),
          };
        }""",
        vectors(),
    )
    expected = vectors()
    assert found["limits"] == [expected["limits"][name] for name in ("horizon_ms", "batch_max", "batch_bytes")]
    assert found["reports"] == [vector["report"] for vector in expected["reports"]]
    for seen, vector in zip(found["fates"], expected["fates"], strict=True):
        more = {"batchMax": vector["batch_max"]} if "batch_max" in vector else {}
        assert seen == {"keep": vector["keep"], "waitMs": vector["wait_ms"], **more}, vector["why"]
    assert found["understood"] == [vector["understood"] for vector in expected["understood"]]
    assert found["batches"] == [vector["batches"] for vector in expected["batches"]]
    assert found["placements"] == [vector["requests"] for vector in expected["placements"]]
    assert found["openings"] == [vector["wait_ms"] for vector in expected["openings"]]
    assert found["ids"] == sorted(set(found["ids"])), "more than a millisecond has: they still rise"
    assert {UUID(one).version for one in found["ids"]} == {7}
    assert found["queues"] == [vector["kept"] for vector in expected["queues"]]
    assert found["answers"] == [vector["banners"] for vector in expected["answers"]]
    for seen, vector in zip(found["payloads"], expected["payloads"], strict=True):
        assert seen == {name: vector[name] for name in ("impression", "view", "click")}
    assert found["events"] == [vector["body"] for vector in expected["events"]]
    assert found["refusals"] == [vector["refused"] for vector in expected["refusals"]]


async def test_a_page_sends_events_of_its_own_and_says_who_is_who(visit: MakePage, shop: Shop, redis: Redis) -> None:
    page = await visit()
    outcomes = await page.evaluate(
        """async (options) => {
          const hb = open(options);
          const said = [await hb.page(), await hb.track("cart_opened", {items: 2}, {$set_once: {first: "tea"}})];
          said.push(await hb.identify("ada", {traits: {plan: "pro"}}), await hb.alias("ada@shop"));
          said.push(await hb.track("").catch((error) => error.code));
          const device = hb.device;
          hb.reset();
          said.push(await hb.track("left"), device !== hb.device);
          return {said, device, later: hb.device};
        }""",
        {**shop.options, "user": None},
    )
    assert outcomes["said"] == ["kept", "kept", "kept", "kept", "MISSING_EVENT_NAME", "kept", True]
    await page.evaluate("hb.leaving = true; hb.track('gone', {}); hb.beacon()")  # as a page does that is being closed
    sender = Sender(shop.tenant, shop.write_key, shop.secret_key, redis)

    async def found() -> dict[str, CapturedEvent]:
        events = {event.name: event for event in await sender.events()}
        return events if "gone" in events else {}

    events = await eventually(found, what="the beacon arrives")
    device, later = outcomes["device"], outcomes["later"]
    whose = {name: event.distinct_id for name, event in events.items()}
    assert whose == {
        "$pageview": device, "cart_opened": device, "$identify": "ada", "$create_alias": "ada", "left": later,
        "gone": later,
    }  # fmt: skip
    edges = {name: (event.edge.kind, event.edge.other) for name, event in events.items() if event.edge}
    assert edges == {"$identify": ("identify", device), "$create_alias": ("alias", "ada@shop")}
    opened = events["cart_opened"]
    assert (opened.properties, opened.set_once) == (b'{"items":2}', b'{"first":"tea"}')
    assert (opened.lib, opened.language) == ("handbill.js", await page.evaluate("navigator.language"))
    assert opened.session
    assert opened.screen_width == await page.evaluate("screen.width")
    assert events["$identify"].set == b'{"plan":"pro"}'


async def test_a_queue_that_is_full_of_old_things_empties_itself(visit: MakePage) -> None:
    page = await visit()
    kept = await page.evaluate(
        """() => {
          const now = Date.now(), day = 86400000;
          const entry = (n, at) => JSON.stringify({kind: "view", body: {n}, at});
          const put = (n, at) => localStorage.setItem(`hb:hbw_key1:${n}`, entry(n, at));
          for (let n = 0; n < 300; n++) put(n, now - n * 1000);
          put("old", now - 40 * day);
          localStorage.setItem("hb:hbw_key1:torn", "{");
          const hb = open({url: "http://127.0.0.1:1", writeKey: "hbw_key1"});
          return hb.queued().map((entry) => entry.body.n);
        }"""
    )
    assert kept == list(range(199, -1, -1))
    assert await waiting(page) == 200
