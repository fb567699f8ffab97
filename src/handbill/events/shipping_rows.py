"""Events as rows of ClickHouse's table, and how many of them make one insert."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

import msgspec

from handbill.events import enrich
from handbill.events.model import NO_PROPERTIES, BannerEvent, CapturedEvent, Click, Impression, Row, View
from handbill.kit.turns import Turns

COLUMNS = (
    "tenant_id", "at", "received", "event", "event_id", "event_key", "distinct_id", "person_id", "session_id",
    "properties", "set", "set_once", "unset", "url", "referrer", "country", "browser", "browser_version", "os",
    "os_version", "device_type", "language", "timezone", "screen_width", "screen_height", "ip", "user_agent", "lib",
    "source", "banner_id", "placement_id", "campaign_id", "marks", "retention", "micros", "sequence",
)  # fmt: skip
CLASSES = (7, 30, 90, 180, 365, 730, 1_825, 3_650)
"""Days; 0 means for ever. Few of them, since each has partitions of its own."""
INSERT_BYTES = 16 << 20
_WORD = 200
_NAMES = {Impression: "$banner_impression", Click: "$banner_click", View: "$banner_view"}
_json = msgspec.json.Encoder()

PersonOf = Callable[[int, str], UUID]
"""Who a distinct id would be alone. Handed in by the wiring: people live in a room above this one."""
Number = tuple[int, str, int]
"""(tenant, `banner`, `placement` or `campaign`, its number)"""
PublicIds = Callable[[Collection[Number]], Awaitable[Mapping[Number, str]]]
"""The public ids of these; one that is not known may be left out. Handed in by the wiring."""
Record = tuple[object, ...]


def retention_class(days: int) -> int:
    """The shortest class that keeps rows for at least so long."""
    return next((each for each in CLASSES if days <= each), 0) if days > 0 else 0


def distinct_id_of(row: Row) -> str:
    """Whose event it is: never empty."""
    event = row.event
    if type(event) is CapturedEvent:
        return event.distinct_id
    return event.user or event.session or _device(event) or f"event:{event.id}"


def without_names(row: Row, new: UUID) -> Row:
    """The same row as an erasure would leave it: it counts, and says nothing of anybody."""
    nobody = f"erased:{new}"
    event = row.event
    if type(event) is CapturedEvent:
        kept = msgspec.structs.replace(
            event, id="", distinct_id=nobody, properties=NO_PROPERTIES, set=None, set_once=None, unset=None,
            session=None, ip=None, user_agent=None, url=None, referrer=None,
        )  # fmt: skip
        return msgspec.structs.replace(row, event=kept)
    banner = msgspec.structs.replace(event, id="", user=nobody, session=None, page=None)
    if type(banner) is Impression:
        banner = msgspec.structs.replace(banner, referrer=None)
    elif type(banner) is Click:
        banner = msgspec.structs.replace(banner, destination="")
    elif type(banner) is View:
        banner = msgspec.structs.replace(banner, device_id=None)
    return msgspec.structs.replace(row, event=banner)


def inserts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Cut by the size of the journal's bytes: the same rows are always cut in the same places."""
    begin = size = 0
    for place, row in enumerate(rows):
        size += len(row.body)
        if size >= INSERT_BYTES:
            yield rows[begin : place + 1]
            begin, size = place + 1, 0
    if begin < len(rows):
        yield rows[begin:]


class RowMaker:
    """`people`: persons of ids that were squashed; everybody else is who the id would be alone."""

    def __init__(self, person_of: PersonOf, country: enrich.Country, public_ids: PublicIds) -> None:
        self._person_of = person_of
        self._country = country
        self._public_ids = public_ids

    async def records(
        self, rows: Sequence[Row], people: Mapping[tuple[int, str], UUID], classes: Mapping[int, int]
    ) -> list[Record]:
        """Others have their turn on the loop: the rows of one insert may take more than a second."""
        records, turns = [], Turns()
        numbers = {number for row in rows if type(row.event) is not CapturedEvent for number in _numbers(row.event)}
        public_ids = await self._public_ids(numbers) if numbers else {}
        for row in rows:
            records.append(self.record(row, people, classes.get(row.event.tenant, 0), public_ids))
            await turns.count(len(row.body))
        return records

    def record(
        self,
        row: Row,
        people: Mapping[tuple[int, str], UUID],
        retention: int,
        public_ids: Mapping[Number, str] = MappingProxyType({}),
    ) -> Record:
        event = row.event
        who = distinct_id_of(row)
        person = people.get((event.tenant, who)) if people else None
        if person is None:
            person = self._person_of(event.tenant, who)
        if type(event) is CapturedEvent:
            return self._capture(row, event, person, retention)
        return self._banner(row, event, who, person, retention, public_ids)

    def _capture(self, row: Row, event: CapturedEvent, person: UUID, retention: int) -> Record:
        agent = enrich.agent(event)
        return (
            event.tenant, event.at, event.received, event.name, event.id, row.key, event.distinct_id, person,
            event.session or "", enrich.sound(event.properties), enrich.sound(event.set), enrich.sound(event.set_once),
            enrich.sound(event.unset),
            event.url or "", event.referrer or "", enrich.country(event, self._country), agent.browser[:_WORD],
            agent.browser_version[:_WORD], agent.os[:_WORD], agent.os_version[:_WORD], agent.device_type[:_WORD],
            (event.language or "")[:_WORD], (event.timezone or "")[:_WORD], enrich.pixels(event.screen_width),
            enrich.pixels(event.screen_height), event.ip or "", event.user_agent or "", (event.lib or "")[:_WORD],
            event.dialect, 0, 0, 0, event.marks, retention, event.micros, event.sequence,
        )  # fmt: skip

    def _banner(
        self, row: Row, event: BannerEvent, who: str, person: UUID, retention: int, public_ids: Mapping[Number, str]
    ) -> Record:
        device = event.device or ""
        return (
            event.tenant, event.at, event.received, _NAMES[type(event)], event.id, row.key, who, person,
            event.session or "", _properties(event, public_ids), b"", b"", b"", event.page or "", _referrer(event),
            (event.country or "").upper()[:_WORD], "", "", "", "", device.capitalize()[:_WORD], "", "", None, None, "",
            "", "", "banners", event.banner, event.placement or 0, event.campaign or 0, event.marks, retention,
            event.micros, event.sequence,
        )  # fmt: skip


def _device(event: BannerEvent) -> str | None:
    return event.device_id if type(event) is View else None


def _referrer(event: BannerEvent) -> str:
    return event.referrer or "" if type(event) is Impression else ""


def _numbers(event: BannerEvent) -> list[Number]:
    """What the event names by numbers."""
    named = (("banner", event.banner), ("placement", event.placement), ("campaign", event.campaign))
    return [(event.tenant, kind, number) for kind, number in named if number is not None]


def _properties(event: BannerEvent, public_ids: Mapping[Number, str]) -> bytes:
    """What it was about, by public ids, and what only this kind of event has."""
    properties: dict[str, object] = {
        f"{number[1]}_id": public_ids[number] for number in _numbers(event) if number in public_ids
    }
    if event.variant is not None:
        properties["variant"] = event.variant
    if type(event) is Click and event.destination:
        properties["destination"] = event.destination
    elif type(event) is View:
        properties |= {"duration_ms": event.duration_ms, "dismissed": event.dismissed, "counted": event.counted}
        if event.device_id is not None:
            properties["device_id"] = event.device_id
        if event.viewable is not None:
            properties["viewable"] = event.viewable
        if event.required_ms is not None:
            properties["required_ms"] = event.required_ms
    return _json.encode(properties)
