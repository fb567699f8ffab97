"""Records of a file of history: our own elements, a PostHog export, Segment's messages. A line is one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec
from msgspec import Raw

from handbill.events.dialects import own, posthog, segment
from handbill.events.dialects.canon import Moment, Parsed, Refused, Terms
from handbill.events.dialects.posthog_export import export_fields
from handbill.events.dialects.reading import decoded, fields_of, mended
from handbill.events.model import HISTORY_SEQUENCE
from handbill.events.reasons import Reason
from handbill.kit.errors import Fault
from handbill.kit.untrusted_json import UNREADABLE, is_deep

_raw = msgspec.json.Decoder(Raw)


class FileFormat(StrEnum):
    HANDBILL = "handbill"
    POSTHOG = "posthog"
    SEGMENT = "segment"
    CSV = "csv"


def read_file(file_format: FileFormat, lines: Sequence[bytes | Refused], numbers: Sequence[int], moment: Moment,
              terms: Terms) -> Parsed:  # fmt: skip
    """The events of these lines, in the order of their numbers. Rows of CSV come as our own elements."""
    parts = [line if isinstance(line, Refused) else _object(line) for line in lines]
    match file_format:
        case FileFormat.POSTHOG:
            parsed = posthog.read_history([_fields(part, is_export=True) for part in parts], moment, terms)
        case FileFormat.SEGMENT:
            parsed = segment.read_history([_fields(part) for part in parts], moment, terms)
        case FileFormat.HANDBILL | FileFormat.CSV:
            parsed = own.read_history(parts, moment, terms)
    events = [
        msgspec.structs.replace(event, sequence=HISTORY_SEQUENCE + numbers[place])
        for event, place in zip(parsed.events, parsed.places, strict=True)
    ]
    return msgspec.structs.replace(parsed, events=events)


def bad_line(why: str, reason: Reason = Reason.MALFORMED_EVENT) -> Refused:
    return Refused(reason, [Fault("line", why)])


def _object(line: bytes) -> Raw | Refused:
    body = mended(line).strip()
    if is_deep(body):
        return bad_line("is nested too deeply")
    try:
        found = bytes(decoded(_raw, body))
    except UNREADABLE as error:
        return bad_line(f"is no JSON: {str(error)[:200]}")
    return Raw(found) if found.startswith(b"{") else bad_line("is no JSON object")


def _fields(part: Raw | Refused, *, is_export: bool = False) -> dict[str, Raw] | Refused:
    if isinstance(part, Refused):
        return part
    try:
        return export_fields(fields_of(part)) if is_export else fields_of(part)
    except Refused as refused:
        return refused
