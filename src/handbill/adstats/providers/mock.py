"""A platform that draws its figures. Plain, it tells the same day the same way for ever. As Meta would, it tells
running totals during the day, finds late purchases for 28 days, throttles, lets tokens die and answers slowly.

Ad sets split their campaign and ads their ad set, so that every level adds up to the cent at every moment.
"""

from __future__ import annotations

import asyncio
import zoneinfo
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

import msgspec

from handbill.adstats import cadence, funnel, rounding
from handbill.adstats.draws import Draws
from handbill.adstats.model import LEVELS, Entity, Figures, Kind, Level, Listed, RawStatRow
from handbill.adstats.providers.port import Account, AccountFacts, ProviderThrottled, Question, TokenDead
from handbill.kit.clock import Clock

LATE_DAYS = 28
_CONVERSIONS = range(3, 8)
"""Places of the figures that late attribution moves: content views to purchase value."""


class Manners(msgspec.Struct, frozen=True):
    """How the platform behaves. Faults are drawn from `seed`, so that a run can be had again."""

    running: bool = False
    """Totals grow during the day, and purchases are found for 28 days after."""
    throttle_percent: int = 0
    dead_accounts: frozenset[str] = frozenset()
    steps: int = 0
    """Turns of the loop that an answer takes, as an asynchronous report does."""
    seed: int = 1


class MockProvider:
    kind: Kind = "CUMULATIVE"
    ad_source = "META"
    silence_is_zero = True
    levels: tuple[Level, ...] = LEVELS
    look_back_days = 3
    needs_token = False

    def __init__(self, clock: Clock, manners: Manners | None = None) -> None:
        self._clock = clock
        self._manners = manners or Manners()
        self._faults = Draws(self._manners.seed)
        if self._manners.running:
            self.look_back_days = LATE_DAYS

    async def read_account(self, account: Account) -> AccountFacts:
        """Every account is there, in the currency and zone that it was given."""
        return AccountFacts()

    async def fetch_stats(self, question: Question) -> list[RawStatRow]:
        account, manners = question.account, self._manners
        if account.external_id in manners.dead_accounts:
            raise TokenDead("the account must be connected again (190, 463)")
        if manners.throttle_percent and self._faults.next() % 100 < manners.throttle_percent:
            raise ProviderThrottled("the account has used up its calls", 60)
        for _ in range(manners.steps):
            await asyncio.sleep(0)
        now = self._clock.now()
        found: list[RawStatRow] = []
        for day in cadence.days(question.date_from, question.date_to):
            found += told(question, day, now if manners.running else None)
        return found

    async def list_entities(self, account: Account) -> list[Listed]:
        return []

    async def token_end(self, account: Account) -> datetime | None:
        return None

    async def close(self) -> None:
        return None


def told(question: Question, day: date, now: datetime | None) -> list[RawStatRow]:
    """One day of one level as it is visible at `now`; None: as it will stand for ever."""
    account, seller = question.account, str(question.seller)
    children: dict[UUID | None, list[Entity]] = defaultdict(list)
    for entity in sorted(question.entities, key=lambda one: one.entity_id):
        children[entity.parent_id].append(entity)
    found: list[RawStatRow] = []
    for campaign in children[None]:
        if over(campaign, day, account.time_zone):
            continue
        budget = funnel.daily_budget(campaign.budget, campaign.budget_type, account.currency)
        figures = funnel.drawn(seller, str(campaign.entity_id), day, budget, account.currency)
        if now is not None:
            figures = visible(figures, day, now, account.time_zone)
        layer: list[tuple[Entity, Sequence[int]]] = [(campaign, figures)]
        for level in LEVELS:
            if level == question.level:
                break
            layer = [pair for parent in layer for pair in shared(seller, parent, children, day)]
        found += [row(entity, day, values, account.currency) for entity, values in layer if any(values)]
    return found


def over(campaign: Entity, day: date, zone: str) -> bool:
    """An archived campaign still has the day on which it was archived, and those before."""
    if campaign.status in ("ACTIVE", "PAUSED") or campaign.updated_at is None:
        return False
    return day > cadence.today(campaign.updated_at, zone)


def shared(
    seller: str, parent: tuple[Entity, Sequence[int]], children: dict[UUID | None, list[Entity]], day: date
) -> list[tuple[Entity, Sequence[int]]]:
    """A parent's figures among its children."""
    own = children.get(parent[0].entity_id, [])
    weights = [funnel.weight(seller, str(child.entity_id), day) for child in own]
    parts = [funnel.split(figure, weights) for figure in parent[1]]
    return [(child, [part[at] for part in parts]) for at, child in enumerate(own)]


def row(entity: Entity, day: date, values: Sequence[int], currency: str) -> RawStatRow:
    spend, impressions, clicks, views, carts, checkouts, purchases, value = values
    figures = Figures(
        rounding.major(spend, currency), impressions, clicks, views, carts, checkouts, purchases,
        rounding.major(value, currency),
    )  # fmt: skip
    return RawStatRow(entity.entity_id, entity.external_id, day, figures)


def visible(figures: Sequence[int], day: date, now: datetime, zone: str) -> list[int]:
    """What can be seen of a day's final figures: the part of the day that is over, and purchases found so far."""
    own = zoneinfo.ZoneInfo(zone)  # subtracted in UTC: within one zone Python subtracts clock faces, not time
    begin = datetime.combine(day, time(), own).astimezone(UTC)
    end = datetime.combine(day + timedelta(days=1), time(), own).astimezone(UTC)
    passed = min(max((now - begin) / timedelta(seconds=1), 0), (end - begin) / timedelta(seconds=1))
    part, whole = int(passed), int((end - begin) / timedelta(seconds=1))
    age = min(max((cadence.today(now, zone) - day).days, 0), LATE_DAYS)
    found = [figure * part // whole for figure in figures]
    for at in _CONVERSIONS:
        found[at] = found[at] * (70 * LATE_DAYS + 30 * age) // (100 * LATE_DAYS)
    return found
