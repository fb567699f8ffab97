"""The home directory: what it makes, what it refuses, and what it says."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

import pytest

from handbill.infra.embedded import home as homes
from handbill.infra.embedded import ports
from handbill.infra.embedded.home import Home
from handbill.infra.embedded.plain_user import plain_user, reachable, require_reachable
from handbill.kit.errors import Broken, Busy


def test_one_supervisor_at_a_time(tmp_path: Path) -> None:
    with Home.open(tmp_path / "home") as home:
        assert home.path == tmp_path / "home"
        with pytest.raises(Busy, match=f"as pid {os.getpid()}") as caught:
            Home.open(tmp_path / "home")
        assert caught.value.code == "HOME_LOCKED"
    Home.open(tmp_path / "home").close()


def test_a_lock_file_left_by_a_killed_supervisor_is_no_obstacle(tmp_path: Path) -> None:
    homes.prepare(tmp_path)
    (tmp_path / "lock").write_text("1\n")  # pid 1 lives for sure, and is not us
    with Home.open(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_home_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(Broken, match=f"belongs to uid {mine}") as caught:
        Home.open(tmp_path)
    assert caught.value.code == "HOME_FOREIGN"
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(Broken, match="cannot be written") as caught:
        Home.open(tmp_path)
    assert caught.value.code == "HOME_NOT_WRITABLE"


def test_a_file_where_the_home_should_be(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(Broken, match="in the way") as caught:
        Home.open(tmp_path / "home")
    assert caught.value.code == "HOME_IN_THE_WAY"


def test_a_full_disk_is_said_and_releases_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(Broken, match="full") as caught:
            Home.open(tmp_path)
    assert caught.value.code == "DISK_FULL"
    Home.open(tmp_path).close()


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    homes.prepare(tmp_path)
    first, made = homes.secret(tmp_path, "redis")
    assert made
    assert homes.secret(tmp_path, "redis") == (first, False)
    assert stat.S_IMODE((tmp_path / "secrets" / "redis").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700


async def test_a_wanted_port_is_final_and_a_chosen_one_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes.prepare(tmp_path)
    asked: list[int] = []

    async def begin(port: int) -> int:
        asked.append(port)
        return port

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Broken, match="is taken") as caught:
            await ports.on_port(tmp_path, "redis", taken.getsockname()[1], begin)
    assert caught.value.code == "PORT_TAKEN"
    assert asked == []
    monkeypatch.setattr(ports, "_free", lambda _: True)
    first = await ports.on_port(tmp_path, "redis", None, begin)
    assert await ports.on_port(tmp_path, "redis", None, begin) == first


async def test_a_predecessor_that_does_not_leave_is_named(tmp_path: Path) -> None:
    await homes.vacant(tmp_path / "lock", "redis", patience=0.0)
    with (tmp_path / "lock").open("w") as predecessor:
        fcntl.flock(predecessor, fcntl.LOCK_EX)
        with pytest.raises(Busy, match="still holds") as caught:
            await homes.vacant(tmp_path / "lock", "redis", patience=0.0)
        assert caught.value.code == "ENGINE_LOCKED"
    await homes.vacant(tmp_path / "lock", "redis", patience=0.0)


async def test_a_free_port_that_was_snatched_is_replaced(tmp_path: Path) -> None:
    homes.prepare(tmp_path)
    tried: list[int] = []

    async def begin(port: int) -> int:
        tried.append(port)
        if len(tried) < 3:
            raise ports.port_taken("redis", port)
        return port

    assert await ports.on_port(tmp_path, "redis", None, begin) == tried[-1]
    assert len(tried) == 3


def test_a_user_who_cannot_pass_is_told_where(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    (shut / "in").mkdir(parents=True)
    shut.chmod(0o700)
    stranger = (os.geteuid() + 12345, os.getegid() + 12345)
    assert not reachable(shut / "in", stranger)
    with pytest.raises(Broken, match="cannot pass through") as caught:
        require_reachable(shut / "in", stranger)
    assert caught.value.code == "HOME_NOT_REACHABLE"
    assert stat.S_IMODE(shut.stat().st_mode) == 0o700
    assert reachable(Path("/"), stranger)


def test_only_root_becomes_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert plain_user(tmp_path) is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    user = plain_user(tmp_path / "not there yet")
    assert user is not None
    assert user[0] != 0
