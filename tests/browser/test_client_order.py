"""What handbill.js sends first: a decision goes before reports that waited, and they go whatever becomes of it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from playwright.async_api import Page

from tests.browser.conftest import MakePage
from tests.kit.recording_api import RecordingApi
from tests.kit.waiting import eventually

KEY = "hbw_recorded"
LEFT = """([count, key]) => {
  for (let n = 0; n < count; n++) {
    const body = { banner_id: "b", user_id: "ada", event_id: `view_left_${n}`, view_duration_ms: 3000 };
    localStorage.setItem(`hb:${key.slice(-8)}:${n}`, JSON.stringify({ kind: "view", body, at: Date.now() - 1000 + n }));
  }
}"""


async def left_by_an_earlier_page(page: Page, count: int = 1) -> None:
    await page.evaluate(LEFT, [count, KEY])


def options(recorder: RecordingApi, **more: Any) -> dict[str, Any]:
    return {"url": recorder.url, "writeKey": KEY, "user": "ada", "timeoutMs": 60_000, **more}


async def test_a_decision_is_answered_before_what_an_earlier_page_left_is_sent(
    visit: MakePage, recorder: RecordingApi
) -> None:
    page = await visit()
    await left_by_an_earlier_page(page, 60)
    recorder.answer.clear()
    await page.evaluate("(o) => { open(o).page(); hb.decide({placements: ['home']}) }", options(recorder))
    await eventually(lambda: recorder.seen, what="a request")
    assert recorder.seen == ["/v1/decide"]
    await page.evaluate("hb.flush(); dispatchEvent(new Event('online'))")  # neither is a reason to go first
    await page.evaluate("hb.track('clicked_around'); fetch(hb.at('/after'), {method: 'POST', mode: 'no-cors'})")
    await eventually(lambda: "/after" in recorder.seen, what="a later request")
    assert recorder.seen == ["/v1/decide", "/after"]
    recorder.answer.set()
    await eventually(lambda: len(recorder.reports("/views")) == 60 and recorder.reports("/v1/events"))
    assert recorder.seen[2] == "answered"
    ids = [view["event_id"] for view in recorder.reports("/views")]
    assert ids == [f"view_left_{n}" for n in range(60)], "a report keeps its id, so that a copy counts once"


async def test_reports_go_when_a_decision_fails(visit: MakePage, recorder: RecordingApi) -> None:
    recorder.status = 500
    for timeout_ms in (60_000, 100):
        if timeout_ms == 100:
            recorder.answer.clear()
        page = await visit()
        await left_by_an_earlier_page(page)
        await page.evaluate("(o) => { open(o).decide() }", options(recorder, timeoutMs=timeout_ms))
        await page.wait_for_function("told.some((it) => it.name === 'sent')")
        assert await page.evaluate("told.map((it) => [it.name, !!it.error])") == [["decided", True], ["sent", False]]
    assert len(recorder.reports("/views")) == 2


async def test_reports_go_after_a_while_when_no_decision_is_made(visit: MakePage, recorder: RecordingApi) -> None:
    page = await visit()
    await left_by_an_earlier_page(page)
    await page.evaluate("(o) => { open(o) }", options(recorder))
    await eventually(lambda: recorder.seen == ["/views"], what="the view arrives")


async def test_a_page_that_is_left_before_its_decision_sends_all_by_beacon(
    visit: MakePage, recorder: RecordingApi
) -> None:
    page = await visit()
    await left_by_an_earlier_page(page)
    recorder.answer.clear()
    await page.evaluate("(o) => { open(o).decide(); dispatchEvent(new Event('pagehide')) }", options(recorder))
    await eventually(lambda: "/views" in recorder.seen, what="the beacon arrives")
    assert "answered" not in recorder.seen


async def test_the_script_tag_decides_first(visit: MakePage, recorder: RecordingApi, site: str) -> None:
    page = await visit()
    await left_by_an_earlier_page(page)
    recorder.answer.clear()
    script, url = quote(f"{site}handbill.js"), quote(recorder.url)
    await page.goto(f"{site}plain?src={script}&key={KEY}&url={url}")
    await eventually(lambda: recorder.seen, what="a request")
    recorder.answer.set()
    await eventually(lambda: recorder.reports("/views") and recorder.reports("/v1/events"), what="the reports arrive")
    assert recorder.seen[:2] == ["/v1/decide", "answered"]


async def test_reports_name_the_user_of_their_decision(visit: MakePage, recorder: RecordingApi) -> None:
    """Its token is that user's, and a token of somebody else is refused."""
    page = await visit()
    recorder.banners = [{"banner_id": "b", "z_duration_sec": 3600, "title": "Tea", "token": "ada's"}]
    await page.evaluate(
        """async (o) => {
          const [decision] = await open(o).decide({placements: ["home"]});
          hb.identify("bob").catch(() => {});
          hb.present(document.getElementById("slot"), decision);
        }""",
        options(recorder),
    )
    (impression,) = await eventually(lambda: recorder.reports("/impression"), what="the impression arrives")
    assert (impression["userId"], impression["token"]) == ("ada", "ada's")


