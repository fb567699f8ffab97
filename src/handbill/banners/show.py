"""Everything that shows, built once: who decides, what it signs with, whom it lets ask, and what anybody may see."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from handbill.banners.catalogue import Catalogue
from handbill.banners.decide import Decider
from handbill.banners.pace import Pace, decision_policy
from handbill.banners.plan import CLICKS
from handbill.banners.public import Public
from handbill.banners.rates import Rates
from handbill.banners.throttle import Throttle
from handbill.banners.tokens import Tokens
from handbill.caps.service import CapsService
from handbill.events.service import EventsService
from handbill.infra.geo import Countries
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.kit.clock import Clock
from handbill.segments.service import Known
from handbill.tenants.service import Directory


class ShowPolicy(msgspec.Struct, frozen=True):
    """`token_key` is the installation's; without one, tokens live as long as this process."""

    token_key: bytes | None = None
    token_ttl_s: int = 86_400
    decisions_per_minute: int = 120
    geo_file: Path | None = None
    geo_url: str | None = None
    geo_insecure: bool = False
    clicks: str = CLICKS
    """What links for clicks begin with."""


class Show:
    def __init__(
        self,
        database: Database,
        redis: Redis,
        directory: Directory,
        catalogue: Catalogue,
        caps: CapsService,
        events: EventsService,
        guard: Throttle,
        clock: Clock,
        keys: Keys,
        policy: ShowPolicy | None = None,
        known: Known | None = None,
    ) -> None:
        policy = policy or ShowPolicy()
        key = policy.token_key or secrets.token_bytes(32)
        self._rates = Rates(database, clock)
        self._countries = Countries(policy.geo_file, url=policy.geo_url, insecure=policy.geo_insecure)
        self.tokens = Tokens(key, ttl_s=policy.token_ttl_s)
        self.country = self._countries.of
        self.pace = Pace(Throttle(redis, keys, clock, decision_policy(policy.decisions_per_minute)), clock)
        self.decider = Decider(catalogue, caps, self._rates, seed=key, known=known, clicks=policy.clicks)
        self.public = Public(catalogue, events, directory, self.tokens, guard, clock)

    async def start(self) -> None:
        await self._countries.start()
        await self._rates.start()

    async def stop(self) -> None:
        await self.decider.stop()
        await self._rates.stop()
        await self._countries.stop()
