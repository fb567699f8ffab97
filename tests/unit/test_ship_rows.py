"""How an event becomes a row: its own words first, then its user agent and address; and how rows become inserts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.events import enrich, shipping_rows
from handbill.events.history import expired
from handbill.events.model import CapturedEvent, Click, Counted, Impression, Row, View, decode, encode, key
from handbill.events.shipping_rows import (
    CLASSES,
    COLUMNS,
    Number,
    RowMaker,
    inserts,
    retention_class,
    without_names,
)  # fmt: skip
from handbill.kit.agents import agent_of
from tests.kit.shipping import AGENTS, no_public_ids

MAC, PHONE = AGENTS[1] or "", AGENTS[2] or ""
SOMEBODY = UUID(int=9)


def made(**fields: object) -> CapturedEvent:
    return CapturedEvent(7, "e", 1_000, 2_000, "seen", "d", "own", **fields)  # type: ignore[arg-type]


def row_of(event: object, country: str | None = None) -> dict[str, object]:
    maker = RowMaker(lambda tenant, name: SOMEBODY, lambda address: country, no_public_ids)
    kind, name = event.kind, event.id  # type: ignore[attr-defined]
    record = maker.record(Row(0, key(kind, name), event, b""), {}, 90)  # type: ignore[arg-type]
    return dict(zip(COLUMNS, record, strict=True))


def test_the_user_agent_fills_only_what_the_sender_left_out() -> None:
    found = row_of(made(user_agent=MAC))
    assert (found["browser"], found["browser_version"], found["os"], found["device_type"]) == (
        "Chrome", "126.0", "Mac OS X", "Desktop",
    )  # fmt: skip
    found = row_of(made(user_agent=MAC, browser="Ours", os="Phone OS", os_version="3"))
    assert (found["browser"], found["browser_version"], found["os"], found["os_version"], found["device_type"]) == (
        "Ours", "", "Phone OS", "3", "Desktop",
    )  # fmt: skip
    assert row_of(made(user_agent=PHONE))["device_type"] == "Mobile"
    assert row_of(made())["browser"] == ""
    assert agent_of("x" * 100_000).browser == ""


@pytest.mark.parametrize(
    ("properties", "ip", "said"),
    [
        (b"{}", None, ""),
        (b"{}", "203.0.113.1", "DE"),
        (b'{"$geoip_country_code":"fr"}', "203.0.113.1", "FR"),
        (b'{"$geoip_country_code":17}', "203.0.113.1", "DE"),
        (b'{"$geoip_country_code":"France"}', "203.0.113.1", "DE"),
        (b'{"other":"$geoip_country_code"}', "203.0.113.1", "DE"),
        (b'{"$geoip_country_code"', "203.0.113.1", "DE"),
        (b'{"$geoip_disable":true}', "203.0.113.1", ""),
        (b'{"$geoip_disable":true,"$geoip_country_code":"fr"}', "203.0.113.1", "FR"),
        (b'{"$geoip_disable":false}', "203.0.113.1", "DE"),
        (b'{"$geoip_disable":null}', "203.0.113.1", "DE"),
    ],
)
def test_the_country_the_sender_named_comes_first(properties: bytes, ip: str | None, said: str) -> None:
    assert row_of(made(properties=properties, ip=ip), "de")["country"] == said


@given(st.none() | st.integers(-(2**40), 2**40))
def test_a_screen_is_small_or_not_known(number: int | None) -> None:
    found = enrich.pixels(number)
    assert found == (number if number is not None and 0 <= number < 65_536 else None)


def test_banner_events_are_events_of_somebody() -> None:
    head = (7, "e", 1_000, 2_000, 5, 6, None)
    seen = row_of(Impression(*head, user="u", session="s", country="de", device="mobile", referrer="/r"))
    assert seen["event"] == "$banner_impression"
    assert (seen["distinct_id"], seen["session_id"], seen["country"], seen["device_type"]) == ("u", "s", "DE", "Mobile")
    assert (seen["banner_id"], seen["placement_id"], seen["campaign_id"], seen["retention"]) == (5, 6, 0, 90)
    assert seen["referrer"] == "/r"
    assert row_of(Click(*head, session="s"))["distinct_id"] == "s"
    view = row_of(View(*head, device_id="dev", counted=False))
    assert view["distinct_id"] == "dev"
    assert b'"counted":false' in view["properties"]  # type: ignore[operator]
    assert row_of(Impression(*head))["distinct_id"] == "event:e"


@given(st.lists(st.integers(1, 20 << 20), max_size=12))
def test_rows_are_cut_by_size_and_none_is_left_out(sizes: list[int]) -> None:
    class Body(bytes):
        size = 0

        def __len__(self) -> int:
            return self.size

    rows = []
    for place, size in enumerate(sizes):
        body = Body()
        body.size = size
        rows.append(Row(place, b"", made(), body))
    parts = list(inserts(rows))
    assert [row for part in parts for row in part] == rows
    assert all(parts)
    for part in parts[:-1]:
        before = sum(len(row.body) for row in part[:-1])
        assert before < shipping_rows.INSERT_BYTES <= before + len(part[-1].body)


@given(st.integers(-5, 5_000))
def test_a_class_keeps_at_least_as_long_as_asked(days: int) -> None:
    found = retention_class(days)
    assert found == 0 if days <= 0 or days > CLASSES[-1] else found >= days


def test_a_month_goes_when_its_last_day_has_been_kept_long_enough() -> None:
    assert not expired("(0,202001)", datetime(2026, 1, 1, tzinfo=UTC))
    assert not expired("(90,202601)", datetime(2026, 5, 1, 23, 59, tzinfo=UTC))
    assert expired("(90,202601)", datetime(2026, 5, 2, tzinfo=UTC))
    assert expired("(30,202512)", datetime(2026, 1, 31, tzinfo=UTC))
    assert not expired("tuple()", datetime(2026, 1, 31, tzinfo=UTC))


@given(
    st.lists(st.sampled_from(["a", "\\\\", "\\n", "\\ud800", "\\uDC00", "\\u00e9", "\\ufffd", "u", "d800"]), max_size=8)
)
def test_half_a_character_becomes_a_whole_one_and_all_else_stays(parts: list[str]) -> None:
    """What Python reads of it, with every lone half replaced, is what the row says."""
    text = "".join(parts)
    read = json.loads(f'"{text}"')
    whole = read.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    found = enrich.sound(f'{{"a":"{text}"}}'.encode())
    assert json.loads(found)["a"] == whole
    if read == whole:
        assert found == f'{{"a":"{text}"}}'.encode()


def test_a_view_from_before_viewability_was_kept_is_read() -> None:
    view = View(8, "v", 1, 2, 3, variant="b")
    array = msgspec.msgpack.decode(encode(view))
    assert decode(msgspec.msgpack.encode(array[:-1])) == view
    told = msgspec.structs.replace(view, viewable=True)
    assert decode(encode(told)) == told


async def test_a_banner_event_says_what_it_was_about_by_public_ids() -> None:
    asked: list[Collection[Number]] = []

    async def public_ids(numbers: Collection[Number]) -> Mapping[Number, str]:
        asked.append(numbers)
        return {number: f"{number[1]} {number[2]} of {number[0]}" for number in numbers if number[2] != 99}

    maker = RowMaker(lambda tenant, name: SOMEBODY, lambda address: None, public_ids)
    events: list[Counted] = [
        Impression(7, "i", 1, 2, 3, 4, 5, "u", variant="b"),
        Click(7, "c", 1, 2, 3, None, 99, "u", destination="https://shop.example/"),
        View(8, "v", 1, 2, 3, user="u", duration_ms=5, counted=False),
        made(),
        View(8, "w", 1, 2, 3, user="u", variant="b", viewable=False),
        View(8, "x", 1, 2, 3, user="u", viewable=True),
    ]
    rows = [Row(place, key(event.kind, event.id), event, b"") for place, event in enumerate(events)]
    records = await maker.records(rows, {}, {})
    properties = [json.loads(dict(zip(COLUMNS, record, strict=True))["properties"]) for record in records]  # type: ignore[arg-type] # bytes
    about = {"banner_id": "banner 3 of 7", "placement_id": "placement 4 of 7", "campaign_id": "campaign 5 of 7"}
    view = {"duration_ms": 0, "dismissed": False, "counted": True}
    assert properties == [
        {**about, "variant": "b"},
        {"banner_id": "banner 3 of 7", "destination": "https://shop.example/"},
        {"banner_id": "banner 3 of 8", "duration_ms": 5, "dismissed": False, "counted": False},
        {},
        {"banner_id": "banner 3 of 8", "variant": "b", **view, "viewable": False},
        {"banner_id": "banner 3 of 8", **view, "viewable": True},
    ]
    banners = {(7, "banner", 3), (8, "banner", 3)}
    assert asked == [{*banners, (7, "placement", 4), (7, "campaign", 5), (7, "campaign", 99)}]
    await maker.records([rows[3]], {}, {})
    assert len(asked) == 1


def test_a_nameless_row_still_says_what_it_was_about_and_whether_it_counts() -> None:
    maker = RowMaker(lambda tenant, name: SOMEBODY, lambda address: None, no_public_ids)
    about: dict[str, Any] = {"user": "zoe", "session": "s", "device": "mobile", "country": "FR", "page": "/zoe"}
    events: list[Counted] = [
        Impression(7, "i", 1, 2, 3, **about, variant="b", referrer="/from-zoe"),
        Click(7, "c", 1, 2, 3, **about, variant="b", destination="/to-zoe"),
        View(7, "v", 1, 2, 3, **about, variant="b", device_id="zoes", duration_ms=5, dismissed=True),
    ]
    for event, said in zip(events, ({}, {}, {"duration_ms": 5, "dismissed": True, "counted": True}), strict=True):
        row = without_names(Row(0, key(event.kind, event.id), event, b""), SOMEBODY)
        numbers = {(7, "banner", 3): "banner"}
        record: Any = dict(zip(COLUMNS, maker.record(row, {}, 0, numbers), strict=True))
        assert json.loads(record["properties"]) == {"banner_id": "banner", "variant": "b", **said}
        assert (record["country"], record["device_type"], record["url"]) == ("FR", "Mobile", "")
        assert "zoe" not in str(record)
