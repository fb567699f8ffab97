"""How far an import is, how fast it goes, and when it will be done: pure arithmetic over its parts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from handbill.contacts.import_store import Stored
from handbill.contacts.model import Counts, Progress

PARSING = 0.6
"""The share of the whole time that reading usually takes; merging takes the rest."""

Sums = Mapping[str, Mapping[str, int]]


def counted(sums: Sums, policy: str) -> Counts:
    """The counts of everything done so far."""
    chunk, part = sums["chunk"], sums["slice"]
    matched = part.get("matched", 0)
    updated = part.get("updated", 0)
    return Counts(
        rows=chunk.get("rows", 0),
        created=part.get("created", 0),
        updated=updated,
        unchanged=0 if policy == "skip" else matched - updated,
        skipped=matched if policy == "skip" else 0,
        duplicates=part.get("rows", 0) - part.get("keys", 0),
        rejected=chunk.get("rejected", 0),
        blank=chunk.get("blank", 0),
        noted=chunk.get("noted", 0),
        repaired=sum(total for key, total in chunk.items() if key.startswith("repair:")),
    )


def progress(one: Stored, sums: Sums, now: datetime) -> Progress:
    info, parsed = one.info, sums["chunk"].get("rows", 0)
    merged = sums["slice"].get("rows", 0) + sums["chunk"].get("rejected", 0) + sums["chunk"].get("blank", 0)
    merged = merged if info.status in ("merging", "done", "undoing", "undone") else 0
    end = info.finished_at or now
    seconds = (end - info.started_at).total_seconds() if info.started_at else 0.0
    share = (PARSING * parsed + (1 - PARSING) * merged) / one.rows if one.rows else 0.0
    rate = share * one.rows / seconds if seconds > 0 and share > 0 else None
    left = None
    if info.status in ("parsing", "parsed", "merging") and not info.paused and share > 0:
        left = round(seconds * (1 - share) / share, 1)
    return Progress(
        "paused" if info.paused else info.status, one.rows, parsed, merged, round(rate, 1) if rate else None, left
    )
