"""History from a file: lines of JSON or CSV become events of one tenant, through the journal like all others.

A line that cannot be used is named with its number and skipped; the rest goes on. Ids count once, so a file may be
given again, whole or from where it stopped. Events of one time stand in the order of their lines.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from handbill.banners import wire
from handbill.banners.catalogue import Catalogue, Found, Kind
from handbill.banners.wire import ClickIn, ImpressionIn, Timing, ViewIn
from handbill.events.model import HISTORY_SEQUENCE, IMPORTED, Click, Counted, Impression, Reason, View
from handbill.events.service import EventsService
from handbill.kit.clock import Clock
from handbill.kit.errors import Invalid
from handbill.kit.record_files import RecordFile
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
    """One record of the file: its first and last line, where the next one begins, and its fields or what is wrong."""

    number: int
    last_line: int
    end: int
    fields: dict[str, Any] | str


class _UnknownObject(Invalid):
    """A line names something that does not exist."""


class Refused(msgspec.Struct, frozen=True):
    line: int
    why: str


class Imported(msgspec.Struct, frozen=True):
    """One chunk's outcome; `offset` is where to go on. `duplicates` were counted before."""

    sent: int
    refused: list[Refused]
    offset: int
    line: int
    duplicates: int = 0


def lines(path: Path, offset: int = 0, number: int = 0) -> Iterator[Line]:
    """The file from an offset on, record by record, in bounded memory: CSV by its first line's names, or JSON."""
    with RecordFile(path) as file:
        for record in file.records(offset, number):
            yield Line(record.line, record.last_line, record.end, _fields(record.raw, file))


def _fields(raw: bytes | None, file: RecordFile) -> dict[str, Any] | str:
    if raw is None:
        return "is too long"
    try:
        if file.is_csv:
            cells = file.cells(raw)
            if len(cells) != len(file.names):
                return f"has {len(cells)} cells, the first line has {len(file.names)}"
            return {name: cell for name, cell in zip(file.names, cells, strict=True) if cell != ""}
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
        events: list[Counted] = []
        numbers: list[int] = []
        refused: list[Refused] = []
        reasons: Counter[Reason] = Counter()
        for index, line in enumerate(chosen):
            try:
                events.append(await self._event(tenant, kind, line, index))
                numbers.append(line.number)
            except Invalid as error:
                refused.append(Refused(line.number, error.detail))
                reasons[Reason.UNKNOWN_OBJECT if isinstance(error, _UnknownObject) else Reason.MALFORMED_EVENT] += 1
        stored = await self._events.accept_history(tenant, events)
        await self._events.count_drops(tenant, kind, reasons)
        copies = sum(reason is Reason.DUPLICATE for reason in stored.values())
        refused += [Refused(numbers[n], why.value) for n, why in stored.items() if why is not Reason.DUPLICATE]
        refused.sort(key=lambda each: each.line)
        return Imported(len(events) - len(stored), refused, chosen[-1].end, chosen[-1].last_line, copies)

    async def _event(self, tenant: int, kind: ImportKind, line: Line, index: int) -> Counted:
        if isinstance(line.fields, str):
            raise Invalid(line.fields)
        shape = HistoricView if kind == "view" else _KINDS[kind]
        try:
            sent = msgspec.convert(line.fields, shape, strict=False)
        except msgspec.ValidationError as error:
            raise Invalid(str(error)) from None
        received = self._clock.now_ms()
        if isinstance(sent, HistoricView):
            sequence = sequence_of_report(sent.event_id, received) or HISTORY_SEQUENCE + line.number
            return await self._view(tenant, sent, wire.timing(sent.viewed_at, received, index), sequence)
        assert isinstance(sent, ImpressionIn | ClickIn)
        banner = await self._number(tenant, "banner", sent.bannerPublicId)
        placement = await self._number(tenant, "placement", sent.placementPublicId)
        if sent.campaignPublicId is not None:
            campaign: int | None = await self._number(tenant, "campaign", sent.campaignPublicId)
        else:
            shown = await self._catalogue.banner(Found(tenant, banner))
            campaign = shown.campaign_id if shown is not None else None
        time = wire.timing(sent.occurredAt, received, index)
        sequence = sequence_of_report(sent.correlationId, received) or HISTORY_SEQUENCE + line.number
        common = (
            tenant, sent.correlationId, time.at, received, banner, placement, campaign,
            sent.userId, sent.sessionId, sent.deviceType, sent.countryCode, sent.pageUrl, (IMPORTED,),
        )  # fmt: skip
        if isinstance(sent, ClickIn):
            return Click(*common, sent.destinationUrl, sent.variant, time.micros, sequence)
        return Impression(*common, sent.referrerUrl, sent.variant, time.micros, sequence)

    async def _view(self, tenant: int, sent: HistoricView, time: Timing, sequence: int) -> View:
        banner_id = await self._number(tenant, "banner", sent.banner_id)
        banner = await self._catalogue.banner(Found(tenant, banner_id))
        long_enough = banner is not None and sent.view_duration_ms >= banner.z_duration_sec * 1000
        placement = await self._number(tenant, "placement", sent.placement_id) if sent.placement_id else None
        return View(
            tenant, sent.event_id, time.at, time.received, banner_id, placement, banner.campaign_id if banner else None,
            sent.user_id, sent.session_id, None, None, None, (IMPORTED,), sent.device_id, sent.view_duration_ms,
            sent.dismissed, sent.dismissed or long_enough, None, sent.viewable, None,
            time.micros, sequence,
        )  # fmt: skip

    async def _number(self, tenant: int, kind: Kind, public_id: Any) -> int:
        found = await self._catalogue.find(kind, public_id)
        if found is None or found.tenant_id != tenant:
            raise _UnknownObject(f"names no {kind} of this tenant: {public_id}")
        return found.id
