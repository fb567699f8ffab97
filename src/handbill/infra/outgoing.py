"""Calling an address that a user typed in: https only, public addresses only, small answers only, no redirects.

The name is resolved by us and the connection goes to the address that was checked, so that a name cannot show one face
to the check and another to the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from handbill.kit.errors import Busy, Invalid

TIMEOUT_S = 5.0
LARGEST = 262_144


def is_public(address: str) -> bool:
    """Whether an address belongs to the open internet: not loopback, private, link-local, multicast or reserved."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is not None:
            found = inner
    return found.is_global and not found.is_multicast


class PublicOnly(AbstractResolver):
    """Resolves names and keeps only public addresses; when none is left, the name is refused."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        found: list[ResolveResult] = []
        for kind, _, proto, _, address in infos:
            if is_public(str(address[0])):
                found.append(
                    ResolveResult(
                        hostname=host,
                        host=str(address[0]),
                        port=port,
                        family=kind,
                        proto=proto,
                        flags=socket.AI_NUMERICHOST,
                    )
                )
        if not found:
            raise OSError(None, f"{host} has no public address")
        return found

    async def close(self) -> None:
        return None


class Outgoing:
    """One client session for such fetches. `insecure` lets tests reach a loopback server over plain HTTP."""

    def __init__(self, *, insecure: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        self._insecure = insecure
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    def check(self, url: str) -> None:
        """Refuses an address by its spelling alone, before anything is sent."""
        if self._insecure:
            return
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise _refused("it cannot be read") from None
        host = parts.hostname
        if parts.scheme != "https" or not host or parts.username or parts.password:
            raise _refused("it must be https:// with a host and without credentials")
        if port not in (None, 443, 8443):
            raise _refused("its port must be 443 or 8443")
        if _is_address(host) and not is_public(host):
            raise _refused("it is not a public address")

    async def get(self, url: str) -> bytes:
        self.check(url)
        try:
            async with self._client().get(url, allow_redirects=False) as reply:
                if reply.status != 200:
                    raise Busy(f"The URL answered {reply.status}.", code="OUTGOING_FAILED", retry_after=60)
                body = await reply.content.read(LARGEST + 1)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Busy(
                f"The URL could not be fetched ({type(error).__name__}); nothing was changed.",
                code="OUTGOING_FAILED",
                retry_after=60,
            ) from None
        if len(body) > LARGEST:
            raise Busy(f"The URL's answer is larger than {LARGEST} bytes.", code="OUTGOING_FAILED", retry_after=60)
        return body

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        """The status of the answer, whatever it is; its body is not read. A redirect is an answer, not a way."""
        self.check(url)
        try:
            async with self._client().post(url, data=body, headers=headers, allow_redirects=False) as reply:
                return reply.status
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise Busy(
                f"The URL could not be reached, or did not answer in time ({type(error).__name__}).",
                code="OUTGOING_FAILED",
                retry_after=60,
            ) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            options: dict[str, Any] = {} if self._insecure else {"resolver": PublicOnly()}
            connector = aiohttp.TCPConnector(limit=10, use_dns_cache=False, **options)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, trust_env=False)
        return self._session


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _refused(reason: str) -> Invalid:
    return Invalid(f"The URL was refused: {reason}.", code="OUTGOING_REFUSED")
