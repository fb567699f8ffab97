"""A busy installation is backed up, destroyed and brought back: the same state, byte for byte where it counts."""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from handbill.events.model import CapturedEvent
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.redis import Redis
from handbill.kit.errors import Broken
from handbill.ops.backup import manifest
from handbill.ops.backup.manifest import Manifest
from handbill.ops.backup.restore import checked, unpacked
from handbill.ops.state import StateHash
from handbill.settings import load
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.house import House, build
from tests.e2e._up import ready, settings_of
from tests.kit.processes import handbill, process
from tests.kit.waiting import eventually

ROWS = 5_000


@asynccontextmanager
async def traffic(house: House) -> AsyncIterator[list[int]]:
    """Tenants, keys and queue entries written without a pause while the block runs; the count of rounds so far."""
    rounds = [0]

    async def write() -> None:
        while True:
            number = rounds[0]
            tenant = await house.tenants.create_tenant(
                NewTenant(name=f"T{number}", slug=f"busy-{number}"), actor="test"
            )
            await house.tenants.create_key(tenant.tenant_id, NewKey(kind="write", name="k"), actor="test")
            await house.redis.many([("RPUSH", "bull:busy:wait", number), ("HSET", f"bull:busy:{number}", "data", "{}")])
            rounds[0] += 1
            await asyncio.sleep(0.005)  # sleeps: a paced writer, so that the backup gets its turn too

    task = asyncio.create_task(write())
    try:
        yield rounds
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def fill(house: House) -> None:
    """Something of every kind: a key that expires late, one that rebuilds itself, and rows in ClickHouse."""
    await house.redis.many([("SET", "bull:late", "x", "EX", 100_000), ("SET", "hb:c:1:2", "rebuilt")])
    await house.clickhouse.command(
        "create table facts (id UInt64, words Array(String), note Nullable(String)) engine = MergeTree order by id"
        " settings non_replicated_deduplication_window = 100"
    )
    rows = [(n, [f"tab\t{n}", "line\nbreak"], None if n % 2 else "ü") for n in range(ROWS)]
    await house.clickhouse.insert("facts", ["id", "words", "note"], rows)


async def facts_of(store: ClickHouse) -> Any:
    return await store.query("select count(), sum(cityHash64(id, words, note)) from facts")


async def found_after(house: House) -> None:
    """What the restored engines hold."""
    redis: Redis = house.redis
    waiting = [int(entry) for entry in await redis.call("LRANGE", "bull:busy:wait", 0, -1)]
    assert waiting == list(range(len(waiting))), "one moment: no gap"
    there = await redis.many([("EXISTS", f"bull:busy:{number}") for number in waiting])
    assert sum(there) >= len(waiting) - 1, "at most the last entry was between its two writes"
    assert 0 < await redis.call("TTL", "bull:late") <= 100_000
    assert await redis.call("EXISTS", "hb:c:1:2") == 0, "what rebuilds itself is left behind"


@asynccontextmanager
async def house_of(home: Path) -> AsyncIterator[House]:
    house = build(load({"HANDBILL_HOME": str(home), "HANDBILL_REDIS__TIMEOUT_MS": "30000"}))
    await house.start("tool")
    try:
        yield house
    finally:
        await house.stop()


