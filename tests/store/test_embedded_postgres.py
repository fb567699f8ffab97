"""The PostgreSQL that Handbill runs itself: what it keeps, and what it says when something is wrong."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import pytest

from handbill.infra.embedded.postgres import start_postgres
from handbill.kit.errors import Broken, Busy
from tests.kit.waiting import soon

if TYPE_CHECKING:
    from tests.conftest import OwnEngine


async def ask(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_kill_9_loses_nothing_and_a_stale_pid_is_no_obstacle(own_postgres: OwnEngine, short_tmp: Path) -> None:
    home = short_tmp / "home"
    engine = await own_postgres(at=home)
    assert await ask(engine.url, "show synchronous_commit") == "on"
    assert await ask(engine.url, "show fsync") == "on"
    await ask(engine.url, "create table t as select 7 as n")
    os.kill(engine.pid, signal.SIGKILL)
    assert await soon(engine.wait()) == -signal.SIGKILL

    # Left behind: a postmaster.pid. The worst case is that its number now belongs to somebody else, such as us.
    note = home / "postgres" / "data" / "postmaster.pid"
    _, rest = note.read_text().split("\n", 1)
    note.write_text(f"{os.getpid()}\n{rest}")
    again = await own_postgres(at=home)
    assert urlsplit(again.url).password == urlsplit(engine.url).password
    assert await ask(again.url, "select n from t") == 7


async def test_a_lost_password_is_replaced(own_postgres: OwnEngine, short_tmp: Path) -> None:
    home = short_tmp / "home"
    engine = await own_postgres(at=home, durable=False)
    await engine.stop()
    (home / "secrets" / "postgres").unlink()
    again = await own_postgres(at=home, durable=False)
    assert again.url != engine.url
    assert await ask(again.url, "select current_user") == "handbill"


async def test_faults_of_a_start_are_explained(own_postgres: OwnEngine, short_tmp: Path) -> None:
    home = short_tmp / "home"
    (home / "postgres" / "data.new.1").mkdir(parents=True)  # an initdb that was cut off
    home.chmod(0o711)
    engine = await own_postgres(at=home, durable=False)
    assert not list((home / "postgres").glob("data.new.*"))

    with pytest.raises(Broken, match="is taken") as caught:
        await start_postgres(short_tmp / "other", port=int(engine.url.rsplit(":", 1)[1].split("/")[0]), durable=False)
    assert caught.value.code == "PORT_TAKEN"
    await engine.stop()

    with pytest.raises(Busy, match="did not become ready") as late:
        await start_postgres(home, durable=False, timeout=-1.0)
    assert late.value.code == "ENGINE_NOT_READY"

    data = home / "postgres" / "data"
    control = data / "global" / "pg_control"
    good = control.read_bytes()
    control.write_bytes(bytes(len(good)))
    with pytest.raises(Broken, match="damaged") as damaged:
        await start_postgres(home, durable=False)
    assert damaged.value.code == "POSTGRES_CORRUPT"
    assert control.read_bytes() == bytes(len(good)), "nothing was changed"
    control.write_bytes(good)

    (data / "PG_VERSION").write_text("15\n")
    with pytest.raises(Broken, match="written by PostgreSQL 15") as older:
        await start_postgres(home, durable=False)
    assert older.value.code == "POSTGRES_VERSION"
    (data / "PG_VERSION").write_text("18\n")
    again = await own_postgres(at=home, durable=False)
    assert await ask(again.url, "select 1") == 1


async def test_as_root_a_home_that_the_plain_user_cannot_reach_is_refused(short_tmp: Path) -> None:
    if os.geteuid() != 0:
        return  # a plain user runs PostgreSQL as himself, and everything of his is reachable
    shut = short_tmp / "shut"
    shut.mkdir(mode=0o700)
    with pytest.raises(Broken, match="cannot pass through") as caught:
        await start_postgres(shut / "home")
    assert caught.value.code == "HOME_NOT_REACHABLE"


async def test_programs_out_of_reach_are_copied_into_the_home(
    own_postgres: OwnEngine, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        return  # only root hands over to another user
    home = short_tmp / "home"
    monkeypatch.setattr("handbill.infra.embedded.postgres.reachable", lambda *_: False)
    engine = await own_postgres(at=home, durable=False)
    assert await ask(engine.url, "select 1") == 1
    assert str(home / "engines") in os.readlink(f"/proc/{engine.pid}/exe")
