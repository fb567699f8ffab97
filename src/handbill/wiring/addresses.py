"""Where the engines are: the settings' own URLs, else those that a running `handbill up` left in its home."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from handbill.infra.embedded import home
from handbill.kit.errors import Broken
from handbill.settings import Settings, replace

ENGINES = ("postgres", "redis", "clickhouse")

ROOT = 0
"""The user who may read every file anyway."""

NOBODY = "http://127.0.0.1:9/default"
"""Where nobody answers: without an address ClickHouse is away, which the house knows how to live with."""


class Addresses(msgspec.Struct, frozen=True):
    """The URLs of the embedded engines, as the supervisor wrote them. The file holds passwords: mode 0600."""

    pid: int
    postgres: str | None = None
    redis: str | None = None
    clickhouse: str | None = None


def file_of(settings: Settings) -> Path:
    return Path(settings.home) / "run" / "engines.json"


def write(settings: Settings, addresses: Addresses) -> None:
    """Whole or not at all: a reader never sees half a file."""
    path = file_of(settings)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(addresses))
    draft.replace(path)


def forget(settings: Settings) -> None:
    file_of(settings).unlink(missing_ok=True)


def running(settings: Settings) -> Addresses | None:
    """What a live `handbill up` on this home wrote; None when there is none or it is gone."""
    try:
        found = msgspec.json.decode(file_of(settings).read_bytes(), type=Addresses)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    except PermissionError as error:
        raise Broken(
            f"The home {settings.home} belongs to another user. Nothing was done. "
            "Run as that user, or set HANDBILL_HOME to a directory of your own.",
            code="HOME_NOT_OURS",
        ) from error
    return found if _is_supervised(settings, found.pid) else None


def _is_supervised(settings: Settings, pid: int) -> bool:
    """Whether this process is the supervisor: another one may have its number by now, so the home's lock decides."""
    lock = Path(settings.home) / "lock"
    return _alive(pid) and home.holder(lock) == str(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def missing(settings: Settings) -> list[str]:
    """The engines without a URL. The two plain roles' addresses are enough for PostgreSQL, except to migrate."""
    given = settings.postgres
    by_roles = given.app_url is not None and given.worker_url is not None and given.direct_url is not None
    return [name for name in ENGINES if getattr(settings, name).url is None and not (name == "postgres" and by_roles)]


def resolve_for_owner(settings: Settings) -> Settings:
    """The settings with every URL, for whoever owns the installation: the owner of its data directory decides.

    Raises Broken for anybody else, and where PostgreSQL or Redis has no address. ClickHouse may have none.
    """
    place = Path(settings.home)
    if place.exists() and os.geteuid() not in (place.stat().st_uid, ROOT):
        raise Broken(
            f"The data directory {settings.home} belongs to another user; its engines' addresses are not printed. "
            "Run as that user.",
            code="HOME_NOT_OURS",
        )
    return resolve(settings, need=("postgres", "redis"))


def resolve(settings: Settings, *, need: tuple[str, ...] = ENGINES) -> Settings:
    """The settings with every needed URL filled in, or Broken saying which variable to set."""
    lacking = missing(settings)
    if not lacking:
        return settings
    found = running(settings)
    values = {f"{name}.url": getattr(found, name, None) for name in lacking} if found else {}
    known = {path: url for path, url in values.items() if url}
    still = [name for name in lacking if f"{name}.url" not in known and name in need]
    if still:
        variables = " and ".join(f"HANDBILL_{name.upper()}__URL" for name in still)
        raise Broken(
            f"No address for {', '.join(still)}: `handbill up` is not running on {settings.home}. Nothing was done. "
            f"Start it, or set {variables}.",
            code="NO_ADDRESS",
        )
    return replace(settings, known)
