"""The log beside every change, erasures, idempotency keys, walls and the state hash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from handbill.infra.postgres import Database, PermissionDenied, PostgresError
from handbill.infra.redis import Redis
from handbill.infra.state import StateTable, state_hash, table_hash, total
from handbill.kit.errors import (
    Busy,
    Conflict,
)
from handbill.tenants.model import (
    NewKey,
    NewUser,
    Replay,
    TenantPatch,
)
from handbill.tenants.replays import request_hash
from handbill.tenants.service import STATE, TenantService
from tests.kit import person_requests
from tests.kit.clocks import FakeClock
from tests.kit.crashes import enumerate_points
from tests.store.tenants_room import ACTOR, PASSWORD, actions, service, sql


@pytest.fixture
async def tenants(database: Database, redis: Redis) -> AsyncIterator[TenantService]:
    found = service(database, redis)
    await found.start()
    yield found
    await found.stop()


# --- the log, erasures, idempotency


async def test_a_change_that_fails_leaves_no_row_in_the_log_and_no_log_leaves_no_change(
    database: Database, tenants: TenantService, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise Busy("the log cannot be written")

    before = await tenants.get_tenant(tenant)
    monkeypatch.setattr(tenants.audit, "write", broken)
    for change in (
        tenants.create_key(tenant, NewKey(kind="secret", name="k"), actor=ACTOR),
        tenants.change_tenant(tenant, TenantPatch(name="changed"), actor=ACTOR),
        tenants.suspend(tenant, actor=ACTOR),
        tenants.accounts.create_user(tenant, NewUser(email=f"{uuid4()}@example.com", password=PASSWORD), actor=ACTOR),
    ):
        with pytest.raises(Busy):
            await change
    monkeypatch.undo()
    assert await tenants.get_tenant(tenant) == before
    assert await tenants.list_keys(tenant) == []
    assert await tenants.accounts.list_users(tenant) == []
    assert await actions(tenants, tenant) == []


async def test_lists_are_read_in_pages(tenants: TenantService, tenant: int) -> None:
    made = [
        (await tenants.create_key(tenant, NewKey(kind="secret", name=f"k{number}"), actor=ACTOR)).info.key_id
        for number in range(5)
    ]
    seen: list[UUID] = []
    cursor: str | None = None
    while True:
        page = await tenants.key_page(tenant, cursor, 2)
        seen += [key.key_id for key in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert seen == made[::-1]


async def test_an_erasure_reaches_every_room_and_forgets_its_subject(
    database: Database, tenants: TenantService, tenant: int
) -> None:
    asked: list[tuple[int, str]] = []
    fails = True

    async def events(tenant_id: int, subject: str) -> dict[str, int]:
        asked.append((tenant_id, subject))
        return {"impressions": 3}

    async def people(tenant_id: int, subject: str) -> dict[str, int]:
        if fails:
            raise Busy("away", code="POSTGRES_AWAY")
        return {"persons": 1}

    tenants.erasures.join("people", people)
    tenants.erasures.join("events", events)
    with pytest.raises(ValueError, match="already joined"):
        tenants.erasures.join("events", events)
    first = await person_requests.erase(tenants, tenant, "user-42", actor=ACTOR)
    assert (first.status, first.error, first.steps_done, first.steps_total) == ("running", "POSTGRES_AWAY", 1, 2)
    assert first.report == {"people": {"error": "POSTGRES_AWAY"}, "events": {"impressions": 3}}
    fails = False
    second = await tenants.erasures.run(tenant, first.erasure_id)
    assert (second.status, second.error, second.steps_done) == ("done", None, 2)
    assert second.report == {"people": {"persons": 1}, "events": {"impressions": 3}}
    assert asked == [(tenant, "user-42")], "a step that is done is not done again"
    assert (await person_requests.erase(tenants, tenant, "user-42", actor=ACTOR)).status == "done"
    async with database.tenant(tenant) as tx:
        kept = await tx.fetch(sql("select subject from tenants.erasures where tenant_id = $1"), tenant)
    assert [row["subject"] for row in kept] == [None, None]
    assert "user-42" not in repr((await tenants.audit_page(tenant, None, 200)).items)
    assert len((await tenants.erasures.list(tenant, None, 10)).items) == 2


async def test_an_erasure_that_a_room_breaks_is_told_and_asked_for_again(
    database: Database, tenants: TenantService, tenant: int
) -> None:
    asked: list[list[str]] = []
    behind = True

    async def settled(tenant_id: int) -> None:
        if behind:
            raise Busy("events are on their way", code="HISTORY_BEHIND")

    async def siblings(tenant_id: int, subject: str) -> list[str]:
        return [subject, "b"]

    async def refused(tenant_id: int, subjects: list[str]) -> dict[str, int]:
        async with database.worker() as tx:
            await tx.execute(sql("select 1 / (select 0)"))
        return {}

    async def whole(tenant_id: int, subjects: list[str]) -> dict[str, int]:
        asked.append(subjects)
        return {"whole": len(subjects)}

    async def each(tenant_id: int, subject: str) -> dict[str, int]:
        return {"each": 1}

    erasures = tenants.erasures
    erasures.settled, erasures.siblings = settled, siblings
    erasures.join_whole("whole", whole)
    erasures.join("each", each)
    first = await person_requests.erase(tenants, tenant, "a", actor=ACTOR)
    assert (first.status, first.report, asked) == ("running", {"accepted": {"error": "HISTORY_BEHIND"}}, [])
    behind = False
    second = await erasures.run(tenant, first.erasure_id)
    assert (second.status, second.report) == ("done", {"whole": {"whole": 2}, "each": {"each": 2}})
    assert asked == [["a", "b"]]
    erasures.join_whole("refused", refused)
    third = await person_requests.erase(tenants, tenant, "a", actor=ACTOR)
    assert (third.status, third.report["refused"]) == ("failed", {"error": "BROKEN"})


async def test_an_idempotency_key_has_one_meaning(database: Database, redis: Redis, tenant: int) -> None:
    clock = FakeClock()
    tenants = service(database, redis, clock)
    replays, key = tenants.replays, "order-1"
    digest = request_hash("POST", "/x", "actor", b"{}")
    other = request_hash("POST", "/x", "actor", b"{ }")
    claims = await asyncio.gather(
        *(replays.claim(tenant, key, digest, "hbs_a") for _ in range(8)), return_exceptions=True
    )
    assert sum(not isinstance(claim, Conflict) for claim in claims) == 1
    with pytest.raises(Conflict) as flying:
        await replays.claim(tenant, key, digest, "hbs_a")
    assert flying.value.code == "IDEMPOTENCY_IN_FLIGHT"
    clock.advance(minutes=2)
    with pytest.raises(Conflict) as lost:
        await replays.claim(tenant, key, digest, "hbs_a")
    assert lost.value.code == "IDEMPOTENCY_UNFINISHED"
    await replays.close(tenant, key, Replay(201, "application/json", b'{"key":"hbs_secret"}'), "hbs_a")
    again = await replays.claim(tenant, key, digest, "hbs_a")
    assert again.replay == Replay(201, "application/json", b'{"key":"hbs_secret"}')
    for bad in (replays.claim(tenant, key, other, "hbs_a"), replays.claim(tenant, key, digest, "hbs_b")):
        with pytest.raises(Conflict) as mismatch:
            await bad
        assert mismatch.value.code == "IDEMPOTENCY_MISMATCH"
    async with database.tenant(tenant) as tx:
        stored = await tx.fetchval(sql("select reply from tenants.idempotency_keys where tenant_id = $1"), tenant)
    assert b"hbs_secret" not in stored
    clock.advance(hours=24)
    assert (await replays.claim(tenant, key, other, "hbs_a")).outcome == "ours"
    await replays.release(tenant, key)
    assert (await replays.claim(tenant, key, digest, "hbs_a")).outcome == "ours"
    await tenants.stop()


async def test_wherever_a_rotation_dies_the_keys_and_the_log_agree(
    database: Database, redis: Redis, tenant: int
) -> None:
    """Death at every point between us and the engines: either both keys and both rows are there, or neither."""
    tenants = service(database, redis)
    first = await tenants.create_key(tenant, NewKey(kind="secret", name="k", scopes=["*"]), actor=ACTOR)
    newest = first.info.key_id

    async def attempt() -> None:
        await tenants.rotate_key(tenant, newest, actor=ACTOR)

    async def check(number: int, name: str) -> None:
        nonlocal newest
        keys = await tenants.list_keys(tenant)
        done = await actions(tenants, tenant)
        assert done.count("key.rotate") == len(keys) - 1, f"point {number}: {name}"
        assert done.count("key.create") == len(keys)
        assert [key.expires_at is None for key in keys] == [True] + [False] * (len(keys) - 1)
        newest = keys[0].key_id

    assert await enumerate_points(attempt, check, what="a key's rotation") >= 10
    await tenants.stop()


# --- walls and the state hash


async def test_look_ups_tell_tenant_and_id_and_nothing_else(
    database: Database, tenants: TenantService, make_tenant: Callable[..., Any]
) -> None:
    one, other = await make_tenant(), await make_tenant()
    await tenants.create_key(one, NewKey(kind="secret", name="k"), actor=ACTOR)
    async with database.lookup() as tx:
        for table in ("tenants", "settings", "api_keys", "users", "sessions", "audit_log", "erasures"):
            assert await tx.fetchval(sql(f"select count(*) from tenants.{table}")) == 0
        columns = await tx.fetch(
            sql(
                "select p.proname::text as name, p.proargnames::text[] as names from pg_proc p"
                " join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'tenants' and p.prosecdef"
            )
        )
    told = {name for row in columns for name in row["names"]}
    assert told == {"wanted", "of_tenant", "most", "tenant_id", "key_id", "session_id", "user_id"}
    async with database.tenant(other) as tx:
        assert await tx.fetchval(sql("select count(*) from tenants.api_keys")) == 0
        assert await tx.fetchval(sql("select count(*) from tenants.tenants")) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "update tenants.audit_log set actor = 'nobody'",
        "delete from tenants.audit_log",
        "delete from tenants.tenants",
        "insert into tenants.tenants (public_id, slug, name, created_at, updated_at)"
        " values (gen_random_uuid(), 'mine', 'mine', now(), now())",
        "select handbill_wall('tenants.tenants')",
    ],
)
async def test_the_app_role_may_not(database: Database, tenant: int, statement: str) -> None:
    with pytest.raises((PermissionDenied, PostgresError)):
        async with database.tenant(tenant) as tx:
            await tx.execute(sql(statement))


async def test_the_state_hash_sees_every_cell_but_the_volatile_ones(
    database: Database, tenants: TenantService, tenant: int
) -> None:
    made = await tenants.create_key(tenant, NewKey(kind="secret", name="k"), actor=ACTOR)
    key_id = made.info.key_id

    async def changed(assignment: str) -> bool:
        async with database.worker() as tx:
            before = await state_hash(tx, STATE)
            assert before == await state_hash(tx, STATE)
            await tx.execute(
                sql(f"update tenants.api_keys set {assignment} where tenant_id = $1 and key_id = $2"), tenant, key_id
            )
            return total(before) != total(await state_hash(tx, STATE))

    assert await changed("name = 'other'")
    assert await changed("expires_at = now()")
    assert await changed("scopes = '{a,b}'")
    assert await changed("scopes = '{\"a,b\"}'")
    assert await changed("revoked_at = now()")
    assert not await changed("last_used_at = now()")
    async with database.worker() as tx:
        names = frozenset({"nonsense"})
        for wrong in (StateTable("tenants.api_keys", volatile=names), StateTable("tenants.api_keys", summed=names)):
            with pytest.raises(LookupError):
                await table_hash(tx, wrong)
        with pytest.raises(LookupError):
            await table_hash(tx, StateTable("tenants.nothing"))


async def test_the_state_hash_adds_up_what_is_spread_over_rows(database: Database) -> None:
    """Counts kept per lane are one count, however they are spread; one more anywhere is another state."""
    async with database.worker() as tx:
        await tx.execute(sql("create temp table counts (day date, lane int, n bigint) on commit drop"))
        schema = await tx.fetchval(sql("select nspname from pg_namespace where oid = pg_my_temp_schema()"))
        table = StateTable(f"{schema}.counts", volatile=frozenset({"lane"}), summed=frozenset({"n"}))

        async def hashed(*rows: str) -> str:
            await tx.execute(sql("truncate counts"))
            await tx.execute(sql(f"insert into counts values {', '.join(rows)}"))
            return await table_hash(tx, table)

        together = await hashed("('2026-01-01', 1, 5)", "('2026-01-02', 1, 5)")
        assert together == await hashed("('2026-01-02', 3, 1)", "('2026-01-01', 2, 5)", "('2026-01-02', 1, 4)")
        assert together != await hashed("('2026-01-01', 1, 6)", "('2026-01-02', 1, 5)")
        assert together != await hashed("('2026-01-01', 1, 4)", "('2026-01-02', 1, 6)")


async def test_an_export_holds_its_rows_in_all_and_asks_for_no_more(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handbill.tenants.exports.EXPORT_ROWS", 100)
    tenants = service(database, redis)
    asked: list[tuple[str, int]] = []

    async def erase(tenant_id: int, subject: str) -> dict[str, int]:
        return {}

    def exporter(table: str, has: int) -> Any:
        async def export(tenant_id: int, subject: str, most: int) -> dict[str, list[dict[str, Any]]]:
            asked.append((table, most))
            return {table: [{"id": subject}] * min(has, most)}

        return export

    async def siblings(tenant_id: int, subject: str) -> list[str]:
        return [f"id-{n}" for n in range(50)]

    tenants.erasures.siblings = siblings
    tenants.erasures.join("few", erase, exporter("t.few", 1))
    tenants.erasures.join("many", erase, exporter("t.many", 30))
    tenants.erasures.join("unasked", erase, exporter("t.unasked", 1))
    export = await person_requests.export(tenants, tenant, "a", actor=ACTOR)
    rows = {table: len(rows) for tables in export.rooms.values() for table, rows in tables.items()}
    assert rows == {"t.few": 51, "t.many": 49}, "51 ids, and 100 rows in all"
    assert (export.cut, export.away) == (["many", "t.many", "unasked"], [])
    assert [most for _, most in asked] == [101 - n for n in range(51)] + [50, 20], "never more than what is left"
