"""The supervisor's small parts: units that are kept alive, warnings told once a minute, ports, addresses."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import socket
from pathlib import Path

import pytest
from rich.console import Console

from handbill.infra.embedded import home as homes
from handbill.infra.embedded.home import Home
from handbill.infra.geo import _keep_file
from handbill.kit.errors import Broken
from handbill.ops import doctor
from handbill.ops import unit as units
from handbill.ops.doctor import apart
from handbill.ops.teller import Teller
from handbill.ops.unit import FIRST_PAUSE, LONGEST_PAUSE, Unit, pause_after
from handbill.ops.up import check_ports, taken
from handbill.settings import load
from handbill.wiring import addresses, secrets
from handbill.wiring.addresses import Addresses
from handbill.wiring.house import country_file
from tests.kit.mmdb import mmdb
from tests.kit.waiting import eventually


class FakeProcess:
    """A process that ends when told to."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.over = asyncio.Event()
        self.stopped = False

    async def wait(self) -> int:
        await self.over.wait()
        return 1

    async def stop(self) -> None:
        self.stopped = True
        self.over.set()

    def kill(self) -> None:
        self.over.set()


def quiet() -> tuple[Teller, io.StringIO]:
    teller, text = Teller(as_json=False, monotonic=lambda: 0.0), io.StringIO()
    teller._console = Console(file=text, soft_wrap=True)
    return teller, text


async def test_a_dead_process_is_started_again_until_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(units, "LONGEST_PAUSE", 0.002)
    made: list[FakeProcess] = []
    failures = iter([False, False, True, True, False])

    async def start() -> FakeProcess:
        if next(failures):
            raise Broken("the port is taken")
        made.append(FakeProcess(len(made)))
        return made[-1]

    teller, text = quiet()
    unit = Unit("api", start, teller)
    await unit.start()
    for expected in (1, 2):
        made[-1].over.set()
        await eventually(lambda expected=expected: unit.restarts == expected)
    await unit.stop()
    assert [process.stopped for process in made] == [True, True, True]
    assert unit.pid is None
    said = text.getvalue()
    assert said.count("ended with code 1") == 1, "the same warning is told once a minute"
    assert said.count("the port is taken") == 1


async def test_a_restart_that_fails_for_whatever_reason_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(units, "LONGEST_PAUSE", 0.002)
    made: list[FakeProcess] = []
    failures: list[Exception] = [
        BlockingIOError(errno.EAGAIN, "no process"),
        OSError(errno.EMFILE, "no file"),
        MemoryError(),
        RuntimeError("anything"),
    ]

    async def start() -> FakeProcess:
        if made and failures:
            raise failures.pop(0)
        made.append(FakeProcess(len(made)))
        return made[-1]

    teller, text = quiet()
    unit = Unit("api", start, teller)
    await unit.start()
    made[-1].over.set()
    await eventually(lambda: unit.restarts == 1)
    assert failures == []
    assert "api: BlockingIOError" in text.getvalue()
    await unit.stop()


async def test_a_process_that_cannot_be_waited_for_is_still_supervised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "FIRST_PAUSE", 0.001)
    made: list[FakeProcess] = []
    failures = [OSError(errno.EMFILE, "no file")]

    class Unwatched(FakeProcess):
        async def wait(self) -> int:
            if failures:
                raise failures.pop()
            return await super().wait()

    async def start() -> FakeProcess:
        made.append(Unwatched(len(made)))
        return made[-1]

    unit = Unit("api", start, quiet()[0])
    await unit.start()
    await eventually(lambda: not failures)
    assert len(made) == 1, "it still runs, so no second one is started"
    made[0].over.set()
    await eventually(lambda: unit.restarts == 1)
    await unit.stop()


async def test_a_full_disk_behind_stderr_does_not_end_the_supervisor() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    teller = Teller(as_json=False)
    teller._console = Console(file=Full())
    teller.say("up-ready", "ready")
    teller.warn("unit-died", "api ended")
    teller.as_json = True
    teller.line("a line of a child")


async def test_a_first_start_that_fails_is_the_callers_to_know() -> None:
    async def start() -> FakeProcess:
        raise Broken("no")

    unit = Unit("api", start, quiet()[0])
    with pytest.raises(Broken):
        await unit.start()
    await unit.stop()


def test_pauses_grow_and_are_forgiven_after_a_steady_life() -> None:
    pause, seen = FIRST_PAUSE, []
    for _ in range(10):
        pause = pause_after(pause, lived=0.1)
        seen.append(pause)
    assert seen == sorted(seen)
    assert seen[-1] == LONGEST_PAUSE
    assert pause_after(pause, lived=31) == FIRST_PAUSE


def test_repeated_warnings_are_counted() -> None:
    now = [0.0]
    teller, text = Teller(as_json=False, monotonic=lambda: now[0]), io.StringIO()
    teller._console = Console(file=text, soft_wrap=True)
    for _ in range(4):
        teller.warn("unit-died", "api died", name="api")
    teller.warn("unit-died", "worker died", name="worker")
    now[0] = 61
    teller.warn("unit-died", "api died", name="api")
    assert text.getvalue().splitlines() == [
        "! api died",
        "! worker died",
        "! api died (3 more of the same in the last minute)",
    ]


