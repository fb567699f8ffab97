"""Where a request comes from, and under which id it is known."""

from __future__ import annotations

import ipaddress
import itertools
import re
import secrets
import socket
from collections.abc import Iterable

from handbill.kit.bounds import ADDRESS_TEXT_MAX, FORWARDED_MAX, TRUSTED_ADDRESSES
from handbill.kit.caches import Memo
from handbill.kit.errors import Broken

_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_NETWORK = ipaddress.IPv4Network | ipaddress.IPv6Network

_process = secrets.token_hex(6)
_count = itertools.count(1)


def request_id(sent: bytes | None) -> str:
    """The caller's own id if it is a sane one, else a new one: this process's mark and a running number."""
    if sent is not None and _SANE_ID.fullmatch(sent):
        return sent.decode()
    return f"{_process}-{next(_count):x}"


class Clients:
    """The client's address. X-Forwarded-For is believed only as far as trusted proxies wrote it."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._trusted: tuple[_NETWORK, ...] = tuple(_network(one) for one in trusted)
        self._is_trusted = Memo(self._look_up, TRUSTED_ADDRESSES)  # the proxies are few, their clients are not

    def address(self, peer: str, forwarded: bytes | None) -> str:
        if forwarded is None or not self._trusted:
            return peer
        return self._look(peer, forwarded)

    def is_proxy(self, peer: str) -> bool:
        """Whether this is a trusted proxy."""
        return bool(self._trusted) and self._is_trusted(peer)

    def _look(self, peer: str, forwarded: bytes) -> str:
        """From the nearest hop outwards: the first address that is no proxy of ours is the client's."""
        found = peer
        for hop in reversed(_hops(forwarded)):
            if not self._is_trusted(found):
                return found
            address = hop.strip()
            if not _is_address(address):
                return found
            found = address
        return found

    def _look_up(self, address: str) -> bool:
        if not _is_address(address):
            return False
        parsed = ipaddress.ip_address(address)
        return any(parsed in network for network in self._trusted)


def _hops(forwarded: bytes) -> list[str]:
    """The addresses nearest to us; of a header that is too long the farther ones are left out, none is cut in two."""
    hops = forwarded[-FORWARDED_MAX:].decode("latin-1").split(",")
    return hops if len(forwarded) <= FORWARDED_MAX else hops[1:]


def _network(text: str) -> _NETWORK:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise Broken(
            f"The trusted proxy {text!r} is no network; nothing was started. Expected something like 10.0.0.0/8.",
            code="BAD_PROXY_NETWORK",
        ) from None


def _is_address(text: str) -> bool:
    """The system's own parser first: it is fifteen times as fast, but knows no zones (`fe80::1%eth0`)."""
    if len(text) > ADDRESS_TEXT_MAX:
        return False
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError):
            continue
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
