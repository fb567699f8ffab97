"""The hash of the state at one moment, over every table of the catalogue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Tx
from handbill.infra.state import state_hash, total
from handbill.settings import Settings
from handbill.wiring.house import postgres_urls
from handbill.wiring.state import TABLES

S = sqlfiles.load("handbill.ops")

PATIENCE_MS = 6 * 3600 * 1000
"""A hash or a dump of a large installation takes as long as it takes."""


class StateHash(msgspec.Struct, frozen=True):
    total: str
    tables: dict[str, str]


class Moment(msgspec.Struct, frozen=True):
    """One moment of the database: its hash, and the snapshot's name for as long as the block lasts."""

    snapshot: str
    state: StateHash


@asynccontextmanager
async def moment(settings: Settings) -> AsyncIterator[Moment]:
    """Holds a repeatable-read snapshot open, so that whatever reads it sees what was hashed."""
    database = Database(postgres_urls(settings), statement_timeout_ms=PATIENCE_MS)
    await database.start()
    try:
        async with database.session() as session:
            await session.execute(S.begin_snapshot)
            snapshot = str(await session.fetchval(S.export_snapshot))
            hashes = await state_hash(cast(Tx, session), TABLES)
            yield Moment(snapshot, StateHash(total(hashes), hashes))
            await session.execute(S.end_snapshot)
    finally:
        await database.stop()


async def current(settings: Settings) -> StateHash:
    async with moment(settings) as now:
        return now.state