@pytest.mark.timeout(600)
async def test_backup_of_a_busy_stack_and_restore(short_tmp: Path) -> None:
    home, saved = short_tmp / "home", short_tmp / "saved.tar"
    env = settings_of(home)
    async with process("up", "--json", "--json-logs", env=env) as up:
        demo = (await ready(up))["demo"]
        async with house_of(home) as house:
            await fill(house)
            now = house.clock.now_ms()
            await house.events.accept([CapturedEvent(1, "b-1", now, now, "see", "zoe", "own", set=b'{"plan":"pro"}')])
            await eventually(lambda: _has_plan(house), what="ClickHouse knows what zoe is like", timeout=60)
            before = await facts_of(house.clickhouse)
            async with traffic(house) as rounds:
                await eventually(lambda: rounds[0] >= 5)
                code, said = await handbill("backup", str(saved), "--json", env={"HANDBILL_HOME": str(home)})
                assert code == 0, said
                done = json.loads(said)
                first = rounds[0]
                await eventually(lambda: rounds[0] > first, what="nobody was held up for good")
        code, said = await handbill("backup", str(saved), env={"HANDBILL_HOME": str(home)})
        assert code == 1, "an existing target is not overwritten"
        code, said = await handbill("restore", str(saved), env={"HANDBILL_HOME": str(home)})
        assert code == 2, "a home in use is not restored into"
        up.kill()
        await up.exit()
    await eventually(lambda: _removed(home))

    code, said = await handbill("restore", str(saved), "--json", env={"HANDBILL_HOME": str(home)})
    assert code == 0, said
    assert json.loads(said)["state"] == done["state"]
    code, said = await handbill("restore", str(saved), env={"HANDBILL_HOME": str(home)})
    assert code == 1, said
    assert "not empty: PostgreSQL, Redis, ClickHouse" in said
    code, said = await handbill("restore", "--force", str(saved), env={"HANDBILL_HOME": str(home)})
    assert code == 0, said
    code, said = await handbill("state-hash", "--json", env={"HANDBILL_HOME": str(home)})
    assert json.loads(said)["total"] == done["state"], said

    async with process("up", "--json", "--json-logs", env=env) as up:
        assert (await ready(up))["demo"] == demo
        async with house_of(home) as house:
            await found_after(house)
            assert await facts_of(house.clickhouse) == before
            await eventually(lambda: _has_plan(house), what="what people are like was sent again", timeout=60)
            tenants = await house.tenants.list_tenants()
            assert len(tenants) >= 6
        assert await up.stop() == 0


async def _has_plan(house: House) -> bool:
    rows = await house.clickhouse.query("select count() from person_properties where position(properties, 'plan') > 0")
    return bool(rows[0][0])


def _removed(home: Path) -> bool:
    """Engines that are just dying may still write: try until the home is gone."""
    shutil.rmtree(home, ignore_errors=True)
    return not home.exists()


# --- the manifest


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small backup's directory as a backup would leave it."""
    folder = tmp_path / "saved"
    (folder / "secrets").mkdir(parents=True)
    (folder / "postgres.dump").write_bytes(b"dump")
    (folder / "secrets" / "seal.key").write_text("key")
    write(folder)
    return folder


def write(folder: Path, **changes: Any) -> None:
    made = Manifest(
        handbill="0.1.0",
        created_at="2026-01-01T00:00:00+00:00",
        migrations=("0001_foundation",),
        state=StateHash("t", {}),
        clickhouse_tables=(),
        redis_keys=0,
        files=manifest.describe(folder),
    )
    body = msgspec.json.encode(msgspec.structs.replace(made, **changes))
    (folder / manifest.NAME).write_bytes(body)


def test_a_whole_backup_is_accepted_as_directory_and_tar(saved: Path, tmp_path: Path) -> None:
    assert checked(saved).handbill == "0.1.0"
    packed = tmp_path / "saved.tar"
    with tarfile.open(packed, "w") as tar:
        tar.add(saved, arcname=".")
    with unpacked(packed) as folder:
        assert checked(folder) == checked(saved)


@pytest.mark.parametrize(
    "harm", ["flip", "cut", "remove", "no manifest", "half manifest", "newer", "future", "outside"]
)
def test_a_damaged_or_newer_backup_is_refused_before_anything_is_touched(saved: Path, harm: str) -> None:
    dump = saved / "postgres.dump"
    match harm:
        case "flip":
            dump.write_bytes(b"dumq")
        case "cut":
            dump.write_bytes(b"du")
        case "remove":
            dump.unlink()
        case "no manifest":
            (saved / manifest.NAME).unlink()
        case "half manifest":
            (saved / manifest.NAME).write_bytes((saved / manifest.NAME).read_bytes()[:50])
        case "newer":
            write(saved, migrations=("0001_foundation", "9999_future"))
        case "future":
            write(saved, format=99)
        case "outside":
            write(saved, files=(manifest.File("../outside", 1, "x"),))
    with pytest.raises(Broken, match="Nothing was changed"):
        checked(saved)


def test_a_place_without_a_backup(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="no backup at"), unpacked(tmp_path / "nothing.tar"):
        pass
    outside = tmp_path / "outside.tar"
    with tarfile.open(outside, "w") as tar:
        tar.addfile(tarfile.TarInfo("../escaped"))
    with pytest.raises(Broken, match="is no backup"), unpacked(outside):
        pass
    assert not (tmp_path / "escaped").exists()
    (tmp_path / "text.tar").write_text("no tar")
    with pytest.raises(Broken, match="is no backup"), unpacked(tmp_path / "text.tar"):
        pass
