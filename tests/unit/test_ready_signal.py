"""The ready signal: systemd's protocol, sent by our commands and received by `handbill up`."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from handbill.kit.ready_signal import ReadyListener, notify_ready
from tests.kit.waiting import soon


async def test_a_listener_hears_the_signal_and_leaves_no_socket() -> None:
    listener = ReadyListener()
    await listener.open()
    notify_ready(listener.address)
    await soon(listener.received.wait(), what="the ready signal")
    listener.close()
    assert not Path(listener.address).parent.exists()


async def test_other_messages_are_not_taken_for_ready() -> None:
    listener = ReadyListener()
    await listener.open()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for message in (b"STATUS=READY=1", b"READY=10", b"\xff\x00", b""):
            sender.sendto(message, listener.address)
        await asyncio.sleep(0)
        assert not listener.received.is_set()
        sender.sendto(b"STATUS=serving\nREADY=1\n", listener.address)
    await soon(listener.received.wait(), what="the ready signal")
    listener.close()


@pytest.mark.parametrize("address", ["", "/nobody/listens/here", "@nobody-listens-here", "x" * 200])
def test_nobody_who_listens_changes_nothing(address: str) -> None:
    notify_ready(address)


def test_a_name_without_a_file_is_reached(tmp_path: Path) -> None:
    name = f"handbill-test{tmp_path}".replace("/", "-")[-90:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        notify_ready("@" + name)
        assert receiver.recv(100) == b"READY=1"
