"""Memory that bodies under way may take: all of them together, and those of one client address.

Room is taken as bytes come: a body that has sent one byte holds one byte, whatever length it has announced.
"""

from __future__ import annotations

import socket

import msgspec

from handbill.kit.errors import Busy, Throttled

SMALL_BYTES = 65_536
"""A body is never refused for its first bytes: large bodies of others do not stop small ones."""
_MAPPED = b"\0" * 10 + b"\xff\xff"


class BodyLimits(msgspec.Struct, frozen=True):
    """Limits of bodies under way; the defaults are those of the settings."""

    timeout_s: float = 30.0
    bytes_per_s: int = 32_768
    upload_bytes_per_s: int = 4_096
    held_bytes: int = 268_435_456
    held_bytes_per_address: int = 67_108_864
    bodies_per_address: int = 256


class _Address:
    """Bodies under way from one address."""

    __slots__ = ("bodies", "held")

    def __init__(self) -> None:
        self.bodies = 0
        self.held = 0


class BodyBudget:
    """Counts the bytes and the bodies under way."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._addresses: dict[bytes, _Address] = {}
        self.held = 0

    def open(self, client_ip: str) -> HeldBody:
        """A body that begins. Raises Throttled if its address has too many under way."""
        key = network_of(client_ip)
        address = self._addresses.get(key)
        if address is None:
            address = self._addresses[key] = _Address()
        elif address.bodies >= self._limits.bodies_per_address:
            raise Throttled(
                "Too many bodies from this address are under way; nothing of this one was kept, send it again.",
                code="TOO_MANY_BODIES",
                retry_after=1.0,
            )
        address.bodies += 1
        return HeldBody(self, key, address)

    def take(self, address: _Address, size: int, before: int) -> None:
        """Room for `size` more bytes of a body that holds `before`. Raises Busy if there is none."""
        limits = self._limits
        if before + size > SMALL_BYTES and (
            self.held + size > limits.held_bytes or address.held + size > limits.held_bytes_per_address
        ):
            raise Busy(
                "Too many large bodies at once; nothing of this one was kept, send it again.",
                code="BODIES_BUSY",
                retry_after=1.0,
            )
        self.held += size
        address.held += size

    def close(self, key: bytes, address: _Address, size: int) -> None:
        """Gives back what a body held."""
        self.held -= size
        address.held -= size
        address.bodies -= 1
        if address.bodies == 0:
            del self._addresses[key]


class HeldBody:
    """What one body holds. Release it when its bytes are no longer needed."""

    __slots__ = ("_address", "_budget", "_key", "_released", "size")

    def __init__(self, budget: BodyBudget, key: bytes, address: _Address) -> None:
        self._budget = budget
        self._key = key
        self._address = address
        self._released = False
        self.size = 0

    def take(self, size: int) -> None:
        """Room for more bytes. Raises Busy if there is none; what it has stays held until it is released."""
        self._budget.take(self._address, size, self.size)
        self.size += size

    def release(self) -> None:
        """Gives everything back; a second call does nothing."""
        if not self._released:
            self._released = True
            self._budget.close(self._key, self._address, self.size)


def network_of(client_ip: str) -> bytes:
    """What counts as one address: an IPv4 address, or the /64 network of an IPv6 address."""
    if ":" in client_ip:
        try:
            packed = socket.inet_pton(socket.AF_INET6, client_ip.partition("%")[0])
        except OSError:
            return client_ip.encode()
        if not packed.startswith(_MAPPED):
            return packed[:8]
        return socket.inet_ntoa(packed[12:]).encode()
    return client_ip.encode()
