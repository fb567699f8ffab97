"""What the catalogue says about caps, in the caps' own words."""

from __future__ import annotations

from handbill.banners.catalogue import Catalogue
from handbill.banners.model import Banner
from handbill.caps.model import Kind, Limits, Window, scope
from handbill.kit.clock import to_ms

HOUR_MS = 3_600_000
_SPREAD_MS = 5_000
"""A process may go on with the old limit for as long as a change takes to reach it, with room to spare."""


def limits_of(banner: Banner) -> Limits:
    """X in Y hours. Views from before the limit was raised may be unknown to Redis."""
    raised = banner.limits_raised_at
    known_from = to_ms(raised) + _SPREAD_MS if raised is not None else 0
    return Limits((Window(banner.x_times, banner.y_hours * HOUR_MS),), known_from)


def scope_of(banner: Banner) -> int:
    return scope(Kind.BANNER, banner.id)


class CatalogueBook:
    """The limits of every scope, compiled once per snapshot."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._limits: dict[int, dict[int, Limits]] = {}
        self._longest: dict[int, int] = {}
        catalogue.watch(self._forget)

    def limits(self, tenant_id: int, scope: int) -> Limits | None:
        return self._of(tenant_id).get(scope)

    def longest_ms(self, tenant_id: int | None) -> int:
        if tenant_id is not None:
            self._of(tenant_id)
            return self._longest[tenant_id]
        return max((self.longest_ms(tenant) for tenant in self._catalogue.tenants()), default=HOUR_MS)

    def _of(self, tenant_id: int) -> dict[int, Limits]:
        found = self._limits.get(tenant_id)
        if found is None:
            banners = self._catalogue.tenant(tenant_id).banners
            found = self._limits[tenant_id] = {scope_of(banner): limits_of(banner) for banner in banners}
            self._longest[tenant_id] = max((banner.y_hours for banner in banners), default=1) * HOUR_MS
        return found

    def _forget(self, tenant_id: int) -> None:
        self._limits.pop(tenant_id, None)
