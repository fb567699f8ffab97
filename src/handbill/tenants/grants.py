"""What somebody may hand on: nobody grants, creates, resets, rotates or revokes more than they hold.

A key holds scopes until it expires. A user holds the scopes of a role, without an expiry. The rights are read again in
the transaction of the change: a key that was revoked a second ago grants nothing, even where a process still has it in
its cache.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from handbill.infra.postgres import Tx
from handbill.kit.errors import Fault, Forbidden, Unauthorized
from handbill.tenants import store
from handbill.tenants.model import ROLE_SCOPES, Actor, Principal, Role, allows


class Authority(msgspec.Struct, frozen=True):
    """The rights behind a change. `role` is set for users, `expires_at` for keys that expire."""

    scopes: frozenset[str]
    role: Role | None = None
    expires_at: datetime | None = None

    def missing(self, scopes: frozenset[str]) -> list[str]:
        """Which of the scopes this authority cannot hand on; a wildcard is covered only by one at least as wide."""
        if "*" in self.scopes:
            return []
        if self.role is not None and self.role != "owner":
            return sorted(scopes)  # operators and viewers hand nothing on
        return sorted(
            scope
            for scope in scopes
            if scope not in self.scopes and ("*" in scope or not allows(self.scopes, self.role, scope))
        )

    def require_scopes(self, scopes: frozenset[str], action: str) -> None:
        if missing := self.missing(scopes):
            raise Forbidden(
                f"You cannot {action}: it has rights that you do not hold ({', '.join(missing)}). Nothing was changed.",
                code="SCOPE_MISSING",
            )

    def require_role(self, role: Role, action: str) -> None:
        self.require_scopes(ROLE_SCOPES[role], action)

    def require_expiry(self, expires_at: datetime | None) -> None:
        """A key ends no later than the key that makes it."""
        if self.expires_at is not None and (expires_at is None or expires_at > self.expires_at):
            latest = self.expires_at.isoformat()
            raise Forbidden(
                f"Your key expires at {latest}; a key that it creates or rotates must expire by then. "
                "Nothing was changed.",
                code="EXPIRES_TOO_LATE",
                faults=[Fault("expires_at", f"must be {latest} or earlier")],
            )

    def require_no_expiry(self, action: str) -> None:
        """Users do not expire, so an expiring key makes none and opens none."""
        if self.expires_at is not None:
            raise Forbidden(
                f"Your key expires at {self.expires_at.isoformat()} and users do not expire: it cannot {action}. "
                "Use an owner's session or a key without an expiry. Nothing was changed.",
                code="EXPIRES_TOO_LATE",
            )


OPERATOR = Authority(frozenset({"*"}))
"""The operator of the installation, on its command line."""


async def current_authority(tx: Tx, tenant_id: int, actor: Actor, now: datetime) -> Authority:
    """What the actor holds at this moment, as PostgreSQL has it."""
    if isinstance(actor, str):
        return OPERATOR
    if actor.tenant_id == tenant_id and actor.key_id is not None:
        key = await store.read_key(tx, tenant_id, actor.key_id)
        if key is not None and key.usable(now):
            return Authority(frozenset(key.scopes), None, key.expires_at)
    elif actor.tenant_id == tenant_id and actor.session_id is not None:
        session = await store.read_session(tx, tenant_id, actor.session_id)
        if session is not None and now < session.expires_at:
            return Authority(ROLE_SCOPES[session.user.role], session.user.role)
    raise Unauthorized("The key or session of this request has ended; nothing was changed.")


def actor_name(actor: Actor) -> str:
    """The actor in the words of the audit log."""
    return actor.actor if isinstance(actor, Principal) else actor
