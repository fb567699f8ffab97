"""What the tenants' tests share: a running service with cheap password hashes, and a few small questions."""

from __future__ import annotations

from typing import Any

from argon2 import PasswordHasher

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.tenants.passwords import Passwords
from handbill.tenants.service import TenantService

ACTOR = "test"
PASSWORD = "correct horse battery"
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def service(database: Database, redis: Redis, clock: Any = None, **options: Any) -> TenantService:
    """Not started: it hears nothing from other processes until it is."""
    return TenantService(
        database, redis, seal_key=b"s" * 32, clock=clock, passwords=Passwords(CHEAP), **{"login_step_s": 0, **options}
    )


def sql(text: str) -> Sql:
    return Sql(text, "test", "tests", "a test")


async def actions(tenants: TenantService, tenant: int) -> list[str]:
    """What the audit log says was done, newest first."""
    return [entry.action for entry in (await tenants.audit_page(tenant, None, 200)).items]
