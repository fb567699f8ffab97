"""What all banners of a tenant ask of people: checked when a banner is saved, and told to whoever keeps projections."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from handbill.banners import store
from handbill.banners.model import Banner
from handbill.banners.targeting.people import asked
from handbill.infra.postgres import Tx
from handbill.kit.errors import Fault, Invalid
from handbill.segments.service import ACTIVE_HOURS, Editor, segments_in


class Asking:
    """Without a room of segments beside it nothing is checked, and such rules hold for nobody."""

    def __init__(self, segments: Editor | None) -> None:
        self._segments = segments

    async def begin(self, tx: Tx, tenant_id: int, *rules: Any) -> None:
        """Before anything is written: nobody else changes segments or needs until the end, where these rules ask."""
        if any(asked(rule) for rule in rules):
            await self.hold(tx, tenant_id)

    async def hold(self, tx: Tx, tenant_id: int) -> None:
        """Nobody else changes segments or needs until the end."""
        if self._segments is not None:
            await self._segments.hold(tx, tenant_id)

    async def check(self, tx: Tx, banner: Banner) -> None:
        """A rule may name only segments that are there."""
        if self._segments is None:
            return
        unknown = await self._segments.unknown(tx, banner.tenant_id, segments_in(asked(banner.targeting)))
        if unknown:
            faults = [Fault("targeting.segment", f"{each} names no segment of yours") for each in sorted(unknown)]
            raise Invalid(
                "Nothing was changed: " + "; ".join(f"{fault.field} {fault.reason}" for fault in faults),
                code="SEGMENT_UNKNOWN",
                faults=faults,
            )

    async def tell(self, tx: Tx, tenant_id: int, *rules: Any) -> None:
        """After a banner with one of these rules was written: what all banners together ask now."""
        if any(asked(rule) for rule in rules):
            await self.want(tx, tenant_id)

    async def want(self, tx: Tx, tenant_id: int) -> None:
        """What all banners together ask now, and everybody's hours where smart scheduling is on."""
        if self._segments is None:
            return
        needs = [asked(rule) for _, rule in await store.person_rules(tx, tenant_id)]
        if (await store.read_deciding(tx, tenant_id)).smart_scheduling:
            needs.append(frozenset((ACTIVE_HOURS,)))
        await self._segments.want(tx, tenant_id, frozenset().union(*needs))


async def users_of(tx: Tx, tenant_id: int, segment: UUID) -> list[str]:
    """The names of banners whose rules name the segment."""
    rules = await store.person_rules(tx, tenant_id)
    return [f"the banner {name}" for name, rule in rules if segment in segments_in(asked(rule))]
