"""`handbill doctor`: looks at everything an installation stands on, and says what to do about what it finds."""

from __future__ import annotations

import platform
import shutil
import stat
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from handbill import __version__
from handbill.infra import migrations, sqlfiles
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.geo import FRESH_S, Countries
from handbill.infra.postgres import Database
from handbill.infra.postgres.urls import APP_ROLE, WORKER_ROLE
from handbill.infra.redis import Redis
from handbill.infra.safe_http import is_loopback_url
from handbill.kit.errors import Busy, HandbillError
from handbill.ops import packages
from handbill.settings import Settings
from handbill.wiring import addresses
from handbill.wiring.house import country_file, postgres_urls

S = sqlfiles.load("handbill.ops")

Status = Literal["ok", "warn", "fail"]

LITTLE_DISK = 5 * 1024**3
NO_DISK = 512 * 1024**2
APART, FAR_APART = 0.5, 5.0
OLDEST_POSTGRES = 150_000
OLDEST_REDIS = (6, 2)

ROLES_SQL = (
    "As an administrator: create role handbill_app login nosuperuser nobypassrls password '...'; "
    "create role handbill_worker login nosuperuser bypassrls password '...'; then set HANDBILL_POSTGRES__APP_URL, "
    "HANDBILL_POSTGRES__WORKER_URL and HANDBILL_POSTGRES__DIRECT_URL to them, and run `handbill migrate`."
)


class Finding(msgspec.Struct, frozen=True):
    status: Status
    subject: str
    detail: str
    advice: str = ""


async def examine(settings: Settings) -> list[Finding]:
    """Every finding, the good ones too. Nothing is changed, and an engine that is away fails only its own lines."""
    found = [versions(), *home(settings), disk(settings), public_url(settings), *countries(settings)]
    found += unused_packages()
    known = addresses.resolve(settings, need=())
    absent = addresses.missing(known)
    if absent:
        detail = f"no address for {', '.join(absent)}: no `handbill up` is running on this home"
        found.append(Finding("warn", "engines", detail, "Start `handbill up`, or set the URLs."))
    clocks: dict[str, float] = {}
    for subject, check in (("postgres", _postgres), ("redis", _redis), ("clickhouse", _clickhouse)):
        if subject not in absent:
            found += await _guarded(subject, check, known, clocks)
    return [*found, *apart(clocks)]


Check = Callable[[Settings, dict[str, float]], Awaitable[list[Finding]]]


async def _guarded(subject: str, check: Check, settings: Settings, clocks: dict[str, float]) -> list[Finding]:
    try:
        return await check(settings, clocks)
    except HandbillError as error:
        return [Finding("fail", subject, error.detail, _advice(subject, error))]


def _advice(subject: str, error: HandbillError) -> str:
    """The owner's own login is in the URL; the two plain roles may be missing altogether. Other errors say it all."""
    if error.code == "POSTGRES_LOGIN" and any(f'"{role}"' in error.detail for role in (APP_ROLE, WORKER_ROLE)):
        return ROLES_SQL
    if isinstance(error, Busy) or error.code.endswith("_LOGIN"):
        return f"Check HANDBILL_{subject.upper()}__URL and the engine."
    return ""


def apart(clocks: dict[str, float]) -> list[Finding]:
    """Cap windows use Redis's clock and rows PostgreSQL's: they must agree, and agree with ours."""
    if not clocks:
        return []
    ahead = {"host": 0.0, **clocks}
    skew = max(ahead.values()) - min(ahead.values())
    detail = ", ".join(f"{name} {value * 1000:+.0f} ms" for name, value in clocks.items()) + " against this host"
    if skew >= FAR_APART:
        return [
            Finding("fail", "clocks", detail, "Set the clocks by NTP: time windows and tokens are wrong until then.")
        ]
    if skew >= APART:
        return [Finding("warn", "clocks", detail, "Set the clocks by NTP.")]
    return [Finding("ok", "clocks", detail)]


def versions() -> Finding:
    return Finding("ok", "versions", f"handbill {__version__}, Python {platform.python_version()}, {platform.system()}")


