"""Which moments of a caller can be kept: PostgreSQL's driver reads the first and the last of Python's as infinite."""

from __future__ import annotations

from datetime import UTC, date, datetime

from handbill.kit.errors import Fault

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
MIN_DAY, MAX_DAY = date(1970, 1, 1), date(9999, 12, 1)
"""Days whose neighbours can be calculated with."""


def moment_faults(name: str, moment: datetime | None) -> list[Fault]:
    """The fault of one field, if it has one. A moment without a zone has, too."""
    if moment is None or (moment.tzinfo is not None and EARLIEST <= moment <= LATEST):
        return []
    return [Fault(name, "must be between 1970-01-01T00:00:00Z and 9999-12-31T23:59:59Z")]
