"""Marks that depend on other events: a click nobody saw an impression for, repeats faster than a hand.

They are a function of the set of a day's rows, worked out with its roll-up and never while events arrive: so neither
the order of arrival nor a repetition can change them. The rows stay as they are; the marks stand beside them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from handbill.banners.dimensions import PAGE_LENGTH
from handbill.banners.event_filters import Chosen
from handbill.banners.tally import APART
from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx

S = sqlfiles.load("handbill.banners")

REACH = timedelta(days=1)
"""How far a row's word reaches: a late impression of the evening clears a click of the next morning."""

MOST_MARKS = 50_000
"""So many marks of one question are joined with their raw rows."""

DOCS = {
    "no_impression": "A click without an impression of that banner by the same session or user in the day before.",
    "too_fast": "A click less than a second after the one before it, same session or user, same banner.",
}


class Suspected(msgspec.Struct, frozen=True):
    reason: str
    """Why they are doubtful: `no_impression` or `too_fast`."""
    kind: str
    """The kind of event, e.g. click."""
    events: int
    """How many such events there are."""


async def judge(tx: Tx, tenant: int, start: datetime, end: datetime) -> int:
    """Work the marks of a range out anew; how many there are."""
    await tx.execute(S.forget_marks, tenant, start, end)
    about = (tenant, start, end, sorted(APART))
    marked = await tx.execute(S.mark_unseen_clicks, *about)
    return marked + await tx.execute(S.mark_fast_repeats, *about)


async def counted(
    tx: Tx, tenant: int, start: datetime, end: datetime, chosen: Chosen, limit: int = MOST_MARKS
) -> list[Suspected] | None:
    """Marked events that the filters leave. None where nobody can say: of more than `limit` marks, or of marked clicks
    whose raw rows are gone, a variant, country, device or page is not looked up."""
    about = (tenant, start, end, *chosen.numbers)
    if not chosen.by_value:
        return [Suspected(**dict(row)) for row in await tx.fetch(S.count_marks, *about)]
    wanted = (chosen.variants, chosen.countries, chosen.devices, chosen.pages)
    texts = [list(values) or None for values in wanted]
    rows = await tx.fetch(S.count_marks_of_clicks, *about, *texts, PAGE_LENGTH, limit + 1)
    if any(row["gone"] for row in rows) or sum(row["looked_at"] for row in rows) > limit:
        return None
    return [Suspected(row["reason"], row["kind"], row["events"]) for row in rows if row["events"]]