def home(settings: Settings) -> list[Finding]:
    """The home and its secrets: ours, and nobody else's to read."""
    path = Path(settings.home).absolute()
    if not path.exists():
        return [Finding("ok", "home", f"{path} does not exist yet; `handbill up` makes it")]
    try:
        owner = path.stat().st_uid
        rooms = [room for room in (path / "secrets", path / "run") if room.exists()]
        loose = [str(room) for room in rooms if room.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]
        next(path.iterdir(), None)
    except OSError as error:
        advice = "Move it aside, or set HANDBILL_HOME." if path.is_file() else "Run as its owner, or set HANDBILL_HOME."
        return [Finding("fail", "home", f"{path}: {error.strerror}", advice)]
    if loose:
        return [Finding("fail", "home", f"others can read {', '.join(loose)}", f"chmod 700 {' '.join(loose)}")]
    return [Finding("ok", "home", f"{path}, owned by uid {owner}")]


def disk(settings: Settings) -> Finding:
    path = Path(settings.home).absolute()
    while not path.exists():
        path = path.parent
    free = shutil.disk_usage(path).free
    detail = f"{free / 1024**3:.1f} GB free at {path}"
    if free < NO_DISK:
        return Finding("fail", "disk", detail, "Free some space now: engines stop writing when it is full.")
    if free < LITTLE_DISK:
        return Finding("warn", "disk", detail, "Free some space, or move HANDBILL_HOME to a larger disk.")
    return Finding("ok", "disk", detail)


def public_url(settings: Settings) -> Finding:
    """What links begin with: an address that others can reach."""
    subject, url = "public url", settings.api.public_url
    if url is None:
        advice = "Set HANDBILL_API__PUBLIC_URL to the https address at which others reach this API."
        return Finding("warn", subject, "not set: nothing that needs a link works", advice)
    host = urlsplit(url).hostname or ""
    if is_loopback_url(url):
        return Finding("warn", subject, f"{url} is this machine only", "Fine for trying out only.")
    if not url.startswith("https://"):
        return Finding("fail", subject, f"{url} is not https", "Set HANDBILL_API__PUBLIC_URL to an https address.")
    if "." not in host and ":" not in host:
        return Finding("warn", subject, f"{host} is a name of your own network only", "Use a public name.")
    return Finding("ok", subject, url)


def unused_packages() -> list[Finding]:
    """Only where there are any: the pinned files of a clone leave them out, an installed wheel cannot."""
    found = packages.unused(distributions())
    if not found:
        return []
    names = sorted(each.metadata["Name"] for each in found)
    detail = f"{', '.join(names)}: {sum(map(packages.size, found)) / 1e6:.0f} MB that nothing here uses"
    advice = f"If nothing of yours does either: {sys.executable} -m pip uninstall {' '.join(names)}"
    return [Finding("ok", "packages", detail, advice)]


def countries(settings: Settings) -> list[Finding]:
    """The country database, where one is configured: without it no country is known, and nothing else says so."""
    path = country_file(settings)
    if path is None:
        return []
    is_fetched = settings.banners.geo_file is None
    if not path.exists():
        what = "has not been fetched: no event and no decision has a country" if is_fetched else "is not there"
        setting = "URL" if is_fetched else "FILE"
        advice = f"Check HANDBILL_BANNERS__GEO_{setting}" + (" and `geo-` lines in the log." if is_fetched else ".")
        return [Finding("warn", "countries", f"{path} {what}", advice)]
    if not Countries(path).load():
        return [Finding("warn", "countries", f"{path} is no country database", "Replace it by an MMDB file.")]
    age_s = time.time() - path.stat().st_mtime
    detail = f"{path}, {age_s / 86_400:.0f} days old"
    if is_fetched and age_s > 2 * FRESH_S:
        return [Finding("warn", "countries", detail, "It is not fetched any more: check HANDBILL_BANNERS__GEO_URL.")]
    return [Finding("ok", "countries", detail)]


async def _postgres(settings: Settings, clocks: dict[str, float]) -> list[Finding]:
    database = Database(postgres_urls(settings), app_size=1, worker_size=1, direct_size=1)
    await database.start()
    try:
        found = [] if settings.postgres.url is None else [await _schema(settings.postgres.url)]
        if found and found[0].status != "ok":
            return found
        async with database.lookup() as tx:
            before = time.time()
            facts = await tx.fetchrow(S.server_facts)
            clocks["postgres"] = _offset(facts["now"], before)  # type: ignore[index]
            roles = {row["role"]: row for row in await tx.fetch(S.role_facts)}
        await _direct(database)
    finally:
        await database.stop()
    return [*found, _postgres_version(facts), _roles(roles)]


