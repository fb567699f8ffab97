"""Work on a whole table in short statements: each reads a bounded number of rows and returns where the next one begins.

A statement that the engine stops at its time limit is repeated from its place with half as many rows, so that work of
any size ends under any limit that one row fits in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from handbill.infra.postgres.database import Database
from handbill.infra.postgres.errors import PostgresStopped
from handbill.infra.postgres.tx import Tx
from handbill.infra.sqlfiles import Sql

Place: TypeAlias = tuple[Any, ...]
"""The key of the last row that was read."""
Portion: TypeAlias = Callable[[Place, int], Awaitable[tuple[int, Place | None]]]
"""Given a place and the most rows to read behind it: how many rows were changed, and the next place (None: the end)."""
ROWS = 1_000
"""Rows that one statement reads, unless its caller knows better."""


async def work(portion: Portion, start: Place, limit: int = ROWS) -> int:
    """Run portions from `start` to the end; the number of rows changed. Raises PostgresStopped if even one row takes
    longer than the time limit."""
    changed = 0
    place: Place | None = start
    while place is not None:
        try:
            rows, place = await portion(place, limit)
        except PostgresStopped as error:
            if not error.is_time_limit or limit <= 1:
                raise
            limit //= 2
            continue
        changed += rows
    return changed


async def walk(database: Database, statement: Sql, about: tuple[Any, ...], start: Place, limit: int = ROWS) -> int:
    """Run a statement over a table in the order of its key, each portion in a transaction of its own.

    The statement takes `about`, then a place, then the most rows to read. Its one row is the number of rows changed and
    the next place; no row is the end.
    """

    async def portion(place: Place, most: int) -> tuple[int, Place | None]:
        async with database.worker() as tx:
            return await _step(tx, statement, about, place, most)

    return await work(portion, start, limit)


async def walk_within(tx: Tx, statement: Sql, about: tuple[Any, ...], start: Place, limit: int = ROWS) -> int:
    """The same inside a transaction, for work that others must not see half done. A time limit ends the transaction."""
    changed = 0
    place: Place | None = start
    while place is not None:
        rows, place = await _step(tx, statement, about, place, limit)
        changed += rows
    return changed


async def repeat(database: Database, statement: Sql, *about: Any, limit: int = ROWS) -> int:
    """Run a statement that changes at most so many rows (its last argument) until it changes fewer."""

    async def portion(place: Place, most: int) -> tuple[int, Place | None]:
        async with database.worker() as tx:
            rows = await tx.execute(statement, *about, most)
        return rows, place if rows >= most else None

    return await work(portion, (), limit)


async def _step(
    tx: Tx, statement: Sql, about: tuple[Any, ...], place: Place, limit: int
) -> tuple[int, Place | None]:  # fmt: skip
    row = await tx.fetchrow(statement, *about, *place, limit)
    return (0, None) if row is None else (row[0], tuple(row)[1:])
