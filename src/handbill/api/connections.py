"""Open connections of one process, shared fairly between client addresses while they are scarce.

The HTTP server accepts so many connections and no more, whoever opens them. When most of them are taken, the addresses
that hold the most are cut back to an equal share: their connections that have been silent for longest are shut down.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from handbill.api.body_budget import network_of
from handbill.kit.telemetry import logs, metrics

EVERY_S = 0.25
SPARE_FILES = 256
"""Open files of a process that are no connections of clients: engines, logs, uploads."""
ALWAYS_KEPT = 8
"""An address with so few connections is never cut back."""
_OPEN_FILES = "/dev/fd"
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_SILENT = struct.Struct("44xI4xI")  # tcpi_last_data_sent and tcpi_last_data_recv of Linux, in milliseconds

log = logs.get("api")


class Connection(msgspec.Struct, frozen=True):
    """One open connection of a client."""

    descriptor: int
    address: bytes
    silent_ms: int


def allowed_connections(wanted: int) -> int:
    """As many of `wanted` as this process may have files for; the limit of open files is raised if it can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = max(soft - SPARE_FILES, 16)
    log.warning("api.few_open_files", max_connections=allowed, wanted=wanted, open_files=soft)
    return allowed


def share_of(counts: Mapping[bytes, int], room: int) -> int:
    """The most connections for each address, so that all of them together fit into `room`."""
    left = room
    for place, count in enumerate(sorted(counts.values())):
        share = left // (len(counts) - place)
        if count > share:
            return max(share, ALWAYS_KEPT)
        left -= count
    return room


def surplus(connections: Sequence[Connection], room: int) -> list[Connection]:
    """What each address holds above its share, the longest silent first."""
    by_address: dict[bytes, list[Connection]] = {}
    for connection in connections:
        by_address.setdefault(connection.address, []).append(connection)
    share = share_of({address: len(held) for address, held in by_address.items()}, room)
    found: list[Connection] = []
    for held in by_address.values():
        if len(held) > share:
            held.sort(key=lambda connection: connection.silent_ms, reverse=True)
            found += held[: len(held) - share]
    return found


class ConnectionShares:
    """Cuts addresses back once three quarters of `most` connections are open, until half of them are."""

    def __init__(self, port: int, most: int, is_exempt: Callable[[str], bool]) -> None:
        self._port = port
        self._most = most
        self._is_exempt = is_exempt

    async def enforce(self) -> None:
        """One round. Connections of exempt peers count as taken, but are left alone."""
        descriptors = os.listdir(_OPEN_FILES)
        threshold = self._most * 3 // 4
        if len(descriptors) < threshold:
            return
        open_ones = list(self._clients(descriptors))
        if len(open_ones) < threshold:
            return
        ours = [connection for connection in open_ones if connection.address]
        closed = sum(
            self._shut_down(one) for one in surplus(ours, max(self._most // 2 - len(open_ones) + len(ours), 0))
        )
        if closed:
            metrics.API_CONNECTIONS_CUT.inc(closed)
            log.warning("api.connections_cut", connections=len(open_ones), cut=closed)

    def _clients(self, descriptors: Sequence[str]) -> Iterator[Connection]:
        """All connections to our port; those of exempt peers without an address."""
        for descriptor in map(int, descriptors):
            try:
                with _duplicate(descriptor) as copy:
                    peer = self._peer(copy)
                    if peer is not None:
                        address = b"" if self._is_exempt(peer) else network_of(peer)
                        yield Connection(descriptor, address, _silent_ms(copy))
            except OSError:
                continue  # no socket, or closed meanwhile

    def _shut_down(self, connection: Connection) -> bool:
        """The server sees the end of its stream and closes it. False if the descriptor is another one's by now."""
        try:
            with _duplicate(connection.descriptor) as copy:
                peer = self._peer(copy)
                if peer is None or network_of(peer) != connection.address:
                    return False
                copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True

    def _peer(self, copy: socket.socket) -> str | None:
        """The client's address; nothing if this is no connection to our port."""
        if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.getsockname()[1] != self._port:
            return None
        return str(copy.getpeername()[0])


def _duplicate(descriptor: int) -> socket.socket:
    """A descriptor of our own for the same socket: the server may close its own at any time, and reuse the number."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _silent_ms(copy: socket.socket) -> int:
    """Since when neither side has sent anything; 0 where the system does not tell."""
    if _TCP_INFO is None:
        return 0
    sent, received = _SILENT.unpack(copy.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SILENT.size))
    return int(min(sent, received))
