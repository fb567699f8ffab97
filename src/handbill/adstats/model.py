"""What runs at an ad platform, what the platform tells about it, and how both travel. Sellers are tenants."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

Level = Literal["CAMPAIGN", "ADSET", "AD"]
LEVELS: tuple[Level, ...] = ("CAMPAIGN", "ADSET", "AD")
Status = Literal["ACTIVE", "PAUSED", "ARCHIVED", "DELETED"]
BudgetType = Literal["DAILY", "LIFETIME"]
ProviderName = Literal["MOCK", "META"]
Kind = Literal["CUMULATIVE", "DELTA"]
"""CUMULATIVE: each answer is the whole day so far. DELTA: each answer is what came on top."""
Mode = Literal["latest", "sum"]
TokenState = Literal["none", "valid", "dead"]

QUEUE = "stats-sync"
JOB = "stats-sync"

Name = Annotated[str, Meta(min_length=1, max_length=300)]
Money = Decimal
"""Not below 0, at most four places."""
ExternalId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
AccountId = Annotated[str, Meta(pattern=r"^[0-9]{1,32}$", description="The account's number, without `act_`.")]
Currency = Annotated[str, Meta(pattern=r"^[A-Z]{3}$")]
Zone = Annotated[str, Meta(min_length=1, max_length=64)]
Utm = Annotated[str, Meta(min_length=1, max_length=200)]
Token = Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[!-~]+$")]

TokenEnd = Annotated[
    datetime,
    Meta(tz=True, description="When the token ends, if you know. What the platform itself tells takes its place."),
]


class Figures(msgspec.Struct, frozen=True):
    """The eight figures that add up."""

    spend: Decimal = Decimal(0)
    impressions: int = 0
    link_clicks: int = 0
    content_views: int = 0
    add_to_cart: int = 0
    checkout_initiated: int = 0
    purchases: int = 0
    purchase_value: Decimal = Decimal(0)

    def values(self) -> tuple[Any, ...]:
        return (
            self.spend, self.impressions, self.link_clicks, self.content_views, self.add_to_cart,
            self.checkout_initiated, self.purchases, self.purchase_value,
        )  # fmt: skip


ZERO = Figures()


class RawStatRow(msgspec.Struct, frozen=True):
    """One entity and one day as a platform told them. `piece` names an increment of a DELTA provider."""

    entity_id: UUID
    external_id: str | None
    day: date
    figures: Figures
    piece: str = ""

    @property
    def external_entity_id(self) -> str:
        """The platform's own id, or ours where it has none; kept only where it is the platform's."""
        return self.external_id or str(self.entity_id)


# --- what runs


class Connection(msgspec.Struct, frozen=True):
    """An ad account. Of its token only the state is shown."""

    connection_id: UUID
    provider: ProviderName
    """The ad platform; MOCK draws figures, for trying."""
    external_id: str
    """The number of the account at the platform, without `act_`."""
    name: str
    currency: str
    """The currency of the account: three letters, ISO 4217."""
    time_zone: str
    """The time zone of the account, whose days its figures are of."""
    look_back_days: int
    connection_type: str = "AD_ACCOUNT"
    """Always AD_ACCOUNT: the kind of thing that is connected."""
    is_active: bool = True
    """Whether its figures are read."""
    token_state: TokenState = "none"  # noqa: S105 - a state, not a password
    """Whether the platform takes the token; `none`: it needs none, `dead`: it refuses it."""
    token_note: str | None = None
    """Why the platform refuses the token; null while it does not."""
    token_changed_at: datetime | None = None
    """When the token was last given, or its state changed; null: never."""
    token_ends_at: datetime | None = None
    """When the token ends; null: never, or not known."""
    token_checked_at: datetime | None = None
    """When the platform was last asked for the token's end: once a day."""
    verified_at: datetime | None = None
    """When the platform last confirmed currency, zone and access; null while it has not."""
    version: int = 1
    created_at: datetime | None = None
    updated_at: datetime | None = None


