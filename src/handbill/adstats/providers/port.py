"""The port: what a sync asks of a platform, and the three ways in which a platform may say no."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Protocol
from uuid import UUID

import msgspec
from msgspec import structs

from handbill.adstats.model import Connection, Entity, Kind, Level, Listed, RawStatRow


class Account(msgspec.Struct, frozen=True):
    """An ad account as a provider needs it. The token is in clear here and nowhere else."""

    connection_id: UUID
    external_id: str
    currency: str
    time_zone: str
    token: str = ""

    def __repr__(self) -> str:
        return f"Account({self.external_id})"


class AccountFacts(msgspec.Struct, frozen=True):
    """What a platform says about an account. None where it says nothing: what the tenant gave stays."""

    currency: str | None = None
    time_zone: str | None = None

    def applied_to(self, connection: Connection) -> Connection:
        return structs.replace(
            connection, currency=self.currency or connection.currency, time_zone=self.time_zone or connection.time_zone
        )


class Question(msgspec.Struct, frozen=True):
    """All figures of one level of one account for some days. `entities` is the tree down to the level."""

    seller: UUID
    account: Account
    level: Level
    entities: Sequence[Entity]
    date_from: date
    date_to: date
    strangers: set[str] = msgspec.field(default_factory=set)
    """Filled in by the provider: the platform's ids that its answer spoke of and we do not know."""

    def of_level(self) -> list[Entity]:
        return [entity for entity in self.entities if entity.entity_type == self.level]


class StatProvider(Protocol):
    """A platform. An answer is complete or it is an error."""

    kind: Kind
    ad_source: str
    """Under which word the sellpages' days hold its figures."""
    silence_is_zero: bool
    """Whether an entity that an answer leaves out had nothing; else what is known of it stays."""
    levels: tuple[Level, ...]
    look_back_days: int
    needs_token: bool

    async def read_account(self, account: Account) -> AccountFacts:
        """The account's currency and zone. Raises RequestRefused when the token may not read it."""
        ...

    async def fetch_stats(self, question: Question) -> list[RawStatRow]: ...

    async def list_entities(self, account: Account) -> list[Listed]: ...

    async def token_end(self, account: Account) -> datetime | None:
        """When the account's token ends; None if it does not, or the platform does not tell."""
        ...

    async def close(self) -> None: ...


class ProviderError(Exception):
    """The platform could not answer; asking again later may help. Its text never holds a token."""


class RequestRefused(ProviderError):
    """The platform understood and refused: no such account, or no access to it. Asking again does not help."""


class AccountChanged(ProviderError):
    """The account is not as the connection has it: it must be verified again before its figures are read."""


class ProviderThrottled(ProviderError):
    """Not now: the platform limits us. No attempt is used up."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class TokenDead(ProviderError):
    """The platform no longer accepts the token: a person must connect the account again."""
