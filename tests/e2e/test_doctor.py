"""`handbill doctor` on good, bad and absent engines; `state-hash` notices every single cell."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec
import pytest

from handbill.infra.postgres import Tx
from handbill.infra.state import StateTable, state_hash
from handbill.ops import doctor
from handbill.ops.state import current
from handbill.settings import load
from handbill.wiring.state import TABLES
from tests.kit.engines import Engines
from tests.kit.processes import free_port, handbill


async def examined(env: dict[str, str]) -> tuple[int, dict[str, dict[str, str]]]:
    code, said = await handbill("doctor", "--json", env=env)
    return code, {line["subject"]: line for line in json.loads(said.splitlines()[-1])}


async def test_a_healthy_installation(handbill_env: dict[str, str], engines: Engines) -> None:
    code, found = await examined(handbill_env | {"HANDBILL_CLICKHOUSE__URL": engines.clickhouse_url})
    subjects = {
        "versions",
        "home",
        "disk",
        "public url",
        "schema",
        "postgres",
        "roles",
        "redis",
        "clickhouse",
        "clocks",
    }
    assert set(found) == subjects
    bad = {name: line for name, line in found.items() if line["status"] == "fail" and name != "disk"}
    assert not set(bad) - {"redis", "clocks"}, bad  # the tests' Redis and clock are not an operator's
    assert code in (0, 1)


async def test_engines_away_fail_their_own_lines_only(handbill_env: dict[str, str]) -> None:
    parts = urlsplit(handbill_env["HANDBILL_POSTGRES__URL"])
    wrong = urlunsplit(parts._replace(netloc=f"{parts.username}:wrong@{parts.hostname}:{parts.port}"))
    gone = f"http://127.0.0.1:{free_port()}/x"
    code, found = await examined(handbill_env | {"HANDBILL_POSTGRES__URL": wrong, "HANDBILL_CLICKHOUSE__URL": gone})
    assert code == 1
    assert found["postgres"]["status"] == "fail"
    assert "HANDBILL_POSTGRES__URL" in found["postgres"]["advice"]
    assert found["clickhouse"]["status"] == "fail"
    assert found["redis"]["detail"].startswith("Redis ")


async def test_plain_roles_that_cannot_log_in_get_the_sql_to_make_them(handbill_env: dict[str, str]) -> None:
    parts = urlsplit(handbill_env["HANDBILL_POSTGRES__URL"])
    wrong = urlunsplit(parts._replace(netloc=f"handbill_app:wrong@{parts.hostname}:{parts.port}"))
    code, found = await examined(handbill_env | {"HANDBILL_POSTGRES__APP_URL": wrong})
    assert code == 1
    assert "create role handbill_app" in found["postgres"]["advice"]
    assert "clickhouse" in found["engines"]["detail"], "no address for one engine does not hide the others"


async def test_an_installation_that_is_not_running(tmp_path: Path) -> None:
    code, found = await examined({"HANDBILL_HOME": str(tmp_path / "home")})
    assert code == 0
    assert found["engines"]["status"] == "warn"
    assert "handbill up" in found["engines"]["advice"]


def test_the_home_and_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load({"HANDBILL_HOME": str(tmp_path)})
    (tmp_path / "secrets").mkdir(mode=0o700)
    assert [one.status for one in doctor.home(settings)] == ["ok"]
    (tmp_path / "secrets").chmod(0o755)
    assert [one.status for one in doctor.home(settings)] == ["fail"]
    usage = type("Usage", (), {"free": 0})
    for free, status in ((1024, "fail"), (1024**3, "warn"), (1024**4, "ok")):
        usage.free = free  # type: ignore[attr-defined]
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        assert doctor.disk(settings).status == status


# --- the state's hash

PAIRS: dict[str, tuple[str, str]] = {
    "text": ("one", "two"),
    "smallint": ("1", "2"),
    "integer": ("1", "2"),
    "bigint": ("1", "2"),
    "numeric": ("1.5", "2.5"),
    "double precision": ("1.5", "2.5"),
    "real": ("1.5", "2.5"),
    "boolean": ("true", "false"),
    "jsonb": ('{"a": 1}', '{"a": 2}'),
    "bytea": (r"\x01", r"\x02"),
    "uuid": (str(uuid.UUID(int=1)), str(uuid.UUID(int=2))),
    "inet": ("10.0.0.1", "10.0.0.2"),
    "date": ("2026-01-01", "2026-01-02"),
    "timestamp with time zone": ("2026-01-01 00:00:00+00", "2026-01-01 00:00:00.001+00"),
    "interval": ("1 hour", "2 hours"),
    "time without time zone": ("08:00", "09:00"),
}
"""Two values of each type in use; a table with a new type of column adds its line here."""


def pair(kind: str) -> tuple[str, str]:
    kind = kind.partition("(")[0]
    if kind.endswith("[]"):
        inner, _ = PAIRS[kind.removesuffix("[]")]
        return "{}", f"{{{inner}}}"
    return PAIRS[kind]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
async def test_every_cell_that_is_not_volatile_changes_the_hash(table: StateTable, engines: Engines) -> None:
    """One row in a bare copy of the table (so that no rule refuses a value), each column changed alone; all undone."""
    owner = await asyncpg.connect(engines.postgres_url)
    transaction = owner.transaction()
    await transaction.start()
    try:
        await owner.execute(f"create schema cells; create table cells.bare as select * from {table.name} with no data")
        columns = await owner.fetch(
            "select attname::text, format_type(atttypid, atttypmod) from pg_attribute"
            " where attrelid = 'cells.bare'::regclass and attnum > 0"
        )
        firsts = ", ".join(f"'{pair(kind)[0]}'" for _, kind in columns)
        await owner.execute(f"insert into cells.bare values ({firsts})")
        bare = msgspec.structs.replace(table, name="cells.bare")
        before = await state_hash(Tx(owner, None), [bare])
        for column, kind in columns:
            for value, same in ((pair(kind)[1], column in table.volatile), (pair(kind)[0], True)):
                await owner.execute(f"update cells.bare set {column} = '{value}'")
                assert (await state_hash(Tx(owner, None), [bare]) == before) is same, f"{table.name}.{column}"
        await owner.execute("insert into cells.bare select * from cells.bare")
        assert await state_hash(Tx(owner, None), [bare]) != before, "a row more"
    finally:
        await transaction.rollback()
        await owner.close()


async def test_state_hash_prints_what_the_house_holds(handbill_env: dict[str, str], tenant: int) -> None:
    code, said = await handbill("state-hash", "--json", env=handbill_env | {"HANDBILL_CLICKHOUSE__URL": "http://x"})
    assert code == 0, said
    now = await current(load(handbill_env))
    assert json.loads(said) == {"total": now.total, "tables": now.tables}
    assert set(now.tables) == {table.name for table in TABLES}
