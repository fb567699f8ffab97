"""Insights, and what they are told of people, segments and banners."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from handbill.banners.public_ids import Names
from handbill.insights.onlooker import Onlooker
from handbill.insights.query_limiter import QueryLimits
from handbill.insights.service import Bounds, InsightsService, Tails
from handbill.people.service import PeopleService
from handbill.segments.service import SegmentsService

if TYPE_CHECKING:  # the house itself has parts of this
    from handbill.wiring.house import House


def insights(house: House) -> InsightsService:
    given = house.settings.insights
    tails = Tails(Onlooker(house.redis, [name for name, _ in house.lanes.all()]))
    return InsightsService(
        house.clickhouse,
        house.events,
        house.tenants.directory,
        tails,
        house.clock,
        ids_of=partial(_ids_of, house.people),
        names_of=Names(house.database).of,
        members_of=partial(_members_of, house.segments),
        bounds=Bounds(
            seconds=given.max_seconds,
            memory_bytes=given.max_memory_mb << 20,
            rows_read=given.max_rows_read,
            queries=QueryLimits(tenant_running=given.questions_at_once, running=given.questions_per_process),
        ),
    )


async def _ids_of(people: PeopleService, tenant: int, person: UUID) -> list[str]:
    return [each.distinct_id for each in (await people.person(tenant, person)).distinct_ids]


async def _members_of(segments: SegmentsService, tenant: int, segment: UUID, most: int) -> list[UUID]:
    """Page by page, until there are no more or enough."""
    found: list[UUID] = []
    while len(found) < most:
        page = await segments.members(tenant, segment, found[-1] if found else None)
        found += [member.person_id for member in page]
        if not page:
            break
    return found
