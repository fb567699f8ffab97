"""The GeoIP file: read, fetched, swapped, and never trusted blindly."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from handbill.infra.geo import Countries, Unreadable, unpacked
from handbill.kit.errors import Invalid
from tests.kit.mmdb import mmdb
from tests.kit.sockets import listening, redirect
from tests.kit.waiting import eventually, soon

DUTCH = mmdb({"10.0.0.0/8": "NL", "192.0.2.0/24": "DE"})
FRENCH = mmdb({"10.0.0.0/8": "FR"})


class Source:
    """Where the file is fetched from: answers what it is told, and counts."""

    def __init__(self) -> None:
        self.answers: list[bytes | int] = []
        self.asked = 0
        self.url = ""

    async def serve(self, _: web.Request) -> web.Response:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return web.Response(status=answer) if isinstance(answer, int) else web.Response(body=answer)


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    made = Source()
    app = web.Application()
    app.router.add_get("/country.mmdb", made.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/country.mmdb"
    yield made
    await runner.cleanup()


async def test_without_a_file_nobody_knows() -> None:
    countries = Countries()
    await countries.start()
    assert countries.of("10.1.2.3") is None
    await countries.stop()


async def test_an_operators_own_file(tmp_path: Path) -> None:
    path = tmp_path / "own.mmdb"
    path.write_bytes(DUTCH)
    countries = Countries(path)
    await countries.start()
    found = [countries.of(address) for address in ("10.1.2.3", "192.0.2.7", "8.8.8.8", "::1", "nonsense")]
    assert found == ["nl", "de", None, None, None]
    path.write_bytes(FRENCH)
    os.utime(path, (2, 2))
    assert countries.load()
    assert countries.of("10.1.2.3") == "fr", "a new file takes the old one's place, memory included"
    path.write_bytes(b"half of a file")
    os.utime(path, (3, 3))
    assert not countries.load()
    assert countries.of("10.1.2.3") == "fr", "a bad one changes nothing"
    await countries.stop()


async def test_fetching_is_tried_three_times_and_kept_for_a_month(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "geo" / "country.mmdb"
    countries = Countries(path, url=source.url, insecure=True, wait_s=0)
    source.answers = [503, b"no database", gzip.compress(DUTCH)]
    assert await countries.refresh()
    assert source.asked == 3
    assert countries.load()
    assert countries.of("10.1.2.3") == "nl"
    assert await countries.refresh()
    assert source.asked == 3, "a fresh file is not fetched again"
    old = path.stat().st_mtime - 31 * 86_400
    os.utime(path, (old, old))
    source.answers, source.asked = [500], 0
    assert not await countries.refresh()
    assert source.asked == 3
    assert countries.of("10.1.2.3") == "nl", "the stale file stands"
    assert list(path.parent.iterdir()) == [path], "no draft is left behind"
    await countries.stop()


async def test_a_redirect_is_followed(source: Source, tmp_path: Path) -> None:
    source.answers = [DUTCH]
    async with listening(redirect(source.url)) as first:
        countries = Countries(tmp_path / "geo.mmdb", url=f"http://127.0.0.1:{first.port}/", insecure=True, wait_s=0)
        assert await countries.refresh()
        await countries.stop()
    assert source.asked == 1


def test_a_mirror_inside_needs_a_setting() -> None:
    for url in ("http://example.com/country.mmdb", "https://10.0.0.8/country.mmdb"):
        with pytest.raises(Invalid) as refused:
            Countries(Path("geo.mmdb"), url=url)
        assert refused.value.code == "OUTGOING_REFUSED"
        Countries(Path("geo.mmdb"), url=url, insecure=True)


def test_archives_are_opened() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        about = tarfile.TarInfo("GeoLite2-Country/COPYRIGHT.txt")
        archive.addfile(about, io.BytesIO())
        member = tarfile.TarInfo("GeoLite2-Country/GeoLite2-Country.mmdb")
        member.size = len(DUTCH)
        archive.addfile(member, io.BytesIO(DUTCH))
    assert unpacked(packed.getvalue()) == DUTCH
    assert unpacked(gzip.compress(DUTCH)) == DUTCH
    assert unpacked(DUTCH) == DUTCH
    with pytest.raises(Unreadable):
        unpacked(gzip.compress(DUTCH)[:40])
    with pytest.raises(Unreadable):
        unpacked(gzip.compress(DUTCH)[:20] + b"\xff" * 20)
    with pytest.raises(Unreadable):
        unpacked(gzip.compress(DUTCH) + gzip.compress(b"") * 100_000)


DAMAGED = {
    "cut": gzip.compress(DUTCH)[:40],
    "overwritten": gzip.compress(DUTCH)[:20] + b"\xff" * 20,
    "a wrong checksum": gzip.compress(DUTCH)[:-8] + bytes(8),
    "no database inside": gzip.compress(b"no database"),
}


@pytest.mark.parametrize("damage", sorted(DAMAGED))
async def test_a_damaged_file_is_tried_again_and_the_good_one_stands(
    source: Source, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "country.mmdb"
    path.write_bytes(DUTCH)
    old = path.stat().st_mtime - 31 * 86_400
    os.utime(path, (old, old))
    countries = Countries(path, url=source.url, insecure=True, wait_s=0)
    source.answers = [DAMAGED[damage]]
    await countries.start()
    task = countries._task
    assert task is not None
    await soon(task.ready.wait())
    assert source.asked == 3
    assert task.health.errors == 0, "the care for the file goes on"
    assert countries.of("10.1.2.3") == "nl"
    assert list(tmp_path.iterdir()) == [path], "no draft is left behind"
    await countries.stop()


async def test_a_file_that_cannot_be_looked_at_does_not_end_the_care_for_it(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "country.mmdb"
    countries = Countries(path, url=source.url, insecure=True, wait_s=0)
    source.answers = [DUTCH]
    refusals = [PermissionError(13, "Permission denied", str(path))]
    real = countries._stale

    def stale(wanted: Path) -> bool:
        if refusals:
            raise refusals.pop()
        return real(wanted)

    monkeypatch.setattr(countries, "_stale", stale)
    await countries.start()
    await eventually(lambda: countries.of("10.1.2.3") == "nl", what="the file is fetched and read")
    assert not refusals
    await countries.stop()


async def test_a_look_up_during_an_exchange_remembers_nothing_wrong(tmp_path: Path) -> None:
    """The new reader takes the old one's place on the event loop, where no look-up is under way."""
    path = tmp_path / "own.mmdb"
    path.write_bytes(DUTCH)
    countries = Countries(path)
    await countries.start()
    here, seen = threading.get_ident(), []
    real = countries._use

    def use(opened: Any) -> bool:
        seen.append(threading.get_ident())
        return real(opened)

    countries._use = use  # type: ignore[method-assign]
    assert countries.of("10.1.2.3") == "nl"
    path.write_bytes(FRENCH)
    os.utime(path, (2, 2))
    await countries._reload()
    assert set(seen) == {here}  # the background task may have seen the new file, too
    assert countries.of("10.1.2.3") == "fr"
    await countries.stop()
