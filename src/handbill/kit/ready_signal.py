"""Tells whoever started the process that it is ready, as systemd expects it: a datagram to the socket in NOTIFY_SOCKET.

`handbill up` listens for it from its children, systemd (`Type=notify`) from any of our commands. Without the variable
nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from pathlib import Path

from handbill.kit.telemetry import logs

VARIABLE = "NOTIFY_SOCKET"
MESSAGE = b"READY=1"
_log = logs.get("ready")


def notify_ready(address: str) -> None:
    """Tell the supervisor at this address that the process is ready; one that is gone is logged and changes nothing."""
    if not address:
        return
    if address.startswith("@"):  # Linux: a name without a file
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(MESSAGE, address)
    except (OSError, ValueError) as error:
        _log.warning("ready.not_sent", error=str(error))


class ReadyListener(asyncio.DatagramProtocol):
    """The receiving side, for one child: give it `address` in the environment, then wait for `received`."""

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self._directory = tempfile.mkdtemp(prefix="handbill-")  # a short path: a socket's has at most 107 bytes
        self._transport: asyncio.DatagramTransport | None = None
        self.address = str(Path(self._directory) / "ready")

    async def open(self) -> None:
        """Listen from now on."""
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.setblocking(False)
        receiver.bind(self.address)
        self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=receiver)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._transport is not None:
            self._transport.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(self._directory)

    def datagram_received(self, data: bytes, addr: object) -> None:
        """Other messages of systemd's protocol (STATUS, WATCHDOG) are none of ours and ignored."""
        if MESSAGE in data.splitlines():
            self.received.set()
