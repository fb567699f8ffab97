"""The oldest PostgreSQL we promise: every migration and every statement, where version 15 is installed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import asyncpg

from handbill.infra.migrations import migrate, shipped
from handbill.infra.postgres import Database, derive, prepare_all
from tests.kit.leash import die_with_parent
from tests.kit.optional import need
from tests.kit.waiting import eventually


async def test_migrations_and_statements_fit_the_oldest_server(short_tmp: Path) -> None:
    programs = Path(need("postgres15")).parent
    other: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}  # PostgreSQL refuses to run as root
    if other:
        shutil.chown(short_tmp, "nobody")
    password = short_tmp / "password"
    password.write_text("secret")
    login: list[str | Path] = ["-U", "handbill", "-A", "scram-sha-256", "--pwfile", password, "--no-sync"]
    subprocess.run([programs / "initdb", "-D", short_tmp / "data", *login], check=True, capture_output=True, **other)
    options: list[str | Path] = ["-k", short_tmp, "-c", "listen_addresses=", "-c", "fsync=off"]
    server = subprocess.Popen(
        [programs / "postgres", "-D", short_tmp / "data", *options],
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
        **other,
    )
    url = f"postgresql://handbill:secret@/postgres?host={short_tmp}"
    try:
        await eventually(lambda: _answers(url))
        assert await migrate(url) == [migration.label for migration in shipped()]
        database = Database(derive(url))
        await database.start()
        await database.health()
        assert await prepare_all(database) > 50
        await database.stop()
    finally:
        server.send_signal(signal.SIGINT)
        await asyncio.to_thread(server.wait, 60)


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url)
    except (OSError, asyncpg.CannotConnectNowError):
        return False
    await connection.close()
    return True
