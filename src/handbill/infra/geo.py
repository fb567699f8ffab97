"""The country of a client's address, from a GeoIP file in MaxMind's format. There is none unless somebody sets one.

A file is read from where the operator put it, or fetched from an address into the home and fetched again when it is
thirty days old. Fetching is tried three times; when it fails the old file stands, however old. A new file takes the old
one's place in one step: a look-up never waits and never sees half of one.
"""

from __future__ import annotations

import asyncio
import io
import math
import os
import tarfile
from pathlib import Path
from typing import Any

import maxminddb

from handbill.infra.safe_http import HttpPolicy, RequestFailed, SafeHttpClient
from handbill.kit import task_health
from handbill.kit.bounds import ADDRESS_TEXT_MAX, COUNTRIES
from handbill.kit.caches import Memo
from handbill.kit.clock import Clock, SystemClock
from handbill.kit.errors import Busy, Invalid
from handbill.kit.inflate import Damaged, TooManyMembers, inflate, steps
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import logs, metrics

_log = logs.get("geo")

TRIES = 3
WAIT_S = 2.0
FRESH_S = 30 * 86_400.0
LOOK_S = 3_600.0
TIMEOUT_S = 120.0
LIMIT_S = TIMEOUT_S + 60.0
"""Of the background task: one fetch gives no sign of life before its end."""
MAX_REDIRECTS = 3
_LARGEST = 512 << 20


class Unreadable(Exception):
    """What was fetched is no GeoIP file."""


