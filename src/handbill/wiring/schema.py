"""The schemas of both stores: brought up to this code, or checked before anything is served."""

from __future__ import annotations

from handbill.infra import migrations
from handbill.infra.clickhouse import ClickHouse
from handbill.kit.errors import Broken, HandbillError
from handbill.settings import Settings
from handbill.wiring import addresses


async def migrate_all(settings: Settings) -> dict[str, list[str]]:
    """Apply what is missing; the answer names the files applied, per engine."""
    known = addresses.resolve(settings)
    return {"postgres": await migrate_postgres(known), "clickhouse": await migrate_clickhouse(known)}


async def migrate_postgres(settings: Settings) -> list[str]:
    if settings.postgres.url is None:
        raise Broken(
            "Migrations need the owner's address. Nothing was changed. Set HANDBILL_POSTGRES__URL.", code="NO_ADDRESS"
        )
    return await migrations.migrate(settings.postgres.url)


async def migrate_clickhouse(settings: Settings) -> list[str]:
    store = ClickHouse(settings.clickhouse.url or addresses.NOBODY)
    await store.start()
    try:
        return await migrations.migrate_clickhouse(store)
    finally:
        await store.stop()


async def clickhouse_away(settings: Settings) -> str | None:
    """Why the given ClickHouse cannot be reached; None when it answers."""
    store = ClickHouse(settings.clickhouse.url or addresses.NOBODY)
    await store.start()
    try:
        await store.health()
    except HandbillError as error:
        return error.detail
    finally:
        await store.stop()
    return None


async def check(settings: Settings) -> None:
    """Broken unless PostgreSQL's schema is exactly this code's. Without the owner's address the statements must do."""
    if settings.postgres.url is None:
        return
    state = await migrations.status(settings.postgres.url)
    migrations.refuse_newer(state, "PostgreSQL")
    if state.pending:
        raise Broken(
            f"The PostgreSQL schema is older than this code: {', '.join(state.pending)} not applied. Nothing was "
            "started. Run `handbill migrate`.",
            code="SCHEMA_OLDER",
        )
