"""Tenants, keys and the directory on a real PostgreSQL and Redis: rotation, settings, suspension, forgetting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import jwt as pyjwt
import pytest

from handbill.events.shipping_rows import retention_class
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import SystemClock
from handbill.kit.errors import (
    Broken,
    Busy,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PreconditionFailed,
    Unauthorized,
)
from handbill.settings import load
from handbill.tenants.model import (
    CHANGES,
    JwtRules,
    NewKey,
    NewTenant,
    Privacy,
    SettingsPatch,
    TenantPatch,
)
from handbill.tenants.service import TenantService
from handbill.wiring.shipping import Retentions
from tests.kit.clocks import FakeClock
from tests.kit.waiting import eventually
from tests.store.tenants_room import ACTOR, actions, service


@pytest.fixture
async def tenants(database: Database, redis: Redis) -> AsyncIterator[TenantService]:
    found = service(database, redis)
    await found.start()
    yield found
    await found.stop()


# --- tenants


async def test_a_tenant_is_created_found_and_suspended(tenants: TenantService, unique: Callable[[str], str]) -> None:
    slug = unique("acme")
    made = await tenants.create_tenant(NewTenant(name="Acme", slug=slug, time_zone="Asia/Kolkata"), actor=ACTOR)
    assert (await tenants.find_tenant(slug)) == made
    assert (await tenants.find_tenant(made.tenant_id)) == made
    assert made in await tenants.list_tenants()
    with pytest.raises(Conflict):
        await tenants.create_tenant(NewTenant(name="Other", slug=slug), actor=ACTOR)
    with pytest.raises(Invalid):
        await tenants.create_tenant(NewTenant(name="Other", slug=unique("x"), time_zone="Mars/Olympus"), actor=ACTOR)
    with pytest.raises(NotFound):
        await tenants.find_tenant(unique("nobody"))
    assert (await tenants.suspend(made.tenant_id, actor=ACTOR)).status == "suspended"
    assert (await tenants.suspend(made.tenant_id, actor=ACTOR)).status == "suspended"
    assert (await tenants.resume(made.tenant_id, actor=ACTOR)).status == "active"
    assert await actions(tenants, made.tenant_id) == ["tenant.resume", "tenant.suspend", "tenant.create"]


async def test_a_suspended_tenant_is_refused_everywhere(tenants: TenantService, tenant: int) -> None:
    key = (await tenants.create_key(tenant, NewKey(kind="secret", name="k", scopes=["*"]), actor=ACTOR)).key
    write = (await tenants.create_key(tenant, NewKey(kind="write", name="w"), actor=ACTOR)).key
    assert await tenants.directory.secret_key(key)
    await tenants.suspend(tenant, actor=ACTOR)
    for ask in (tenants.directory.secret_key(key), tenants.directory.write_key(write)):
        with pytest.raises(Forbidden) as refused:
            await ask
        assert refused.value.code == "TENANT_SUSPENDED"
    await tenants.resume(tenant, actor=ACTOR)
    assert await tenants.directory.secret_key(key)


async def test_a_secret_that_does_not_open_concerns_tokens_only(
    database: Database, redis: Redis, tenants: TenantService, tenant: int
) -> None:
    """Exports and decisions of the tenant, and of all others in its lane, go by its settings."""
    secret = "a very long shared secret, thirty-two or more"
    settings = SettingsPatch(jwt=JwtRules(kind="hs256"), jwt_secret=secret, privacy=Privacy(retention_days=30))
    await tenants.change_tenant(tenant, TenantPatch(settings=settings), actor=ACTOR)
    others = TenantService(database, redis, seal_key=b"another key of thirty-two bytes.", clock=SystemClock())
    try:
        assert (await others.directory.profile(tenant)).settings.privacy.retention_days == 30
        token = pyjwt.encode({"sub": "u", "exp": SystemClock().now_ms() // 1000 + 600}, secret, "HS256")
        with pytest.raises(Broken) as broken:
            await others.directory.user_token(tenant, token)
        assert broken.value.code == "SEAL_BROKEN"
    finally:
        await others.stop()


async def test_settings_change_together_and_hide_their_secret(tenants: TenantService, tenant: int) -> None:
    before, _ = await tenants.get_tenant(tenant)
    secret = "a very long shared secret, thirty-two or more"
    patch = TenantPatch(
        name="New name",
        settings=SettingsPatch(jwt=JwtRules(kind="hs256"), jwt_secret=secret, privacy=Privacy(truncate_ip=True)),
    )
    after, settings = await tenants.change_tenant(tenant, patch, actor=ACTOR, if_version=before.version)
    assert after.name == "New name"
    assert settings.jwt_secret_set
    assert settings.privacy.truncate_ip
    with pytest.raises(PreconditionFailed):
        await tenants.change_tenant(tenant, patch, actor=ACTOR, if_version=before.version)
    clock = SystemClock()
    token = pyjwt.encode({"sub": "user-1", "exp": clock.now_ms() // 1000 + 600}, secret, "HS256")
    found = await tenants.directory.user_token(tenant, token)
    assert (found.tenant_id, found.kind, found.subject) == (tenant, "jwt", "user-1")
    assert await tenants.directory.user_token(tenant, token) == found
    log = (await tenants.audit_page(tenant, None, 200)).items
    assert secret not in repr(log)
    removed = TenantPatch(settings=SettingsPatch(jwt_secret=None))
    with pytest.raises(Invalid):
        await tenants.change_tenant(tenant, removed, actor=ACTOR)
    gone = TenantPatch(settings=SettingsPatch(jwt_secret=None, jwt=JwtRules()))
    await tenants.change_tenant(tenant, gone, actor=ACTOR)
    with pytest.raises(Unauthorized):
        await tenants.directory.user_token(tenant, token)


async def test_a_tenant_has_a_default_region(tenants: TenantService, tenant: int) -> None:
    assert await tenants.default_region(tenant) is None
    patch = TenantPatch(settings=SettingsPatch(default_region="NP"))
    _, settings = await tenants.change_tenant(tenant, patch, actor=ACTOR)
    assert settings.default_region == await tenants.default_region(tenant) == "NP"
    _, settings = await tenants.change_tenant(tenant, TenantPatch(settings=SettingsPatch()), actor=ACTOR)
    assert settings.default_region == "NP"
    with pytest.raises(Invalid, match="'UK' is no region"):
        await tenants.change_tenant(tenant, TenantPatch(settings=SettingsPatch(default_region="UK")), actor=ACTOR)
    await tenants.change_tenant(tenant, TenantPatch(settings=SettingsPatch(default_region=None)), actor=ACTOR)
    assert await tenants.default_region(tenant) is None


async def test_required_is_stored_only_where_it_is_on(tenants: TenantService, database: Database, tenant: int) -> None:
    """Processes of the release before refuse a member that they do not know."""
    stored = Sql("select jwt ? 'required' from tenants.settings where tenant_id = $1", "stored", "tests")
    for required in (True, False):
        rules = JwtRules(kind="hs256", required=required)
        patch = TenantPatch(settings=SettingsPatch(jwt=rules, jwt_secret="s" * 32))
        _, settings = await tenants.change_tenant(tenant, patch, actor=ACTOR)
        assert settings.jwt.required is required
        async with database.tenant(tenant) as tx:
            assert await tx.fetchval(stored, tenant) is required


async def test_bad_settings_change_nothing(tenants: TenantService, tenant: int) -> None:
    before = await tenants.get_tenant(tenant)
    for rules in (
        JwtRules(kind="hs256"),
        JwtRules(kind="jwks"),
        JwtRules(kind="jwks", jwks_url="https://127.0.0.1/keys"),
        JwtRules(kind="jwks", jwks_url="https://１２７.０.０.１:8443/keys"),
        JwtRules(kind="jwks", jwks={"keys": [{"kty": "RSA", "alg": "none"}]}),
        JwtRules(kind="jwks", jwks={"keys": [{"kty": "oct", "k": "AA"}]}),
    ):
        patch = TenantPatch(name="changed", settings=SettingsPatch(jwt=rules))
        with pytest.raises(Invalid):
            await tenants.change_tenant(tenant, patch, actor=ACTOR)
    assert await tenants.get_tenant(tenant) == before
    assert await actions(tenants, tenant) == []


async def test_limits_are_the_operators_to_give(tenants: TenantService, tenant: int) -> None:
    assert (await tenants.set_limits(tenant, {"events_per_second": 500}, actor=ACTOR)).limits == {
        "events_per_second": 500
    }
    assert (await tenants.directory.profile(tenant)).settings.limits == {"events_per_second": 500}
    with pytest.raises(Invalid):
        await tenants.set_limits(tenant, {"events_per_second": -1}, actor=ACTOR)


# --- keys


async def test_rotation_overlaps_and_then_ends(database: Database, redis: Redis, tenant: int) -> None:
    clock = FakeClock()
    tenants = service(database, redis, clock)
    old = await tenants.create_key(tenant, NewKey(kind="secret", name="k", scopes=["audit:read"]), actor=ACTOR)
    new = await tenants.rotate_key(tenant, old.info.key_id, actor=ACTOR, overlap_s=60)
    assert new.info.replaces == old.info.key_id
    assert new.info.scopes == ["audit:read"]
    for key in (old.key, new.key):
        assert await tenants.directory.secret_key(key) is not None
    clock.advance(ms=59_999)
    assert await tenants.directory.secret_key(old.key) is not None
    clock.advance(ms=1)
    assert await tenants.directory.secret_key(old.key) is None
    assert await tenants.directory.secret_key(new.key) is not None
    with pytest.raises(Conflict):
        await tenants.rotate_key(tenant, old.info.key_id, actor=ACTOR)
    again = await tenants.rotate_key(tenant, new.info.key_id, actor=ACTOR, overlap_s=0)
    assert await tenants.directory.secret_key(new.key) is None
    assert await tenants.directory.secret_key(again.key) is not None
    await tenants.stop()


async def test_a_key_is_only_what_it_is(tenants: TenantService, tenant: int) -> None:
    write = await tenants.create_key(tenant, NewKey(kind="write", name="site"), actor=ACTOR)
    secret = await tenants.create_key(tenant, NewKey(kind="secret", name="k", scopes=["keys:read"]), actor=ACTOR)
    assert write.info.clear_key == write.key
    assert secret.info.clear_key is None
    listed = await tenants.list_keys(tenant)
    assert secret.key not in repr(listed)
    found = await tenants.directory.write_key(write.key)
    assert found is not None
    assert (found.tenant_id, found.kind) == (tenant, "write_key")
    assert not found.allows("keys:read")
    assert await tenants.directory.write_key(secret.key) is None
    assert await tenants.directory.secret_key(write.key) is None
    assert await tenants.directory.secret_key("hbs_" + "x" * 32) is None
    assert (await tenants.list_keys(tenant))[0].last_used_at is None
    await tenants.directory.secret_key(secret.key)
    used = {key.key_id: key.last_used_at for key in await tenants.list_keys(tenant)}
    assert used[secret.info.key_id] is not None
    with pytest.raises(Invalid):
        await tenants.create_key(tenant, NewKey(kind="write", name="w", scopes=["*"]), actor=ACTOR)


async def test_a_revoked_key_is_forgotten_by_other_processes(
    database: Database, redis: Redis, tenants: TenantService, tenant: int
) -> None:
    other = service(database, redis, key_cache_seconds=3600)
    await other.start()
    made = await tenants.create_key(tenant, NewKey(kind="secret", name="k", scopes=["*"]), actor=ACTOR)
    assert await other.directory.secret_key(made.key) is not None
    async with redis.subscribe(CHANGES) as messages:
        await tenants.revoke_key(tenant, made.info.key_id, actor=ACTOR)
        async for _, message in messages:
            if message == str(tenant).encode():
                break
    assert await tenants.directory.secret_key(made.key) is None

    async def forgotten() -> bool:
        # Said again, because the other process may not have been listening yet the first time.
        await redis.call("PUBLISH", CHANGES, str(tenant))
        return await other.directory.secret_key(made.key) is None

    await eventually(forgotten)
    await other.stop()


async def test_the_directory_outlives_its_database_for_what_it_knows(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    tenants = service(database, redis, clock)
    known = await tenants.create_key(tenant, NewKey(kind="write", name="w"), actor=ACTOR)
    unseen = await tenants.create_key(tenant, NewKey(kind="write", name="w"), actor=ACTOR)
    assert await tenants.directory.write_key(known.key)

    def away() -> Any:
        raise Busy("PostgreSQL is away", code="POSTGRES_AWAY")

    tenants.directory._database = type("Away", (), {"lookup": staticmethod(away), "tenant": staticmethod(away)})()
    clock.advance(minutes=5)
    assert await tenants.directory.write_key(known.key)
    with pytest.raises(Busy):
        await tenants.directory.write_key(unseen.key)
    clock.advance(minutes=6)
    with pytest.raises(Busy):
        await tenants.directory.write_key(known.key)
    await tenants.stop()


async def test_many_questions_about_one_key_are_one_question(tenants: TenantService, tenant: int) -> None:
    made = await tenants.create_key(tenant, NewKey(kind="write", name="w"), actor=ACTOR)
    found = await asyncio.gather(*(tenants.directory.write_key(made.key) for _ in range(200)))
    assert {principal.tenant_id for principal in found if principal} == {tenant}
    assert None not in found


async def test_events_of_a_tenant_that_is_gone_have_the_installations_retention(
    tenants: TenantService, tenant: int
) -> None:
    house: Any = SimpleNamespace(tenants=tenants, settings=load({"HANDBILL_EVENTS__HISTORY_DAYS": "400"}))
    nobody = 2_000_000_000
    classes = await Retentions(house)([tenant, nobody])
    assert classes == {tenant: retention_class(400), nobody: retention_class(400)}
