"""What a tenant, its keys, its users and its settings are; and Principal, the answer to "who is asking?"."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

Tier = Literal["standard", "enterprise"]
Status = Literal["active", "suspended"]
Role = Literal["owner", "operator", "viewer"]
KeyKind = Literal["write", "secret"]
PrincipalKind = Literal["secret_key", "write_key", "session", "jwt"]

Name = Annotated[str, Meta(min_length=1, max_length=200)]
# A text may not end with a line break, before which Python's `$` matches, too.
Slug = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$(?!\n)")]
Scope = Annotated[str, Meta(pattern=r"^(\*|(\*|[a-z][a-z_]{0,30}):(read|write|send))$")]
Email = Annotated[str, Meta(min_length=3, max_length=254, pattern=r"^[^\s@]+@[^\s@][^\s@.]*\.[^\s@]+$")]
Password = Annotated[str, Meta(min_length=10, max_length=1024)]

SESSION_COOKIE = "handbill_session"
BROWSER_COOKIE = "handbill_browser"
"""Says that this browser logged in before; it opens nothing."""
WRITE_KEY_PREFIX = "hbw_"
SECRET_KEY_PREFIX = "hbs_"  # noqa: S105 - a prefix, not a password

CHANGES = "handbill:tenants"
"""The Redis channel on which a changed tenant's number is told, so that caches forget it at once."""

REQUEST_ID: ContextVar[str | None] = ContextVar("handbill_request_id", default=None)
"""The request under way, set by the API shell, so that an audit row can name it."""

WRITE_KEY_SCOPES = frozenset({"track", "decide"})
_OWNER_RESOURCES = frozenset({"tenants", "keys", "users", "erasures"})
"""Resources that only an owner may change."""


class Principal(msgspec.Struct, frozen=True):
    """Whoever stands behind a request: one tenant, some scopes, and a name for the audit log."""

    tenant_id: int
    kind: PrincipalKind
    scopes: frozenset[str]
    actor: str
    role: Role | None = None
    user_id: UUID | None = None
    session_id: UUID | None = None
    subject: str | None = None
    key_id: UUID | None = None

    def allows(self, scope: str) -> bool:
        """Whether this principal has `resource:read`, `resource:write` or `resource:send`."""
        return allows(self.scopes, self.role, scope)


Actor = Principal | str
"""Who makes a change: a tenant's key or user, bound by what it holds; or, by its name, a program of the operator."""


def allows(scopes: frozenset[str], role: Role | None, scope: str) -> bool:
    """Whether these scopes, in this role, include the scope."""
    resource, _, verb = scope.partition(":")
    if role == "operator" and verb == "write" and resource in _OWNER_RESOURCES:
        return False
    return bool(scopes & {"*", scope, f"*:{verb}"})


ROLE_SCOPES: dict[str, frozenset[str]] = {
    "owner": frozenset({"*"}),
    "operator": frozenset({"*:read", "*:write", "*:send"}),
    "viewer": frozenset({"*:read"}),
}


class Tenant(msgspec.Struct, frozen=True):
    tenant_id: int
    public_id: UUID
    """The tenant's id as other systems see it."""
    slug: str
    """The short name, for logins and commands."""
    name: str
    tier: Tier
    """The tier, which decides about limits."""
    time_zone: str
    status: Status
    """Whether the tenant is active; a suspended one is refused."""
    version: int
    created_at: datetime


class NewTenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    slug: Slug
    tier: Tier = "standard"
    time_zone: str = "UTC"


class Privacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept about people: whole addresses or cut ones, and for how long."""

    truncate_ip: bool = False
    """Whether only the network of an address is stored (/24, /48)."""
    respect_dnt: bool = False
    """Whether requests with `DNT: 1` or `Sec-GPC: 1` are only counted."""
    retention_days: Annotated[int, Meta(ge=1, le=3650)] | None = None
    """For how many days events are stored; null: as long as the installation says."""


class JwtRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the tenant's own users prove who they are. The HS256 secret is kept elsewhere, sealed."""

    kind: Literal["none", "hs256", "jwks"] = "none"
    """How tokens of users are checked: not at all, by a shared secret, or by public keys."""
    jwks: dict[str, Any] | None = None
    """The public keys themselves, as a JSON Web Key Set."""
    jwks_url: Annotated[str, Meta(max_length=2000, pattern=r"^https://")] | None = None
    """Where the public keys are fetched from, with https."""
    audience: Annotated[str, Meta(max_length=500)] | None = None
    """What `aud` of a token must be; null: it is not checked."""
    issuer: Annotated[str, Meta(max_length=500)] | None = None
    """What `iss` of a token must be; null: it is not checked."""
    leeway_s: Annotated[int, Meta(ge=0, le=60)] = 10
    """By how many seconds clocks may differ."""
    required: bool = False
    """Whether nothing counts for a user without proof of who it is; see docs/security.md."""


class TenantSettings(msgspec.Struct, frozen=True):
    """A tenant's settings as they may be shown: of a secret only whether there is one."""

    jwt: JwtRules = JwtRules()
    jwt_secret_set: bool = False
    """Whether there is an HS256 secret; it is never shown."""
    limits: dict[str, float] = {}
    """Limits that were set for this tenant, e.g. of events a day; empty: none."""
    privacy: Privacy = Privacy()
    version: int = 1
    """Grows with each change of the settings."""
    default_region: str | None = None
    """Where phone numbers in national form are dialled, if a request does not say it."""


class SettingsPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of settings: what is left out stays as it is."""

    jwt: JwtRules | UnsetType = UNSET
    jwt_secret: Annotated[str, Meta(min_length=32, max_length=1024)] | UnsetType | None = UNSET
    """The HS256 secret, at least 32 characters; null removes it. It is never shown."""
    privacy: Privacy | UnsetType = UNSET
    default_region: Annotated[str, Meta(pattern=r"^[A-Z]{2}$")] | UnsetType | None = UNSET
    """Two letters, ISO 3166: where phone numbers are dialled if a request does not say it; null: nowhere."""


class TenantPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of the tenant itself and of its settings, in one go."""

    name: Name | UnsetType = UNSET
    time_zone: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET
    settings: SettingsPatch | UnsetType = UNSET


class Key(msgspec.Struct, frozen=True):
    """A key as it may be listed. A write key is publishable and shown whole; of a secret key only a hint remains."""

    key_id: UUID
    kind: KeyKind
    """A write key may be public and only tracks and decides; a secret key has scopes."""
    name: str
    hint: str
    """The beginning and end of the key, to tell it from others."""
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    """When it was revoked; null: it was not."""
    last_used_at: datetime | None = None
    """When it was last used; null: never."""
    replaces: UUID | None = None
    """The id of the key in whose place it was made; null: none."""
    clear_key: str | None = None
    """The whole key, of a write key only; null for a secret key."""

    def usable(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: KeyKind
    name: Name
    scopes: Annotated[list[Scope], Meta(max_length=50)] = []
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None
    """When the key ends by itself, with a zone; null: never."""


class KeyMade(msgspec.Struct, frozen=True):
    """A fresh key. `key` is its clear text, shown this once."""

    info: Key
    """The key as it is listed."""
    key: str
    """The whole key. That of a secret key is shown this once."""


class User(msgspec.Struct, frozen=True):
    user_id: UUID
    email: str
    name: str
    """What the user is called."""
    role: Role
    version: int
    created_at: datetime


class NewUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    email: Email
    password: Password
    name: Annotated[str, Meta(max_length=200)] = ""
    """What the user is called."""
    role: Role = "viewer"


class UserPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    """What the user is called."""
    role: Role | UnsetType = UNSET
    password: Password | UnsetType = UNSET


class Session(msgspec.Struct, frozen=True):
    """A fresh session: the token goes into a header or a cookie, the CSRF token beside the cookie."""

    token: str
    """The session token (hbt_...): send it as a bearer token, or let the cookie carry it."""
    csrf_token: str
    """Send it as `X-CSRF-Token` with every change when the cookie carries the session."""
    expires_at: datetime
    """When the session ends."""
    tenant_id: int
    user: User
    """The user who logged in."""


class AuditEntry(msgspec.Struct, frozen=True):
    """Who did what to which object, and how it looked before and after, secrets left out."""

    audit_id: UUID
    """The id of the entry."""
    at: datetime
    """When it was done."""
    actor: str
    action: str
    """What was done, e.g. `key.create`."""
    object: str
    """What it was done to: a kind and an id."""
    before: dict[str, Any] | None = None
    """How the object looked before, without secrets; null where there is nothing to show."""
    after: dict[str, Any] | None = None
    """How the object looked after, without secrets; null where there is nothing to show."""
    request_id: str | None = None
    """The id of the request that did it; null: it was no request."""


RequestStatus = Literal["queued", "running", "done", "failed"]


class Erasure(msgspec.Struct, frozen=True):
    """An erasure, how far it is and its report: for each package, how many rows of each table it cleared.

    While it runs, `error` is the code of what it waits for; once it has failed, of why. Counts of a step that was
    repeated after a crash are those of its last run.
    """

    erasure_id: UUID
    """The id of the erasure."""
    status: RequestStatus
    report: dict[str, Any]
    """How many rows were cleared, by package and table."""
    requested_by: str
    created_at: datetime
    finished_at: datetime | None = None
    started_at: datetime | None = None
    steps_done: int = 0
    steps_total: int = 0
    error: str | None = None


class PersonExport(msgspec.Struct, frozen=True):
    """A request for an export and how far it is: `report` has the rows collected, by package and table.

    Once it is `done`, the result can be fetched until `expires_at`.
    """

    export_id: UUID
    """The id of the export."""
    status: RequestStatus
    report: dict[str, Any]
    """How many rows were collected, by package and table."""
    requested_by: str
    created_at: datetime
    expires_at: datetime
    """Until when the result can be fetched."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    steps_done: int = 0
    steps_total: int = 0
    error: str | None = None


class Export(msgspec.Struct, frozen=True):
    """What is kept about a person: all their ids, and rows by room and table.

    `cut` names tables that have more rows than this holds, and packages that were not asked to the end once the export
    was full; `away` names rooms that could not be asked: ask again.
    """

    subject: str
    """The id that was asked about."""
    ids: list[str]
    """All distinct ids of the person."""
    rooms: dict[str, dict[str, list[dict[str, Any]]]]
    """The rows, by package and table."""
    cut: list[str]
    """Tables and packages of which rows are missing because the export was full."""
    away: list[str] = []
    """Packages whose engine did not answer: ask again later."""


class Replay(msgspec.Struct, frozen=True):
    """An answer that was given before and is given again, with the headers that are part of its meaning."""

    status: int
    content_type: str
    body: bytes
    headers: list[tuple[str, str]] = []
