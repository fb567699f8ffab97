"""History from a file: lines of JSON or CSV become events of one tenant, through the journal like all others.

A line that cannot be used is named with its number and skipped; the rest goes on. Ids count once, so a file may be
given again, whole or from where it stopped. Events of one time stand in the order of their lines.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from handbill.banners import wire
from handbill.banners.catalogue import Catalogue, Found, Kind
from handbill.banners.wire import ClickIn, ImpressionIn, Timing, ViewIn
from handbill.events.model import IMPORTED, Click, Event, Impression, View
from handbill.events.service import EventsService
from handbill.kit.clock import Clock
from handbill.kit.errors import Invalid
from handbill.kit.report_ids import sequence_of_report
from handbill.kit.untrusted_json import UNREADABLE

CHUNK = 500
ImportKind = Literal["impression", "click", "view"]
_KINDS: dict[str, type[ImpressionIn] | type[ClickIn] | type[ViewIn]] = {
    "impression": ImpressionIn,
    "click": ClickIn,
    "view": ViewIn,
}


class HistoricView(ViewIn, frozen=True):
    """A view from a file says itself when it was."""

    viewed_at: wire.When | None = None


class Line(msgspec.Struct, frozen=True):
    """One line of the file: its number, where the next one begins, and its fields or what is wrong with it."""

    number: int
    end: int
    fields: dict[str, Any] | str


class Refused(msgspec.Struct, frozen=True):
    line: int
    why: str


class Imported(msgspec.Struct, frozen=True):
    """One chunk's outcome; `offset` is where to go on."""

    sent: int
    refused: list[Refused]
    offset: int
    line: int


def lines(path: Path, offset: int = 0, number: int = 0) -> Iterator[Line]:
    """The file from an offset on, line by line, in bounded memory. CSV by its first line's names, else JSON lines."""
    is_csv = path.suffix.lower() == ".csv"
    with path.open("rb") as file:
        names = _names(file.readline()) if is_csv else []
        if is_csv and offset == 0:
            offset, number = file.tell(), 1
        file.seek(offset)
        while raw := file.readline():
            if is_csv:  # a quoted cell may hold the end of a line
                while raw.count(b'"') % 2 and (more := file.readline()):
                    raw += more
            number += 1
            if raw.strip():
                yield Line(number, file.tell(), _fields(raw, names))


def _names(raw: bytes) -> list[str]:
    return next(csv.reader(io.StringIO(raw.decode("utf-8-sig", "replace"))), [])


def _fields(raw: bytes, names: Sequence[str]) -> dict[str, Any] | str:
    try:
        if names:
            cells = next(csv.reader(io.StringIO(raw.decode("utf-8")), strict=True))
            if len(cells) != len(names):
                return f"has {len(cells)} cells, the first line has {len(names)}"
            return {name: cell for name, cell in zip(names, cells, strict=True) if cell != ""}
        found = msgspec.json.decode(raw)
    except (csv.Error, *UNREADABLE) as error:
        return f"cannot be read: {error}"
    return found if isinstance(found, dict) else "is no JSON object"


class Importer:
    def __init__(self, catalogue: Catalogue, events: EventsService, clock: Clock) -> None:
        self._catalogue = catalogue
        self._events = events
        self._clock = clock

    async def chunk(self, tenant: int, kind: ImportKind, chosen: Sequence[Line]) -> Imported:
        """Send these lines; durable when it returns."""
        events: list[Event] = []
        refused: list[Refused] = []
        for index, line in enumerate(chosen):
            try:
                events.append(await self._event(tenant, kind, line, index))
            except Invalid as error:
                refused.append(Refused(line.number, error.detail))
        await self._events.accept(events)
        return Imported(len(events), refused, chosen[-1].end, chosen[-1].number)

    async def _event(self, tenant: int, kind: ImportKind, line: Line, index: int) -> Event:
        if isinstance(line.fields, str):
            raise Invalid(line.fields)
        shape = HistoricView if kind == "view" else _KINDS[kind]
        try:
            sent = msgspec.convert(line.fields, shape, strict=False)
        except msgspec.ValidationError as error:
            raise Invalid(str(error)) from None
        received = self._clock.now_ms()
        if isinstance(sent, HistoricView):
            place = sequence_of_report(sent.event_id, received) or line.number
            return await self._view(tenant, sent, wire.timing(sent.viewed_at, received, index), place)
        assert isinstance(sent, ImpressionIn | ClickIn)
        banner = await self._number(tenant, "banner", sent.bannerPublicId)
        placement = await self._number(tenant, "placement", sent.placementPublicId)
        if sent.campaignPublicId is not None:
            campaign: int | None = await self._number(tenant, "campaign", sent.campaignPublicId)
        else:
            shown = await self._catalogue.banner(Found(tenant, banner))
            campaign = shown.campaign_id if shown is not None else None
        time = wire.timing(sent.occurredAt, received, index)
        place = sequence_of_report(sent.correlationId, received) or line.number
        common = (
            tenant, sent.correlationId, time.at, received, banner, placement, campaign,
            sent.userId, sent.sessionId, sent.deviceType, sent.countryCode, sent.pageUrl, (IMPORTED,),
        )  # fmt: skip
        if isinstance(sent, ClickIn):
            return Click(*common, sent.destinationUrl, sent.variant, time.micros, place)
        return Impression(*common, sent.referrerUrl, sent.variant, time.micros, place)

    async def _view(self, tenant: int, sent: HistoricView, time: Timing, number: int) -> View:
        banner_id = await self._number(tenant, "banner", sent.banner_id)
        banner = await self._catalogue.banner(Found(tenant, banner_id))
        long_enough = banner is not None and sent.view_duration_ms >= banner.z_duration_sec * 1000
        placement = await self._number(tenant, "placement", sent.placement_id) if sent.placement_id else None
        return View(
            tenant, sent.event_id, time.at, time.received, banner_id, placement, banner.campaign_id if banner else None,
            sent.user_id, sent.session_id, None, None, None, (IMPORTED,), sent.device_id, sent.view_duration_ms,
            sent.dismissed, sent.dismissed or long_enough, None, sent.viewable, None,
            time.micros, number,
        )  # fmt: skip

    async def _number(self, tenant: int, kind: Kind, public_id: Any) -> int:
        found = await self._catalogue.find(kind, public_id)
        if found is None or found.tenant_id != tenant:
            raise Invalid(f"names no {kind} of this tenant: {public_id}")
        return found.id
