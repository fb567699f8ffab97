"""What the catalogue says about caps, in the caps' own words.

A banner's x in y hours is its first window; further rules of the banner stand beside it, counted for its user or
device, or for the session. Its campaign and the placement it is shown in may have rules of their own: a banner is
shown only when all of them have room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import chain

from handbill.banners.catalogue import Catalogue, Snapshot
from handbill.banners.model import Banner, Campaign, CapRule, Placement
from handbill.caps.model import ANY_LEASE, FOREVER_MS, SESSION_MS, By, Kind, Limits, Rule, Window, scope
from handbill.kit.clock import to_ms

HOUR_MS = 3_600_000
SPREAD_MS = 5_000
"""A process may go on with the old limit for as long as a change takes to reach it, with room to spare."""
GRACE_MS = 60_000
"""How long after its display a strict view may be reported and still have its slot."""


def scope_of(banner: Banner) -> int:
    return scope(Kind.BANNER, banner.id)


def banner_rules(banner: Banner) -> tuple[Rule, ...]:
    """Its own rules; the one with x in y hours comes first."""
    first = Window(banner.x_times, banner.y_hours * HOUR_MS)
    by = By.DEVICE if banner.cap_by == "device" else By.USER
    return _rules(scope_of(banner), (first,), banner.caps, by, banner.limits_raised_at)


def campaign_rules(campaign: Campaign | None) -> tuple[Rule, ...]:
    if campaign is None or not campaign.caps:
        return ()
    return _rules(scope(Kind.CAMPAIGN, campaign.id), (), campaign.caps, By.USER, campaign.limits_raised_at)


def placement_rules(placement: Placement | None) -> tuple[Rule, ...]:
    if placement is None or not placement.caps:
        return ()
    return _rules(scope(Kind.PLACEMENT, placement.id), (), placement.caps, By.USER, placement.limits_raised_at)


def rules_of(banner: Banner, snapshot: Snapshot) -> tuple[Rule, ...]:
    """What binds a banner wherever it is shown: its own rules, then its campaign's."""
    if banner.campaign_id is None:
        return banner_rules(banner)
    return banner_rules(banner) + campaign_rules(snapshot.campaigns.get(banner.campaign_id))


def kinds_of(rules: Iterable[Rule]) -> tuple[By, ...]:
    """Whose values these rules look into."""
    return tuple(sorted({rule.by for rule in rules} | {By.USER}))


def lease_ms(banner: Banner) -> int:
    """How long a strict decision holds its slot: the display, and a minute for the report."""
    return banner.z_duration_sec * 1_000 + GRACE_MS


def lease_of(banner: Banner, number: int | None) -> int:
    """What a view gives back: the lease its token names; without a token the oldest; nothing where caps are soft."""
    if banner.cap_mode != "strict":
        return 0
    return ANY_LEASE if number is None else number


def _rules(
    each: int, first: tuple[Window, ...], caps: Sequence[CapRule], by: By, raised: datetime | None
) -> tuple[Rule, ...]:
    """One rule for each sort of subject. Views from before the limit was raised may be unknown to Redis."""
    known_from = to_ms(raised) + SPREAD_MS if raised is not None else 0
    windows = first + tuple(_window(rule) for rule in caps if rule.per != "session")
    session = tuple(_window(rule) for rule in caps if rule.per == "session")
    found = ((by, windows), (By.SESSION, session))
    return tuple(Rule(kind, each, Limits(some, known_from)) for kind, some in found if some)


def _window(rule: CapRule) -> Window:
    if rule.per == "session":
        return Window(rule.x, SESSION_MS)
    if rule.per == "lifetime" or rule.y_hours is None:
        return Window(rule.x, FOREVER_MS)
    return Window(rule.x, rule.y_hours * HOUR_MS)


class CatalogueBook:
    """The rules of every scope, compiled once per snapshot."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._scopes: dict[int, dict[int, tuple[Rule, ...]]] = {}
        self._longest: dict[int, int] = {}
        catalogue.watch(self._forget)

    def rules(self, tenant_id: int, scope: int) -> tuple[Rule, ...]:
        return self._of(tenant_id).get(scope, ())

    def all_rules(self, tenant_id: int) -> Iterable[Rule]:
        return chain.from_iterable(self._of(tenant_id).values())

    def longest_ms(self, tenant_id: int | None) -> int:
        if tenant_id is not None:
            self._of(tenant_id)
            return self._longest[tenant_id]
        return max((self.longest_ms(tenant) for tenant in self._catalogue.tenants()), default=HOUR_MS)

    def lasting(self) -> list[tuple[int, Rule]]:
        return [
            (tenant, rule)
            for tenant in self._catalogue.tenants()
            for rules in self._of(tenant).values()
            for rule in rules
            if rule.limits.horizon_ms == FOREVER_MS
        ]

    def _of(self, tenant_id: int) -> dict[int, tuple[Rule, ...]]:
        found = self._scopes.get(tenant_id)
        if found is None:
            found = self._scopes[tenant_id] = _compiled(self._catalogue.tenant(tenant_id))
            spans = (window.y_ms for rules in found.values() for rule in rules for window in rule.limits.windows)
            self._longest[tenant_id] = max((span for span in spans if span < FOREVER_MS), default=HOUR_MS)
        return found

    def _forget(self, tenant_id: int) -> None:
        self._scopes.pop(tenant_id, None)


def _compiled(snapshot: Snapshot) -> dict[int, tuple[Rule, ...]]:
    found = [banner_rules(banner) for banner in snapshot.banners]
    found += [campaign_rules(campaign) for campaign in snapshot.campaigns.values()]
    found += [placement_rules(placement) for placement in snapshot.placements.values()]
    return {rules[0].scope: rules for rules in found if rules}
