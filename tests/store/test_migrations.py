"""The migration runner: once each, in order, one runner at a time, all or nothing, and never backwards."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec
import pytest

from handbill.infra import migrations
from handbill.infra.migrations import Migration, compare, migrate, shipped, split, status
from handbill.infra.postgres import Database, PostgresAway, PostgresBusy, derive, prepare_all
from handbill.infra.postgres.urls import masked
from handbill.kit.errors import Broken
from tests.conftest import OwnEngine
from tests.kit.engines import Engines
from tests.kit.schema import described, empty_database


@pytest.fixture
async def empty(engines: Engines) -> AsyncIterator[str]:
    async with empty_database(engines.postgres_url) as url:
        yield url


async def ask(url: str, question: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


async def test_all_files_once_and_then_none(empty: str) -> None:
    labels = [migration.label for migration in shipped()]
    before = await status(empty)
    assert before.pending == tuple(labels)
    assert before.applied == ()
    assert await migrate(empty) == labels
    assert await migrate(empty) == []
    after = await status(empty)
    assert after.applied == tuple(labels)
    assert after.pending == after.unknown == ()


async def test_many_runners_at_once_do_the_work_once(empty: str) -> None:
    done = await asyncio.gather(*[migrate(empty) for _ in range(4)])
    assert sorted(label for labels in done for label in labels) == [migration.label for migration in shipped()]


async def test_the_migrations_reach_the_schema_as_written(engines: Engines, empty: str) -> None:
    """schema.sql is today's truth; the files are the way there. Both must make the same database."""
    text = (resources.files("handbill") / "migrations" / "postgres" / "schema.sql").read_text()
    await ask(empty, "select 1")
    connection = await asyncpg.connect(empty)
    await connection.execute(text)
    await connection.close()
    written = await described(empty)
    async with empty_database(engines.postgres_url) as other:
        await migrate(other)
        migrated = await described(other)
    assert len(migrated) > 100
    differences = {
        name: (migrated.get(name), written.get(name))
        for name in sorted(migrated.keys() | written.keys())
        if migrated.get(name) != written.get(name)
    }
    assert differences == {}, "migrated on the left, schema.sql on the right"


FIRST = Migration(1, "first", "create table public.one (n int); create table public.two (n int)")
SECOND = Migration(2, "second", "alter table public.one add column m int")
WRONG = Migration(2, "second", "alter table public.one add column m int; alter table public.nowhere add column m int")


async def test_a_failing_file_is_undone_whole_and_named(empty: str) -> None:
    with pytest.raises(Broken, match="0002_second") as failed:
        await migrate(empty, files=[FIRST, WRONG])
    assert failed.value.code == "MIGRATION_FAILED"
    columns = "select count(*) from pg_attribute where attrelid = 'public.one'::regclass and attnum > 0"
    assert await ask(empty, columns) == 1
    assert await ask(empty, "select count(*) from public.handbill_migrations") == 1
    assert await migrate(empty, files=[FIRST, SECOND]) == ["0002_second"]
    assert await ask(empty, columns) == 2


async def test_an_applied_file_must_not_change(empty: str) -> None:
    await migrate(empty, files=[FIRST])
    with pytest.raises(Broken, match="another text") as changed:
        await migrate(empty, files=[msgspec.structs.replace(FIRST, text="create table public.three (n int)"), SECOND])
    assert changed.value.code == "MIGRATION_CHANGED"
    assert await ask(empty, "select count(*) from public.handbill_migrations") == 1


async def test_a_newer_schema_stops_older_code(empty: str) -> None:
    await migrate(empty, files=[FIRST, SECOND])
    with pytest.raises(Broken, match="0002_second") as newer:
        await migrate(empty, files=[FIRST])
    assert newer.value.code == "SCHEMA_NEWER"


async def test_a_busy_table_makes_it_give_up_and_not_queue(empty: str) -> None:
    await migrate(empty, files=[FIRST])
    holder = await asyncpg.connect(empty)
    await holder.execute("begin; lock table public.one in access share mode")
    with pytest.raises(PostgresBusy, match="0002_second"):
        await migrate(empty, files=[FIRST, SECOND], lock_timeout_ms=100)
    await holder.execute("rollback")
    await holder.close()
    assert await migrate(empty, files=[FIRST, SECOND]) == ["0002_second"]


async def test_no_engine_no_password_in_the_message() -> None:
    url = "postgresql://handbill:topsecret@127.0.0.1:1/handbill"
    with pytest.raises(PostgresAway) as away:
        await migrate(url)
    assert "topsecret" not in away.value.detail
    assert masked(url) in away.value.detail


def test_the_files_leave_transactions_to_the_runner_and_are_numbered() -> None:
    files = shipped()
    assert [migration.number for migration in files] == list(range(1, len(files) + 1))
    for migration in files:
        assert not re.search(r"^\s*(begin|commit|rollback)\s*;", migration.text, re.MULTILINE | re.IGNORECASE)
        assert not re.search(r"\bconcurrently\b", migration.text, re.IGNORECASE)


def test_compare_and_split() -> None:
    state = compare({1: (FIRST.name, FIRST.checksum), 7: ("later", "x")}, [FIRST, SECOND])
    assert state.pending == ("0002_second",)
    assert state.unknown == ("0007_later",)
    assert split("-- a note; with a sign\ncreate x;\ninsert 'a;b' ;  \n\nselect 1") == [
        "create x",
        "insert 'a;b'",
        "select 1",
    ]
    assert migrations.shipped("clickhouse") == migrations.shipped("clickhouse")


async def test_roles_get_their_passwords_and_a_plain_owner_is_enough(own_postgres: OwnEngine) -> None:
    """As on a managed server: the owner is no superuser; an administrator made the roles and granted them."""
    engine = await own_postgres(durable=False)
    admin = await asyncpg.connect(engine.url)
    await admin.execute(
        """
        create role handbill_app login; create role handbill_worker login bypassrls;
        create role landlord login createrole password 'rent';
        grant handbill_app, handbill_worker to landlord with admin option;
        """
    )
    await admin.execute("create database house owner landlord")
    parts = urlsplit(engine.url)
    url = urlunsplit(parts._replace(netloc=f"landlord:rent@127.0.0.1:{parts.port}", path="/house"))
    await admin.execute("alter role landlord nocreaterole")
    with_warning = await migrate(url)  # may not set passwords any more: said in the log, not an error
    assert with_warning
    await admin.execute("alter role landlord createrole")
    assert await migrate(url) == []
    await admin.close()
    database = Database(derive(url))
    await database.start()
    await database.health()
    assert await prepare_all(database) > 50
    await database.stop()


async def test_a_role_password_that_cannot_be_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connection:
        tries = 0

        async def execute(self, statement: str) -> None:
            self.tries += 1
            raise asyncpg.InternalServerError("tuple concurrently updated")

    async def refused(url: str) -> bool:
        return False

    monkeypatch.setattr(migrations, "_can_log_in", refused)
    monkeypatch.setattr(migrations, "_ROLE_TRIES", 2)
    connection: Any = Connection()
    with pytest.raises(PostgresBusy, match="handbill_app"):
        await migrations._let_roles_in(connection, "postgresql://owner:secret@127.0.0.1:1/house")
    assert connection.tries == 2
