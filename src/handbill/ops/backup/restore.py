"""Bringing a backup back: checked first, refused on a target that is not empty, compared by hash at the end."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from handbill.infra import migrations
from handbill.infra.embedded.home import write_private
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.redis import Redis
from handbill.kit.errors import Broken, Conflict
from handbill.ops import demo
from handbill.ops.backup import clickhouse, manifest, redis, tools
from handbill.ops.backup.manifest import Manifest
from handbill.ops.state import current
from handbill.settings import Settings
from handbill.wiring import schema, secrets

ROLES = """
do $$ begin
    if not exists (select from pg_roles where rolname = 'handbill_app') then
        create role handbill_app login nosuperuser nobypassrls nocreatedb nocreaterole;
    end if;
    if not exists (select from pg_roles where rolname = 'handbill_worker') then
        create role handbill_worker login nosuperuser bypassrls nocreatedb nocreaterole;
    end if;
end $$;
"""
SCHEMAS = """
select nspname from pg_namespace
where nspname !~ '^pg_' and nspname <> 'information_schema'
  and (nspname <> 'public' or exists (select from pg_class where relnamespace = pg_namespace.oid));
"""

SEND_AGAIN = """
update people.property_backfill
set after_tenant = 0, after_person = '00000000-0000-0000-0000-000000000000', finished_at = null;
"""

CURSORS = "select lane || ' ' || cursor from events.lanes;"


@contextmanager
def unpacked(source: Path) -> Iterator[Path]:
    """The backup as a directory; a tar is unpacked beside it for the time of the restore."""
    if source.is_dir():
        yield source
        return
    place = Path(tempfile.mkdtemp(prefix="hb-restore-"))
    try:
        with tarfile.open(source) as tar:
            unpack(tar, place)
        yield place
    except FileNotFoundError:
        raise Broken(f"There is no backup at {source}. Nothing was changed.", code="BACKUP_BROKEN") from None
    except tarfile.TarError as error:
        raise Broken(f"{source} is no backup: {error}. Nothing was changed.", code="BACKUP_BROKEN") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def unpack(tar: tarfile.TarFile, place: Path) -> None:
    """Plain files and directories below `place`, nothing else. The library's own filter is younger than Python 3.11."""
    inside = place.resolve()
    for member in tar.getmembers():
        plain = member.isfile() or member.isdir()
        if not plain or not (inside / member.name).resolve().is_relative_to(inside):
            raise tarfile.ExtractError(f"{member.name} does not belong in it")
    guarded: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    tar.extractall(place, **guarded)  # noqa: S202 - every member was looked at above


def checked(folder: Path) -> Manifest:
    """The manifest of a whole backup that this code can read; nothing is touched before this."""
    found = manifest.read(folder)
    known = {migration.label for migration in migrations.shipped()}
    newer = [name for name in found.migrations if name not in known]
    if newer:
        raise Broken(
            f"The backup's schema is newer than this code: it has {', '.join(newer)}. Nothing was changed. "
            f"Restore it with Handbill {found.handbill}.",
            code="SCHEMA_NEWER",
        )
    return found


async def restore(settings: Settings, folder: Path, found: Manifest, *, force: bool) -> None:
    """Put everything back into engines that nobody uses meanwhile."""
    owner = settings.postgres.url
    if owner is None:
        raise Broken("A restore needs the owner's address. Set HANDBILL_POSTGRES__URL.", code="NO_ADDRESS")
    store = Redis(settings.redis.url or "", timeout=redis.PATIENCE)
    await store.start()
    try:
        await _make_room(settings, owner, store, force=force)
        await _postgres(owner, folder / "postgres.dump")
        await redis.copy_in(store, folder / "redis.frames")
        if settings.clickhouse.url is not None and found.clickhouse_tables:
            await clickhouse.copy_in(settings.clickhouse.url, folder / "clickhouse", found.clickhouse_tables)
        applied = await schema.migrate_postgres(settings)
        await tools.sql(owner, SEND_AGAIN)
        await _adopt(owner, store)
    finally:
        await store.stop()
    _secrets(settings, folder / "secrets")
    if settings.clickhouse.url is not None:
        await schema.migrate_clickhouse(settings)
    now = await current(settings)
    if not applied and now != found.state:
        differing = [name for name, digest in found.state.tables.items() if now.tables.get(name) != digest]
        raise Broken(
            f"After the restore the state differs from the backup's in {', '.join(differing) or 'the list of tables'}. "
            "The backup is untouched. Do not use this target; try again on an empty one.",
            code="RESTORE_DIFFERS",
        )


async def _make_room(settings: Settings, owner: str, store: Redis, *, force: bool) -> None:
    """Refuse what is not empty; with `force`, empty it."""
    schemas = (await tools.sql(owner, SCHEMAS)).split()
    full = [
        name
        for name, holds in (
            ("PostgreSQL", bool(schemas)),
            ("Redis", bool(await store.call("DBSIZE"))),
            (
                "ClickHouse",
                settings.clickhouse.url is not None and not await clickhouse.is_empty(settings.clickhouse.url),
            ),
        )
        if holds
    ]
    if full and not force:
        raise Conflict(
            f"The target is not empty: {', '.join(full)}. Nothing was changed. "
            "Name an empty one, or say --force to replace what is there.",
            code="TARGET_NOT_EMPTY",
        )
    drops = "".join(f'drop schema "{name}" cascade;\n' for name in schemas)
    if "public" in schemas:
        drops += "create schema public; grant usage on schema public to public;\n"
    if drops:
        await tools.sql(owner, drops)
    await store.call("FLUSHDB")
    if settings.clickhouse.url is not None:
        await clickhouse.drop_all(settings.clickhouse.url)


async def _postgres(owner: str, dump: Path) -> None:
    """All or nothing. The roles belong to the cluster and not to the dump: they must be there before the grants."""
    await tools.sql(owner, ROLES)
    words = ("--no-owner", "--exit-on-error", "--single-transaction")
    await tools.run("pg_restore", owner, *words, str(dump))


async def _adopt(owner: str, store: Redis) -> None:
    """PostgreSQL was copied after Redis: a lane's cursor may stand behind the last entry of the copied journal."""
    journal = StreamsJournal(store)
    for line in (await tools.sql(owner, CURSORS)).splitlines():
        await journal.adopt(*line.split())


def _secrets(settings: Settings, folder: Path) -> None:
    home = Path(settings.home)
    for path in (secrets.seal_key_file(settings), demo.file_of(home)):
        kept = folder / path.name
        if kept.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(path, kept.read_text())
