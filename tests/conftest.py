"""Fixtures for every level. Each test works in its own tenant and with its own names, so nothing is ever cleaned."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.kit import run
from tests.kit.engines import Engines
from tests.kit.layer_times import LayerTimes
from tests.kit.processes import ALIASED, free_port

if TYPE_CHECKING:
    from handbill.infra.clickhouse import ClickHouse
    from handbill.infra.embedded.process import Engine
    from handbill.infra.postgres import Database
    from handbill.infra.redis import Redis

# ci, the default: the same examples every time, so that a red gate is red again at the desk, and a green one stays
# green. dev: new ones, for whoever looks for trouble. soak: many new ones.
# A machine that others load as well makes strategies slow without any fault of theirs.
_SLOW = (hypothesis.HealthCheck.too_slow,)
hypothesis.settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=40, database=None, suppress_health_check=_SLOW
)
hypothesis.settings.register_profile("dev", deadline=None, max_examples=40, suppress_health_check=_SLOW)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=2_000, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
for name in ALIASED:  # what the machine has set for other programs is no setting of ours here
    os.environ.pop(name, None)


LAYERS = LayerTimes()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    LAYERS.add(report.nodeid, report.duration)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in LAYERS.lines(config.getoption("numprocesses", None) or 1):
        terminalreporter.write_line(line)


def pytest_configure() -> None:
    run.begin()


def pytest_unconfigure() -> None:
    run.end()


@pytest.fixture(scope="session")
def engines(worker_id: str) -> Engines:
    """Real engines, started once per run when first asked for; a database of each for this worker."""
    return Engines("w0" if worker_id == "master" else worker_id)


@pytest.fixture
async def database(engines: Engines) -> AsyncIterator[Database]:
    """The PostgreSQL adapter on this worker's migrated database."""
    from handbill.infra.postgres import Database, derive
    from tests.kit.hot import UNHURRIED

    adapter = Database(
        derive(engines.postgres_url),
        app_size=4,
        worker_size=4,
        direct_size=2,
        acquire_timeout_ms=30_000,
        hot=UNHURRIED,
    )
    await adapter.start()
    try:
        yield adapter
    finally:
        await adapter.stop()


@pytest.fixture
async def redis(engines: Engines) -> AsyncIterator[Redis]:
    """The Redis adapter on this worker's own server."""
    from handbill.infra.redis import Redis

    adapter = Redis(engines.redis_url, timeout=30)  # a slow machine is no outage; tests of outages build their own
    await adapter.start()
    try:
        yield adapter
    finally:
        await adapter.stop()


@pytest.fixture
async def clickhouse(engines: Engines) -> AsyncIterator[ClickHouse]:
    """The ClickHouse adapter on this worker's own database. Starts the engine: ask for it only where needed."""
    from handbill.infra.clickhouse import ClickHouse

    adapter = ClickHouse(engines.clickhouse_url, engines.worker)
    await adapter.start()
    try:
        yield adapter
    finally:
        await adapter.stop()


@pytest.fixture
async def history(clickhouse: ClickHouse) -> ClickHouse:
    """ClickHouse with its tables."""
    from handbill.infra.migrations import migrate_clickhouse

    await migrate_clickhouse(clickhouse)
    return clickhouse


MakeTenant = Callable[..., Awaitable[int]]


@pytest.fixture
def make_tenant(engines: Engines) -> MakeTenant:
    """`await make_tenant(tier="enterprise")` gives the number of a new tenant that nobody else uses."""

    async def make(**columns: Any) -> int:
        import asyncpg

        unique = uuid.uuid4()
        now = datetime.now(UTC)
        values = {"public_id": unique, "slug": f"t-{unique.hex}", "name": f"Test {unique.hex[:8]}", **columns}
        values |= {"created_at": now, "updated_at": now}
        holes = ", ".join(f"${n}" for n in range(1, len(values) + 1))
        statement = f"insert into tenants.tenants ({', '.join(values)}) values ({holes}) returning tenant_id"
        connection = await asyncpg.connect(engines.postgres_url)
        try:
            number = await connection.fetchval(statement, *values.values())
            await connection.execute(
                "insert into tenants.settings (tenant_id, updated_at) values ($1, $2)", number, now
            )
            return int(number)
        finally:
            await connection.close()

    return make


@pytest.fixture
async def tenant(make_tenant: MakeTenant) -> int:
    """The number of a fresh tenant."""
    return await make_tenant()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """`unique("queue")` gives a name that no other test has."""
    return lambda stem: f"{stem}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory with a short path that other users may walk through: what an engine's home needs."""
    import shutil
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="hb-", dir=run.here()))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


OwnEngine = Callable[..., Awaitable["Engine"]]


async def _owned(start: Callable[..., Awaitable[Engine]], home: Path) -> AsyncIterator[OwnEngine]:
    """A factory whose engines are stopped at the test's end; a dead one is none of our business."""
    started: list[Engine] = []

    async def make(at: Path | None = None, **options: Any) -> Engine:
        options.setdefault("port", None)
        engine = await start(at or home / f"{len(started)}", **options)
        started.append(engine)
        return engine

    yield make
    for engine in started:
        with contextlib.suppress(ProcessLookupError):
            await engine.stop()


@pytest.fixture
async def own_postgres(short_tmp: Path) -> AsyncIterator[OwnEngine]:
    """`await own_postgres()` starts a PostgreSQL that the test may kill. Pass the same `at=` to start it again."""
    from handbill.infra.embedded.postgres import start_postgres

    async for make in _owned(start_postgres, short_tmp / "pg"):
        yield make


@pytest.fixture
async def own_redis(short_tmp: Path) -> AsyncIterator[OwnEngine]:
    """`await own_redis()` starts a Redis that the test may kill."""
    from handbill.infra.embedded.redis import start_redis

    async for make in _owned(start_redis, short_tmp / "redis"):
        yield make


@pytest.fixture
async def own_clickhouse(short_tmp: Path) -> AsyncIterator[OwnEngine]:
    """`await own_clickhouse()` starts a ClickHouse that the test may kill. Dear: 300 MB and seconds."""
    from handbill.infra.embedded.clickhouse import start_clickhouse

    async for make in _owned(start_clickhouse, short_tmp / "ch"):
        yield make


@pytest.fixture
def handbill_env(engines: Engines, short_tmp: Path) -> dict[str, str]:
    """Settings for a real process on this worker's PostgreSQL and Redis. Add ClickHouse where it is needed."""
    from tests.kit.hot import UNHURRIED_SETTINGS

    return {
        "HANDBILL_HOME": str(short_tmp / "home"),
        "HANDBILL_POSTGRES__URL": engines.postgres_url,
        "HANDBILL_REDIS__URL": engines.redis_url,
        "HANDBILL_REDIS__TIMEOUT_MS": "30000",  # a slow machine is no outage
        **UNHURRIED_SETTINGS,
        "HANDBILL_API__PORT": str(free_port()),
        "HANDBILL_API__METRICS_PORT": "0",
        "HANDBILL_WORKER__PORT": "0",
        "HANDBILL_WORKER__METRICS_PORT": "0",
        "HANDBILL_MESSAGING__GRAPH_URL": "http://127.0.0.1:9",  # nobody there: no test calls a foreign server
        "HANDBILL_ADSTATS__META_URL": "http://127.0.0.1:9",
    }