async def test_a_page_that_is_open_for_a_moment_asks_for_nothing(visit: MakePage, recorder: RecordingApi) -> None:
    page = await visit()
    await left_by_an_earlier_page(page)
    await page.evaluate("(o) => { open(o).decide() }", options(recorder, openAfterMs=3_600_000))
    await page.evaluate("dispatchEvent(new Event('pagehide'))")
    await eventually(lambda: recorder.seen, what="the beacon arrives")
    assert recorder.seen == ["/views"]
    await visit(page)
    await page.evaluate("(o) => { open(o).decide() }", options(recorder, openAfterMs=1))
    await eventually(lambda: "/v1/decide" in recorder.seen, what="a decision is asked for")


async def test_a_report_larger_than_a_browser_keeps_alive_is_sent(visit: MakePage, recorder: RecordingApi) -> None:
    page = await visit()
    await page.evaluate("(o) => { open(o).track('large', {text: 'x'.repeat(70_000)}) }", options(recorder))
    (event,) = await eventually(lambda: recorder.reports("/v1/events"), what="the event arrives")
    assert len(event["properties"]["text"]) == 70_000


async def test_a_report_stays_until_an_answer_is_understood(visit: MakePage, recorder: RecordingApi) -> None:
    recorder.answers = [(200, "<html>Please log in"), (200, {"accepted": 1, "dropped": ["x"]}), (404, "no backend")]
    page = await visit()
    await page.evaluate("(o) => { open(o).track('bought') }", options(recorder))
    for count in (1, 2, 3):
        await eventually(lambda count=count: len(recorder.reports("/v1/events")) == count, what=f"{count} requests")
        await page.wait_for_function("(n) => told.filter((it) => it.name === 'sent').length === n", arg=count)
        assert await page.evaluate("hb.queued().length") == 1
        await page.evaluate("hb.flush()")
    await page.wait_for_function("hb.queued().length === 0")
    assert len({event["event_id"] for event in recorder.reports("/v1/events")}) == 1


async def test_a_report_that_a_firewall_refuses_keeps_no_other_waiting(visit: MakePage, recorder: RecordingApi) -> None:
    recorder.answers = [(403, "refused")] * 2
    page = await visit()
    await page.evaluate(
        """(o) => {
          open(o);
          hb.deciding++;  // so that they go together
          for (const name of ["bad", "good", "fine"]) hb.track(name).catch(() => {});
          hb.deciding--;
          hb.flush();
        }""",
        options(recorder),
    )
    await page.wait_for_function("told.some((it) => it.name === 'sent')")
    await page.evaluate("hb.flush()")
    await page.wait_for_function("hb.queued().length === 1")
    assert [event["event"] for event in recorder.reports("/v1/events")] == [
        "bad",
        "good",
        "fine",
        "bad",
        "good",
        "fine",
    ]
    await page.evaluate("hb.flush()")
    await page.wait_for_function("hb.queued().length === 0")


async def test_a_batch_that_is_too_large_is_sent_in_parts(visit: MakePage, recorder: RecordingApi) -> None:
    recorder.answers = [(413, "")]
    page = await visit()
    await left_by_an_earlier_page(page, 4)
    await page.evaluate("(o) => { open(o).release() }", options(recorder))
    await page.wait_for_function("hb.queued().length === 0")
    sizes = [len(body["events"]) for path, body in recorder.bodies if path == "/views/batch"]
    assert sizes == [4, 2, 2]


async def test_calls_of_one_millisecond_keep_their_order_however_they_are_sent(
    visit: MakePage, recorder: RecordingApi
) -> None:
    page = await visit()
    await page.evaluate(
        """(o) => {
          const now = Date.now();
          Date.now = () => now;
          open(o);
          for (let n = 0; n < 120; n++) hb.track("step", { n });
        }""",
        options(recorder),
    )
    await eventually(lambda: len(recorder.reports("/v1/events")) == 120)
    events = recorder.reports("/v1/events")
    assert [event["properties"]["n"] for event in events] == list(range(120))
    ids = [event["event_id"] for event in events]
    assert ids == sorted(ids)
    assert len({event["timestamp"] for event in events}) == 1


async def test_a_click_has_its_own_time(visit: MakePage, recorder: RecordingApi) -> None:
    page = await visit()
    recorder.banners = [{"banner_id": "b", "z_duration_sec": 3600, "title": "Tea"}]
    await page.evaluate("(o) => { open(o).show(document.getElementById('slot')) }", options(recorder))
    await page.wait_for_function("told.some((it) => it.name === 'shown' && performance.now() - it.at > 50)", polling=10)
    await page.evaluate("hb.click(told.find((it) => it.name === 'shown').showing, '/pots')")
    (click, *_) = await eventually(lambda: recorder.reports("/click"), what="the click")
    (impression, *_) = recorder.reports("/impression")
    assert impression["occurredAt"] < click["occurredAt"]
    assert impression["correlationId"][4:] == click["correlationId"][4:]


async def test_new_reports_wait_while_the_server_asks_for_patience(visit: MakePage, recorder: RecordingApi) -> None:
    recorder.answers = [(503, {"code": "BUSY"})]
    page = await visit()
    outcomes = await page.evaluate(
        """async (o) => {
          open(o).tries = 8;  // the next wait is minutes long
          return [await hb.track("one"), await hb.track("two")];
        }""",
        options(recorder),
    )
    assert outcomes == ["queued", "queued"]
    assert [event["event"] for event in recorder.reports("/v1/events")] == ["one"]
    await page.evaluate("dispatchEvent(new Event('online'))")
    await page.wait_for_function("hb.queued().length === 0")
    assert [event["event"] for event in recorder.reports("/v1/events")] == ["one", "one", "two"]