class NewConnection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Currency and zone are read from the platform; what is given stands until it has answered, and for a MOCK account.

    `look_back_days`: as the provider advises, if not given. `access_token` is sealed and never shown again.
    """

    provider: ProviderName
    """The ad platform; MOCK draws figures, for trying."""
    external_id: AccountId
    name: Name
    currency: Currency | None = None
    """The currency of the account, three letters, ISO 4217; null: as the platform says."""
    time_zone: Zone | None = None
    """The time zone of the account by its IANA name; null: as the platform says."""
    look_back_days: Annotated[int, Meta(ge=1, le=92)] | None = None
    """How many past days are read again once a day; if not given, as many as the platform restates."""
    access_token: Token | None = None
    token_ends_at: TokenEnd | None = None


class ConnectionPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays. A corrected currency or zone must be the platform's own, if it can be asked."""

    name: Name | UnsetType = UNSET
    is_active: bool | UnsetType = UNSET
    """Whether its figures are read."""
    currency: Currency | UnsetType = UNSET
    """The currency of the account, three letters, ISO 4217."""
    time_zone: Zone | UnsetType = UNSET
    """The time zone of the account by its IANA name."""
    look_back_days: Annotated[int, Meta(ge=1, le=92)] | UnsetType = UNSET
    access_token: Token | UnsetType = UNSET
    token_ends_at: TokenEnd | UnsetType | None = UNSET


class Sellpage(msgspec.Struct, frozen=True):
    sellpage_id: UUID
    """The id of the sellpage."""
    name: str
    url: str | None
    version: int
    created_at: datetime
    updated_at: datetime


class NewSellpage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    url: Annotated[str, Meta(max_length=2000, pattern=r"^https?://")] | None = None


class SellpagePatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name | UnsetType = UNSET
    url: Annotated[str, Meta(max_length=2000, pattern=r"^https?://")] | UnsetType | None = UNSET


class Entity(msgspec.Struct, frozen=True):
    """A campaign, an ad set or an ad. `campaign_id` is the root, a campaign's own id."""

    entity_id: UUID
    entity_type: Level
    connection_id: UUID
    campaign_id: UUID
    """The id of the ad campaign that it is, or belongs to."""
    name: str
    parent_id: UUID | None = None
    sellpage_id: UUID | None = None
    external_id: str | None = None
    status: Status = "ACTIVE"
    budget_type: BudgetType = "DAILY"
    budget: Decimal = Decimal(0)
    utm_campaign: str | None = None
    banner_campaign_id: UUID | None = None
    version: int = 1
    created_at: datetime | None = None
    updated_at: datetime | None = None


class NewEntity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A campaign names its connection, an ad set and an ad their parent."""

    entity_type: Level
    name: Name
    connection_id: UUID | None = None
    """The id of the connected ad account; of a campaign only."""
    parent_id: UUID | None = None
    sellpage_id: UUID | None = None
    external_id: ExternalId | None = None
    status: Status = "ACTIVE"
    budget_type: BudgetType = "DAILY"
    budget: Money = Decimal(0)
    utm_campaign: Utm | None = None
    banner_campaign_id: UUID | None = None


class EntityPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    sellpage_id: UUID | UnsetType | None = UNSET
    budget_type: BudgetType | UnsetType = UNSET
    budget: Money | UnsetType = UNSET
    utm_campaign: Utm | UnsetType | None = UNSET
    banner_campaign_id: UUID | UnsetType | None = UNSET


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entity of an import, by the platform's ids. A campaign has no parent."""

    entity_type: Level
    external_id: ExternalId
    """The platform's own id."""
    name: Name
    parent_external_id: ExternalId | None = None
    """The platform's id of what is right above it; null for a campaign."""
    status: Status = "ACTIVE"
    budget_type: BudgetType = "DAILY"
    budget: Money = Decimal(0)
    utm_campaign: Utm | None = None


