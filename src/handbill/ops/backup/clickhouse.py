"""ClickHouse in a backup: each table's definition and its rows, as lines, over ClickHouse's own HTTP face."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiohttp

from handbill.kit.errors import Broken, Busy

CHUNK = 16 * 1024 * 1024
"""Rows go back in bodies of about this size: no face takes them without limit."""
SENT_AGAIN = frozenset({"person_properties"})
"""Tables whose rows are copies of PostgreSQL's and are sent again after a restore. ClickHouse is copied after
PostgreSQL: a copy would have later versions than what is restored there, and hold against it."""
NO_LIMIT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600)


class Face:
    """One database of ClickHouse by HTTP."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        parts = urlsplit(url)
        self._http = http
        scheme = "https" if parts.scheme in ("https", "clickhouses") else "http"
        self._url = f"{scheme}://{parts.hostname}:{parts.port or (8443 if scheme == 'https' else 8123)}/"
        self.database = parts.path.strip("/") or "default"
        self._auth = {
            "X-ClickHouse-User": unquote(parts.username or "default"),
            "X-ClickHouse-Key": unquote(parts.password or ""),
        }

    @asynccontextmanager
    async def ask(self, query: str, body: bytes | None = None, **settings: str) -> AsyncIterator[aiohttp.StreamReader]:
        """Run one query; the reply's body as a stream, Broken with ClickHouse's own words, Busy when it is away."""
        params = {"database": self.database, "query": query, **settings}
        try:
            async with self._http.post(self._url, params=params, data=body, headers=self._auth) as reply:
                if reply.status != 200:
                    said = (await reply.text()).strip()[:500]
                    raise Broken(f"ClickHouse refused `{query[:60]}`: {said}", code="CLICKHOUSE_REFUSED")
                yield reply.content
        except aiohttp.ClientError as error:
            raise Busy(f"ClickHouse is away ({type(error).__name__}: {error}).", code="CLICKHOUSE_AWAY") from error

    async def text(self, query: str) -> str:
        async with self.ask(query) as content:
            return (await content.read()).decode()

    async def tables(self) -> list[str]:
        """Tables with rows of their own first, then views and dictionaries, which are made of them."""
        rows = await self.text(
            "select name from system.tables where database = currentDatabase() and not is_temporary"
            " order by engine not like '%MergeTree', name format TabSeparated"
        )
        return rows.split()

    async def has_rows(self, table: str) -> bool:
        where = f"database = currentDatabase() and name = '{table}' and engine like '%MergeTree'"
        return (await self.text(f"select count() from system.tables where {where}")).strip() != "0"  # noqa: S608 - from the catalogue


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Face]:
    async with aiohttp.ClientSession(timeout=NO_LIMIT) as http:
        yield Face(http, url)


async def copy_out(url: str, folder: Path) -> tuple[str, ...]:
    """Write `<table>.sql` and, for a table with rows of its own, `<table>.rows`; the tables in order of making."""
    folder.mkdir()
    async with opened(url) as face:
        tables = await face.tables()
        for table in tables:
            made = await face.text(f"show create table `{table}` format TSVRaw")
            (folder / f"{table}.sql").write_text(made.replace(f"{face.database}.{table}", table, 1))
            if table not in SENT_AGAIN and await face.has_rows(table):
                await _rows_out(face, table, folder / f"{table}.rows")
    return tuple(tables)


async def _rows_out(face: Face, table: str, target: Path) -> None:
    with target.open("wb") as file:
        async with face.ask(f"select * from `{table}` format TabSeparatedWithNames") as content:  # noqa: S608 - from the catalogue
            async for chunk in content.iter_chunked(1 << 20):
                file.write(chunk)


async def copy_in(url: str, folder: Path, tables: tuple[str, ...]) -> None:
    async with opened(url) as face:
        for table in tables:
            await face.text((folder / f"{table}.sql").read_text())
            rows = folder / f"{table}.rows"
            if rows.exists():
                await _rows_in(face, table, rows)


async def _rows_in(face: Face, table: str, source: Path) -> None:
    """A block that repeats another is dropped by a table that deduplicates; here every row is meant."""
    with source.open("rb") as file:
        names = ", ".join(f"`{name}`" for name in file.readline().decode().rstrip("\n").split("\t"))
        query = f"insert into `{table}` ({names}) format TabSeparated"
        while lines := file.readlines(CHUNK):
            async with face.ask(query, b"".join(lines), insert_deduplicate="0") as content:
                await content.read()


async def drop_all(url: str) -> None:
    async with opened(url) as face:
        for table in reversed(await face.tables()):
            await face.text(f"drop table if exists `{table}` sync")


async def is_empty(url: str) -> bool:
    """Whether no table has a row, the list of applied migrations aside."""
    async with opened(url) as face:
        for table in await face.tables():
            if table != "handbill_migrations" and await face.has_rows(table):
                found = await face.text(f"select count() from (select 1 from `{table}` limit 1)")  # noqa: S608 - as above
                if found.strip() != "0":
                    return False
    return True