class Countries:
    """`path` alone: the operator's own file, read again when it changes. With `url`: our copy of what is served there.

    The URL must be https with a public host, unless `insecure` allows any URL; Invalid is raised for another one.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        url: str | None = None,
        insecure: bool = False,
        clock: Clock | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        self._http = SafeHttpClient(
            HttpPolicy(
                https_only=not insecure,
                public_only=not insecure,
                ports=None,
                max_bytes=_LARGEST,
                total_s=TIMEOUT_S,
                max_redirects=MAX_REDIRECTS,
            )
        )
        if url is not None:
            self._http.check(url)
        self._path = path
        self._url = url
        self._clock = clock or SystemClock()
        self._wait_s = wait_s
        self._reader: maxminddb.Reader | None = None
        self._loaded = 0
        self._task: BackgroundTask | None = None
        self._countries = Memo(self._look, COUNTRIES)

    async def start(self) -> None:
        """Read the file that is there, then look after it in the background."""
        if self._path is None or self._task is not None:
            return
        await self._reload()
        self._task = BackgroundTask(
            "geo", self._look_after, period_s=LOOK_S, health=TaskHealth("geo", limit_s=LIMIT_S, required=False)
        )
        await self._task.start()

    async def stop(self) -> None:
        """End it; no country is found from here on."""
        task, self._task = self._task, None
        if task is not None:
            await task.stop()
        await self._http.close()
        metrics.GEO_AGE_SECONDS.set_function(lambda: math.nan)
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            self._loaded = 0
            self._countries.clear()

    def of(self, address: str) -> str | None:
        """The country of an address in two small letters; None when nobody knows, or when it is no address."""
        return self._countries(address) if len(address) <= ADDRESS_TEXT_MAX else None

    def _look(self, address: str) -> str | None:
        if self._reader is None:
            return None
        try:
            found: Any = self._reader.get(address)
        except (ValueError, maxminddb.InvalidDatabaseError):  # no address, or one the file has no tree for
            return None
        place = found.get("country") or found.get("registered_country") if isinstance(found, dict) else None
        code = place.get("iso_code") if isinstance(place, dict) else None
        return code.lower() if isinstance(code, str) else None

    def load(self) -> bool:
        """Take the file as it lies there, if it is another one than ours. A bad file changes nothing."""
        return self._use(self._open())

    async def _reload(self) -> None:
        """The same beside the loop; but the readers are exchanged on it, where no look-up is under way."""
        self._use(await asyncio.to_thread(self._open))

    def _open(self) -> tuple[maxminddb.Reader, int] | None:
        """A reader of the file, with its time of change; None when it is ours already, absent or bad."""
        assert self._path is not None
        try:
            changed = self._path.stat().st_mtime_ns
            if changed == self._loaded:
                return None
            return maxminddb.open_database(str(self._path), maxminddb.MODE_MEMORY), changed
        except FileNotFoundError:
            return None
        except (OSError, ValueError, maxminddb.InvalidDatabaseError) as error:
            _log.error("geo-unreadable", path=str(self._path), reason=str(error), detail="the last good file stands")
            return None

    def _use(self, opened: tuple[maxminddb.Reader, int] | None) -> bool:
        if opened is None:
            return False
        reader, changed = opened
        old, self._reader, self._loaded = self._reader, reader, changed
        self._countries.clear()
        if old is not None:
            old.close()
        metrics.GEO_AGE_SECONDS.set_function(lambda: self._clock.now_ms() / 1000 - changed / 1e9)
        _log.info("geo-loaded", kind=reader.metadata().database_type, built=reader.metadata().build_epoch)
        return True

    async def refresh(self) -> bool:
        """Fetch the file if ours is old or missing. False: it could not be had, and what was there stands."""
        assert self._path is not None
        assert self._url is not None
        if not self._stale(self._path):
            return True
        for attempt in range(1, TRIES + 1):
            task_health.heartbeat()
            try:
                await self._fetch(self._url, self._path)
            except (Busy, Invalid, OSError, Unreadable) as error:
                metrics.GEO_FETCH.labels("failed").inc()
                reason = error.reason if isinstance(error, RequestFailed) else f"{type(error).__name__}: {error}"
                _log.warning("geo-fetch-failed", attempt=attempt, reason=reason)
                if attempt < TRIES:
                    await asyncio.sleep(self._wait_s * attempt)
            else:
                metrics.GEO_FETCH.labels("fetched").inc()
                return True
        return False

    def _stale(self, path: Path) -> bool:
        try:
            return self._clock.now_ms() / 1000 - path.stat().st_mtime > FRESH_S
        except FileNotFoundError:
            return True

    async def _fetch(self, url: str, path: Path) -> None:
        body = await self._http.get(url)
        await asyncio.to_thread(_keep_file, body, path)

    async def _look_after(self) -> None:
        if self._url is not None:
            await self.refresh()
        await self._reload()


def _keep_file(body: bytes, path: Path) -> None:
    """Unpacked, proved readable, and put in place whole."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        draft.write_bytes(unpacked(body))
        maxminddb.open_database(str(draft), maxminddb.MODE_MEMORY).close()
        draft.replace(path)
    except (maxminddb.InvalidDatabaseError, ValueError) as error:
        raise Unreadable(str(error)) from None
    finally:
        draft.unlink(missing_ok=True)


def unpacked(body: bytes) -> bytes:
    """The database itself out of what is offered: bare, gzipped, or in an archive."""
    if len(body) > _LARGEST:
        raise Unreadable("the file is too large")
    if body[:2] != b"\x1f\x8b":
        return body
    try:
        plain = _inflated(body)
        if plain[257:262] != b"ustar":
            return plain
        with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(".mmdb"):
                    inner = archive.extractfile(member)
                    assert inner is not None
                    return inner.read()
    except (Damaged, TooManyMembers, EOFError, OSError, tarfile.TarError) as error:
        raise Unreadable(f"it cannot be unpacked: {error}") from None
    raise Unreadable("there is no .mmdb in the archive")


def _inflated(body: bytes) -> bytes:
    blocks, size = [], 0
    for block in inflate(steps(body)):
        blocks.append(block)
        size += len(block)
        if size > _LARGEST:
            raise Unreadable("the file is too large")
    return b"".join(blocks)