class Imported(msgspec.Struct, frozen=True):
    created: int
    """How many were created."""
    changed: int
    """How many were changed."""
    unchanged: int
    """How many were as the list says already."""
    refused: list[str]
    """External ids whose parent is neither here nor in the list."""


# --- syncing


class SyncJob(msgspec.Struct, frozen=True):
    """The payload of a job, field by field as other programs write it. `sellerId` is the tenant's public id."""

    sellerId: UUID
    dateFrom: date
    dateTo: date
    level: Level

    @property
    def job_id(self) -> str:
        return f"sync:{self.sellerId}:{self.dateFrom.isoformat()}:{self.dateTo.isoformat()}:{self.level}"


class Written(msgspec.Struct, frozen=True):
    """Rows that one sync wrote; unchanged ones are not written."""

    raw: int = 0
    daily: int = 0
    sellpage: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(self.raw + other.raw, self.daily + other.daily, self.sellpage + other.sellpage)


JobState = Literal["enqueued", "already_running"]


class Enqueued(msgspec.Struct, frozen=True):
    id: str
    """The id of the job."""
    state: JobState
    """Whether the job was put into the queue, or one for the same days waits or runs."""


class SyncAnswer(msgspec.Struct, frozen=True):
    """How many jobs were put into the queue, and what became of each one asked for."""

    enqueued: int
    """How many jobs were put into the queue."""
    jobIds: list[str]
    """Ids of the jobs that were put into the queue."""
    jobs: list[Enqueued]
    """Every job that was asked for, and what became of it."""


class SyncState(msgspec.Struct, frozen=True):
    """How fresh a connection's figures are at one level, and what went wrong last."""

    connection_id: UUID
    level: Level
    synced_at: datetime | None
    """When the figures of today were last read; null: never."""
    hourly_at: datetime | None
    """When those of yesterday were last read, too; null: never."""
    daily_at: datetime | None
    """When those of all days of the look-back were last read; null: never."""
    syncs: int
    """How often figures were read successfully."""
    failed_at: datetime | None
    """When reading last failed; null: never."""
    error: str | None
    """Why it failed, if the last attempt did; null otherwise."""
    unmatched: int = 0
    """Entities that the last answer spoke of and nobody has imported."""
    listed_at: datetime | None = None
    """When the account was last asked what runs there because of such entities; on the level CAMPAIGN."""


class Due(msgspec.Struct, frozen=True):
    """A connection and level that may have work, as the scheduler sees it."""

    tenant_id: int
    seller: UUID
    connection_id: UUID
    level: Level
    time_zone: str
    look_back_days: int
    synced_at: datetime | None
    hourly_at: datetime | None
    daily_at: datetime | None
    spent_on: date | None = None
    """Nothing runs there any more: the last day that had spend."""


class Backfill(msgspec.Struct, frozen=True):
    """A range that is read again, in parts; a part that failed says why."""

    backfill_id: UUID
    date_from: date
    date_to: date
    parts: int
    done: int
    failed: int
    asked_by: str
    created_at: datetime
    errors: list[str] = []

    @property
    def state(self) -> str:
        return "running" if self.done + self.failed < self.parts else "failed" if self.failed else "done"


class BackfillView(msgspec.Struct, frozen=True):
    backfill_id: UUID
    state: Literal["running", "done", "failed"]
    """Whether it runs, is done, or ended with parts that failed."""
    date_from: date
    date_to: date
    parts: int
    """How many parts it was divided into."""
    done: int
    """How many parts are done."""
    failed: int
    """How many parts failed."""
    progress: float
    """Which part of the work has ended, from 0 to 1."""
    asked_by: str
    """Who asked for it: a user, a key or a program of the installation."""
    created_at: datetime
    errors: list[str]
    """Why parts failed."""
