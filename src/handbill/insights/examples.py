"""What the routes' bodies look like, for a reader of the OpenAPI page."""

from __future__ import annotations

from typing import Any

_AT = "2026-07-01T00:00:00Z"
_ID = "0190163d-8694-739b-aea5-966c26f8ad91"
_RANGE: dict[str, Any] = {"from": "2026-07-01", "to": "2026-07-02"}
_ALL: dict[str, Any] = {"kind": "all", "value": None}

ASK_TRENDS: dict[str, Any] = {
    **_RANGE,
    "interval": "day",
    "series": [{"event": "purchase", "measure": "sum", "of": "amount"}, {"event": "purchase", "measure": "people"}],
    "breakdown": {"column": "country"},
    "filters": [{"property": "plan", "op": "in", "values": ["pro", "team"]}],
    "compare": True,
}
TRENDS: dict[str, Any] = {
    "points": [_AT],
    "lines": [
        {
            "series": 0,
            "group": {"kind": "value", "value": "NL"},
            "figures": [129.5],
            "total": 129.5,
            "previous": [80.0],
            "previous_total": 80.0,
        }
    ],
    "zone": "Europe/Amsterdam",
    "previous_points": ["2026-06-30T00:00:00Z"],
}
ASK_FUNNEL: dict[str, Any] = {
    **_RANGE,
    "steps": [{"event": "$pageview"}, {"event": "signup"}, {"event": "purchase"}],
    "window_s": 604800,
}
FUNNEL: dict[str, Any] = {
    "lines": [
        {
            "group": _ALL,
            "steps": [
                {"people": 200, "of_first": 1.0, "of_previous": 1.0, "median_s": None},
                {"people": 50, "of_first": 0.25, "of_previous": 0.25, "median_s": 84.2},
            ],
        }
    ],
    "zone": "UTC",
}
ASK_RETENTION: dict[str, Any] = {**_RANGE, "begins": {"event": "signup"}, "returns": {}, "period": "week"}
RETENTION: dict[str, Any] = {
    "cohorts": [{"at": _AT, "people": 120, "returned": [40, 22]}],
    "period": "week",
    "zone": "UTC",
}
EVENT: dict[str, Any] = {
    "at": "2026-06-30T23:59:59.123456Z",
    "received": _AT,
    "event": "purchase",
    "event_id": _ID,
    "distinct_id": "user-42",
    "person_id": _ID,
    "session_id": None,
    "properties": {"amount": 12.5},
    "url": "https://shop.example.com/thanks",
    "referrer": None,
    "country": "NL",
    "browser": "Firefox",
    "os": "Linux",
    "device_type": "desktop",
    "lib": "handbill.js",
    "source": "own",
    "marks": [],
    "key": "b1946ac92492d2347c6235b4d2611184",
}
EVENTS: dict[str, Any] = {"items": [EVENT], "next": None}
WHEREABOUTS: dict[str, Any] = {
    "event_id": _ID,
    "outcome": "counted",
    "said": "Counted as capture.",
    "kind": "capture",
    "counted_at": _AT,
    "parked": [],
    "stored": {"state": "shipped", "row": EVENT},
    "person_id": _ID,
    "names": {},
}
TAIL = (
    'event: seen\ndata: {"status":"accepted","event":"purchase","event_id":"e-1","at":"2026-06-30T23:59:59.123456Z",'
    '"received":"2026-07-01T00:00:00Z","distinct_id":"user-42","session_id":null,"url":null,"reason":null,'
    '"properties":{}}\n\n'
)
TRENDS_CSV = "at,period,series,event,measure,of,group,value,figure,unidentified\r\n"
FUNNEL_CSV = "group,value,step,people,of_first,of_previous,median_s,unidentified\r\nall,,1,200,1.0,1.0,,\r\n"
RETENTION_CSV = (
    "at,people,periods_later,returned,unidentified_begins,unidentified_returns\r\n"  # and a line of each period
    "2026-07-01T00:00:00+00:00,120,0,120,,\r\n"
)
EVENTS_CSV = "at,received,event,event_id,distinct_id\r\n"