async def _direct(database: Database) -> None:
    """The worker's role and the way past the pooler, both at once."""
    async with database.session() as session:
        await session.fetchrow(S.server_facts)


def _offset(there: datetime, before: float) -> float:
    """How far a clock is ahead of ours, at the middle of the round trip."""
    return there.timestamp() - (before + time.time()) / 2


async def _schema(owner_url: str) -> Finding:
    state = await migrations.status(owner_url)
    if state.unknown:
        detail = f"newer than this code: {', '.join(state.unknown)}"
        return Finding("fail", "schema", detail, "Run the newer release of Handbill.")
    if state.pending:
        return Finding("fail", "schema", f"not applied: {', '.join(state.pending)}", "Run `handbill migrate`.")
    return Finding("ok", "schema", f"{len(state.applied)} migrations applied, none missing")


def _postgres_version(facts: object) -> Finding:
    version, commit, fsync = facts["version"], facts["synchronous_commit"], facts["fsync"]  # type: ignore[index]
    detail = f"PostgreSQL {version // 10_000}.{version % 10_000}, synchronous_commit {commit}, fsync {fsync}"
    if version < OLDEST_POSTGRES:
        return Finding("fail", "postgres", detail, "Use PostgreSQL 15 or newer.")
    if commit == "off" or fsync == "off":
        return Finding("warn", "postgres", detail, "Accepted work can be lost in a crash: switch both on.")
    return Finding("ok", "postgres", detail)


def _roles(roles: dict[str, object]) -> Finding:
    """The wall between tenants holds only for a role that can neither bypass it nor is a superuser."""
    app, worker = roles.get("handbill_app"), roles.get("handbill_worker")
    if app is None or worker is None:
        return Finding("fail", "roles", "handbill_app or handbill_worker is missing", ROLES_SQL)
    if app["superuser"] or app["bypass"]:  # type: ignore[index]
        advice = "alter role handbill_app nosuperuser nobypassrls;"
        return Finding("fail", "roles", "handbill_app could see every tenant's rows", advice)
    if not worker["bypass"]:  # type: ignore[index]
        advice = "alter role handbill_worker bypassrls;"
        return Finding("fail", "roles", "handbill_worker cannot work across tenants", advice)
    return Finding("ok", "roles", "handbill_app stays behind the wall, handbill_worker works across it")


async def _redis(settings: Settings, clocks: dict[str, float]) -> list[Finding]:
    store = Redis(settings.redis.url or "", timeout=5.0)
    await store.start()
    try:
        info = _info(await store.call("INFO"))
        before = time.time()
        now = await store.time_ms()
        clocks["redis"] = now / 1000 - (before + time.time()) / 2
    finally:
        await store.stop()
    version = info.get("redis_version", "0.0")
    policy, aof = info.get("maxmemory_policy", "?"), info.get("aof_enabled", "?")
    detail = f"Redis {version}, {policy}, append-only file {'on' if aof == '1' else 'off'}"
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS:
        return [Finding("fail", "redis", detail, "Use Redis 6.2 or newer, or Valkey.")]
    if policy != "noeviction":
        return [Finding("fail", "redis", detail, "Accepted events could be thrown away: maxmemory-policy noeviction.")]
    if aof != "1":
        return [
            Finding("fail", "redis", detail, "Accepted events are lost in a crash: appendonly yes, appendfsync always.")
        ]
    return [Finding("ok", "redis", detail)]


def _info(raw: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in raw.decode().splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


async def _clickhouse(settings: Settings, clocks: dict[str, float]) -> list[Finding]:
    store = ClickHouse(settings.clickhouse.url or addresses.NOBODY)
    await store.start()
    try:
        before = time.time()
        rows = await store.query("select version(), toUnixTimestamp64Milli(now64(3))")
        clocks["clickhouse"] = int(rows[0][1]) / 1000 - (before + time.time()) / 2
    finally:
        await store.stop()
    return [Finding("ok", "clickhouse", f"ClickHouse {rows[0][0]}")]
