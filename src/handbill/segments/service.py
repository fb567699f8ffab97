"""The face of this room: segments and their editor, who keeps them fresh, and what decisions know of their user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.infra.state import StateTable
from handbill.kit.clock import Clock
from handbill.kit.ids import Ids
from handbill.segments.editor import Editor
from handbill.segments.erasure import Erasure
from handbill.segments.keeper import Keeper
from handbill.segments.known import Known
from handbill.segments.model import Member
from handbill.segments.projection import ACTIVE_HOURS, SEGMENTS, ProjectionKeys, needs_of, segments_in
from handbill.segments.projector import Projector
from handbill.tenants.service import TenantService

__all__ = [
    "ACTIVE_HOURS", "MEMBERS_PAGE", "SEGMENTS", "STATE", "Editor", "Keeper", "Known", "SegmentsService", "needs_of",
    "segments_in",
]  # fmt: skip

MEMBERS_PAGE = 1_000
STATE = (
    StateTable(
        "segments.segments",
        ("tenant_id", "id"),
        frozenset({"updated_at", "evaluated_at", "swept_at", "walking", "place"}),
    ),
    StateTable("segments.segment_members", ("tenant_id", "segment_id", "person_id")),
    StateTable("segments.needs", ("tenant_id", "need"), frozenset({"ready"})),
)


class SegmentsService:
    def __init__(
        self,
        database: Database,
        redis: Redis,
        tenants: TenantService,
        clock: Clock,
        *,
        keys: Keys | None = None,
        token: Callable[[], str] | None = None,
    ) -> None:
        ids, places = Ids(clock), ProjectionKeys(keys or Keys())
        projector = Projector(redis, places)
        self.editor = Editor(database, tenants.audit, clock, ids)
        self.keeper = Keeper(database, projector, clock, token or (lambda: ids.new().hex))
        self.known = Known(database, projector, places)
        self.erasure = Erasure(database, projector)

    async def start(self) -> None:
        """Nothing runs until somebody asks."""

    async def stop(self) -> None:
        await self.known.stop()

    async def size(self, tenant_id: int, segment: UUID) -> int:
        """How many people belong to it: kept as they come and go."""
        return (await self.editor.read(tenant_id, segment)).size

    async def inside(self, tenant_id: int, segment: UUID, distinct_ids: Sequence[str]) -> set[str]:
        """Which of these ids are somebody's who belongs to it. Busy while it is evaluated."""
        return await self.editor.inside(tenant_id, segment, distinct_ids)

    async def members(
        self, tenant_id: int, segment: UUID, after: UUID | None = None, limit: int = MEMBERS_PAGE
    ) -> list[Member]:
        """The audience, page by page: `after` is the last person of the page before. Busy while it is evaluated."""
        return await self.editor.members(tenant_id, segment, after, limit)
