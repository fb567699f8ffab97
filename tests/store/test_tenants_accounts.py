"""Users and sessions: logging in and out, guessing, the last owner, expiry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import (
    Conflict,
    NotFound,
    Throttled,
    Unauthorized,
)
from handbill.tenants.model import (
    NewUser,
    UserPatch,
)
from handbill.tenants.service import TenantService
from tests.kit.clocks import FakeClock
from tests.store.tenants_room import ACTOR, PASSWORD, service


@pytest.fixture
async def tenants(database: Database, redis: Redis) -> AsyncIterator[TenantService]:
    found = service(database, redis)
    await found.start()
    yield found
    await found.stop()


# --- users and sessions


async def test_login_logout_and_a_changed_password(
    tenants: TenantService, tenant: int, unique: Callable[[str], str]
) -> None:
    email = f"{unique('Ada')}@Example.com"
    user = await tenants.accounts.create_user(
        tenant, NewUser(email=email, password=PASSWORD, role="owner"), actor=ACTOR
    )
    assert user.email == email.lower()
    session = await tenants.accounts.login(email, PASSWORD)
    found = await tenants.directory.session(session.token)
    assert found is not None
    assert (found.tenant_id, found.role, found.user_id) == (tenant, "owner", user.user_id)
    await tenants.accounts.logout(found)
    assert await tenants.directory.session(session.token) is None
    session = await tenants.accounts.login(email.upper(), PASSWORD)
    await tenants.accounts.set_password(tenant, user.user_id, "another long password", actor=ACTOR)
    assert await tenants.directory.session(session.token) is None
    with pytest.raises(Unauthorized):
        await tenants.accounts.login(email, PASSWORD)
    assert await tenants.accounts.login(email, "another long password")
    with pytest.raises(Unauthorized):
        await tenants.accounts.login(f"{unique('nobody')}@example.com", PASSWORD)
    log = repr((await tenants.audit_page(tenant, None, 200)).items)
    assert PASSWORD not in log
    assert "argon2" not in log


async def test_guessing_a_password_is_throttled(
    tenants: TenantService, tenant: int, unique: Callable[[str], str]
) -> None:
    email = f"{unique('eve')}@example.com"
    await tenants.accounts.create_user(tenant, NewUser(email=email, password=PASSWORD), actor=ACTOR)
    for _ in range(10):
        with pytest.raises(Unauthorized):
            await tenants.accounts.login(email, "wrong")
    with pytest.raises(Throttled) as refused:
        await tenants.accounts.login(email, PASSWORD)
    assert refused.value.retry_after


async def test_an_address_is_known_once_and_an_owner_always_stays(
    tenants: TenantService, make_tenant: Callable[..., Any], unique: Callable[[str], str]
) -> None:
    one, other = await make_tenant(), await make_tenant()
    email = f"{unique('ada')}@example.com"
    first = await tenants.accounts.create_user(one, NewUser(email=email, password=PASSWORD, role="owner"), actor=ACTOR)
    with pytest.raises(Conflict):
        await tenants.accounts.create_user(other, NewUser(email=email.upper(), password=PASSWORD), actor=ACTOR)
    assert await tenants.accounts.find(email) == (one, first.user_id)
    for attempt in (
        tenants.accounts.change_user(one, first.user_id, UserPatch(role="viewer"), actor=ACTOR),
        tenants.accounts.delete_user(one, first.user_id, actor=ACTOR),
    ):
        with pytest.raises(Conflict) as refused:
            await attempt
        assert refused.value.code == "LAST_OWNER"
    second = await tenants.accounts.create_user(
        one, NewUser(email=f"{unique('bob')}@example.com", password=PASSWORD, role="owner"), actor=ACTOR
    )
    outcomes = await asyncio.gather(
        tenants.accounts.change_user(one, first.user_id, UserPatch(role="viewer"), actor=ACTOR),
        tenants.accounts.change_user(one, second.user_id, UserPatch(role="viewer"), actor=ACTOR),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 1, "two owners demote each other: one stays"
    with pytest.raises(NotFound):
        await tenants.accounts.get_user(other, first.user_id)


async def test_a_session_ends_by_itself(
    database: Database, redis: Redis, tenant: int, unique: Callable[[str], str]
) -> None:
    clock = FakeClock()
    tenants = service(database, redis, clock)
    email = f"{unique('ada')}@example.com"
    await tenants.accounts.create_user(tenant, NewUser(email=email, password=PASSWORD), actor=ACTOR)
    session = await tenants.accounts.login(email, PASSWORD)
    clock.advance(hours=12, ms=-1)
    assert await tenants.directory.session(session.token)
    clock.advance(ms=1)
    assert await tenants.directory.session(session.token) is None
    clock.advance(ms=1)
    assert (await tenants.sweep())["sessions"] >= 1
    await tenants.stop()
