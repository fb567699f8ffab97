"""Every statement of every room is prepared once at boot: a typo, or a schema that does not fit, stops the process
and not a user."""

from __future__ import annotations

import re
from collections.abc import Sequence

from handbill.infra import sqlfiles
from handbill.infra.postgres.database import Database
from handbill.infra.postgres.errors import DRIVER_ERRORS, PostgresError, translated
from handbill.infra.postgres.tx import Session
from handbill.infra.sqlfiles import Sql, Statements
from handbill.kit.errors import Broken

_TEMPORARY = re.compile(r"^\s*create\s+temp(orary)?\s+table", re.IGNORECASE)


async def prepare_all(database: Database, rooms: Sequence[Statements] | None = None) -> int:
    """The number of statements that fit the schema; the first that does not is named in a Broken error."""
    rooms = sqlfiles.all_rooms() if rooms is None else rooms
    async with database.session() as session:
        for room in rooms:
            await _prepare(session, room)
    return sum(len(room) for room in rooms)


async def _prepare(session: Session, room: Statements) -> None:
    """A room's temporary tables are made first, in a transaction that is undone, so that what uses them can be read."""
    statements = sorted(room, key=lambda statement: not _TEMPORARY.match(statement))
    async with session.undone() as connection:
        for statement in statements:
            try:
                if _TEMPORARY.match(statement):
                    await connection.execute(statement.text)
                else:
                    await connection.prepare(statement.text)
            except DRIVER_ERRORS as error:
                ours = translated(error, statement.name)
                raise (_broken(statement, error) if isinstance(ours, PostgresError) else ours) from error


def _broken(statement: Sql, error: Exception) -> Broken:
    return Broken(
        f"The statement {statement.name} of {statement.room} does not fit the schema: {error}. "
        "Run `handbill migrate`, or the release that made this schema.",
        code="STATEMENT_BROKEN",
    )
