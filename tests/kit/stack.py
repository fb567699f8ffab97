"""What a bench or a soak runs against: embedded engines as shipped in a fresh home, and the real processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.hot import UNHURRIED_SETTINGS
from tests.kit.processes import Process, free_port, process


@dataclass
class Stack:
    """URLs of fresh engines, and the settings that lead a handbill process to them."""

    home: Path
    postgres_url: str = ""
    redis_url: str = ""
    clickhouse_url: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def env(self, **settings: str) -> dict[str, str]:
        urls = {
            "HANDBILL_HOME": str(self.home / "house"),
            "HANDBILL_POSTGRES__URL": self.postgres_url,
            "HANDBILL_REDIS__URL": self.redis_url,
            "HANDBILL_CLICKHOUSE__URL": self.clickhouse_url,
            **UNHURRIED_SETTINGS,
            "HANDBILL_API__METRICS_PORT": "0",
            "HANDBILL_WORKER__PORT": "0",
            "HANDBILL_WORKER__METRICS_PORT": "0",
        }
        return {k: v for k, v in {**urls, **self.extra, **settings}.items() if v}

    @contextlib.asynccontextmanager
    async def api(self, **settings: str) -> AsyncIterator[int]:
        """A running API process; gives its port."""
        port = free_port()
        async with process("api", env=self.env(HANDBILL_API__PORT=str(port), **settings)) as running:
            await running.log(event="api-ready")
            yield port

    @contextlib.asynccontextmanager
    async def worker(self, *args: str, **settings: str) -> AsyncIterator[Process]:
        async with process("worker", *args, env=self.env(**settings)) as running:
            await running.log(event="worker-ready")
            yield running


@contextlib.asynccontextmanager
async def stack(
    *, postgres: bool = True, redis: bool = True, clickhouse: bool = False, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Stack]:
    """Start what is asked for, migrated; stop and remove it at the end."""
    from handbill.infra import migrations
    from handbill.infra.embedded.process import Engine

    home = Path(tempfile.mkdtemp(prefix="hbb-", dir="/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None))
    home.chmod(0o755)
    engines: list[Engine] = []
    built = Stack(home, extra=dict(settings or {}))
    try:
        if postgres:
            from handbill.infra.embedded.postgres import start_postgres

            engines.append(await start_postgres(home / "engines"))
            built.postgres_url = engines[-1].url
            await migrations.migrate(built.postgres_url)
        if redis:
            from handbill.infra.embedded.redis import start_redis

            engines.append(await start_redis(home / "engines"))
            built.redis_url = engines[-1].url
        if clickhouse:
            from handbill.infra.embedded.clickhouse import start_clickhouse

            engines.append(await start_clickhouse(home / "engines"))
            built.clickhouse_url = engines[-1].url
        yield built
    finally:
        for engine in reversed(engines):
            await engine.stop()
        shutil.rmtree(home, ignore_errors=True)
