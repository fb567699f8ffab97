"""Named statements: how files are read, and that every statement of every room fits the schema."""

from __future__ import annotations

import pytest

from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, prepare_all
from handbill.infra.sqlfiles import Sql, Statements, parse
from handbill.kit.errors import Broken

FILE = """-- About this file.

-- A note that belongs to the next one.
-- name: first_one
-- no-tenant: it is about nobody
select 1  -- with a note
  from x;

-- name: second
-- why it is so
select 'a -- b'
where tenant_id = $1
"""


def test_a_file_becomes_named_statements() -> None:
    first, second = parse(FILE, room="room", source="x.sql")
    assert (first.name, first.room, first.no_tenant) == ("first_one", "room", "it is about nobody")
    assert first == first.text == "select 1  -- with a note\n  from x"
    assert type(first.text) is str
    assert (second.name, second.no_tenant) == ("second", None)
    assert second == "select 'a -- b'\nwhere tenant_id = $1"


@pytest.mark.parametrize("text", ["select 1;", "-- name: empty\n-- nothing\n", "-- name: a\n;\n"])
def test_what_is_not_a_statement_stops_the_import(text: str) -> None:
    with pytest.raises(Broken, match=r"x\.sql"):
        parse(text, room="room", source="x.sql")


def test_an_unknown_name_fails_at_once() -> None:
    statements = Statements("handbill.room", {"known": Sql("select 1", "known", "room")})
    assert statements.known == "select 1"
    assert len(statements) == 1
    with pytest.raises(AttributeError, match="no statement named 'unknown'"):
        _ = statements.unknown
    with pytest.raises(Broken, match="no SQL files"):
        sqlfiles.load("handbill.kit")


def test_every_room_with_sql_is_found_and_its_names_are_its_own() -> None:
    rooms = {room.package: room for room in sqlfiles.all_rooms()}
    assert {"handbill.tenants", "handbill.jobs"} <= set(rooms)
    for package, room in rooms.items():
        assert sqlfiles.load(package) is room
        for statement in room:
            assert statement.room == package.rpartition(".")[2]


async def test_every_statement_of_every_room_fits_the_schema(database: Database) -> None:
    number = await prepare_all(database)
    assert number == sum(len(room) for room in sqlfiles.all_rooms())
    print(f"statements prepared: {number}")


async def test_a_statement_that_does_not_fit_is_named(database: Database) -> None:
    good = Sql("insert into scratch select $1::int", "use_scratch", "room")
    temporary = Sql("create temp table scratch (n int) on commit drop", "make_scratch", "room")
    assert await prepare_all(database, [Statements("room", {"a": good, "b": temporary})]) == 2
    for wrong in ("select * from tenants.nowhere", "select nothing from tenants.tenants", "selekt 1"):
        with pytest.raises(Broken, match="bad_one of room") as broken:
            await prepare_all(database, [Statements("room", {"a": Sql(wrong, "bad_one", "room")})])
        assert broken.value.code == "STATEMENT_BROKEN"