def test_a_taken_port_is_named_with_its_setting() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert taken("127.0.0.1", port)
        off = {"HANDBILL_API__METRICS_PORT": "0", "HANDBILL_WORKER__METRICS_PORT": "0", "HANDBILL_WORKER__PORT": "0"}
        with pytest.raises(Broken, match=r"HANDBILL_API__PORT") as caught:
            check_ports(load(off | {"HANDBILL_API__PORT": str(port)}))
    assert caught.value.code == "PORT_TAKEN"


def test_addresses_of_a_live_up_are_found_and_a_dead_ones_are_not(tmp_path: Path) -> None:
    settings = load({"HANDBILL_HOME": str(tmp_path), "HANDBILL_REDIS__URL": "redis://mine"})
    with pytest.raises(Broken, match="HANDBILL_POSTGRES__URL and HANDBILL_CLICKHOUSE__URL"):
        addresses.resolve(settings)
    written = Addresses(pid=os.getpid(), postgres="postgresql://a", redis="redis://other")
    with Home.open(tmp_path):
        addresses.write(settings, written)
        assert addresses.file_of(settings).stat().st_mode & 0o777 == 0o600
        known = addresses.resolve(settings, need=("postgres", "redis"))
        assert (known.postgres.url, known.redis.url) == ("postgresql://a", "redis://mine")
        addresses.write(settings, Addresses(pid=2**22 - 3, postgres="postgresql://a"))
        assert addresses.running(settings) is None
        addresses.file_of(settings).write_text("{half")
        assert addresses.running(settings) is None


def test_addresses_that_a_killed_up_left_are_not_used_when_another_process_has_its_number(tmp_path: Path) -> None:
    settings = load({"HANDBILL_HOME": str(tmp_path)})
    parent = os.getppid()  # a live process that does not supervise this home
    with Home.open(tmp_path):
        addresses.write(settings, Addresses(pid=os.getpid(), postgres="postgresql://a"))
        assert addresses.running(settings) is not None
        addresses.write(settings, Addresses(pid=parent, postgres="postgresql://a"))
        assert addresses.running(settings) is None, "another process holds the home"
    addresses.write(settings, Addresses(pid=os.getpid(), postgres="postgresql://a"))
    assert addresses.running(settings) is None, "nobody holds the home"


def test_the_seal_key_is_made_once_and_the_setting_wins(tmp_path: Path) -> None:
    settings = load({"HANDBILL_HOME": str(tmp_path)})
    first = secrets.seal_key(settings)
    assert secrets.seal_key(settings) == first
    assert len(first) == 32
    assert secrets.seal_key_file(settings).stat().st_mode & 0o777 == 0o600
    assert secrets.seal_key(load({"HANDBILL_TENANTS__SEAL_KEY": "x", "HANDBILL_HOME": str(tmp_path)})) != first
    assert [path.name for path in secrets.seal_key_file(settings).parent.iterdir()] == ["seal.key"]


def test_the_seal_key_is_made_although_a_crash_left_a_draft_of_the_same_process_number(tmp_path: Path) -> None:
    settings = load({"HANDBILL_HOME": str(tmp_path)})
    path = secrets.seal_key_file(settings)
    path.parent.mkdir(mode=0o700)
    path.with_name(f"seal.{os.getpid()}.new").write_text("half")
    assert len(secrets.seal_key(settings)) == 32
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_that_a_crashed_process_of_the_same_number_left_stops_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container every process of ours has the number it had before the crash."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    settings = load({"HANDBILL_HOME": str(tmp_path), "HANDBILL_BANNERS__GEO_URL": "https://geo.example.com/c.mmdb"})
    homes.prepare(tmp_path)
    left = ["lock", "run/engines.new", "secrets/seal.1.new", "secrets/seal.key.new", "geo/country.mmdb.1.new"]
    for name in left:
        (tmp_path / name).parent.mkdir(mode=0o700, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    write_addresses = Addresses(pid=1, postgres="postgresql://a")
    with homes.Home.open(tmp_path):
        assert len(secrets.seal_key(settings)) == 32
        addresses.write(settings, write_addresses)
        assert addresses.running(settings) == write_addresses
        path = country_file(settings)
        assert path is not None
        assert [each.status for each in doctor.countries(settings)] == ["warn"], "configured, not fetched"
        _keep_file(mmdb({"203.0.113.0/24": "NL"}), path)
    assert not (tmp_path / "geo/country.mmdb.1.new").exists()
    assert [each.status for each in doctor.countries(settings)] == ["ok"]
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert "not fetched any more" in doctor.countries(settings)[0].advice
    path.write_text("damaged")
    assert "no country database" in doctor.countries(settings)[0].detail
    assert doctor.countries(load({"HANDBILL_HOME": str(tmp_path)})) == [], "none is configured"
    missing = load({"HANDBILL_HOME": str(tmp_path), "HANDBILL_BANNERS__GEO_FILE": str(tmp_path / "none.mmdb")})
    assert "GEO_FILE" in doctor.countries(missing)[0].advice


@pytest.mark.parametrize(("skew", "status"), [(0.0, "ok"), (-0.6, "warn"), (7.0, "fail")])
def test_clocks_apart(skew: float, status: str) -> None:
    assert [one.status for one in apart({"redis": skew, "postgres": 0.0})] == [status]
