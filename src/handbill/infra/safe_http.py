"""The one client for outgoing HTTP: checked URLs, checked addresses, bounded replies.

A URL is checked twice. First as the HTTP library will use it, after IDNA: full-width digits are digits by then. Then
the address of every connection is checked when its socket is made, whatever the name resolved to, and also for a host
that is an address, for which no resolver is asked. Each redirect is checked like the first URL.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping, Sequence

import aiohttp
import msgspec
from aiohttp.abc import ResolveResult
from yarl import URL

from handbill.kit.errors import Busy, Fault, Invalid

TENANT_PORTS = frozenset((443, 8443))
"""Ports that a URL typed in by a tenant may name."""
_RETRY_AFTER_S = 60
_REFUSED = "The URL was refused:"
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure's host agent, reachable only from inside
        "192.0.0.0/24",  # protocol assignments; a cloud's metadata service is here, too
        "192.88.99.0/24",  # 6to4 relays
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)


class HttpPolicy(msgspec.Struct, frozen=True):
    """What a client may connect to, how long it waits and how much it reads. The defaults are for URLs of tenants."""

    https_only: bool = True
    public_only: bool = True
    ports: frozenset[int] | None = TENANT_PORTS
    """None allows every port."""
    max_bytes: int = 262_144
    """The largest body of a reply, unpacked."""
    total_s: float = 5.0
    """Time for a request and its whole reply, redirects included."""
    connect_s: float | None = None
    """Time to get a connection, waiting for a free one included; when it ends, nothing was sent."""
    read_s: float | None = None
    """Time between two reads of a reply."""
    connections: int = 10
    connections_per_host: int = 0
    """So that one slow host cannot take them all; 0 is no limit of its own."""
    keepalive_s: float = 15.0
    dns_cache_s: int = 0
    max_redirects: int = 0

    def check(self, url: str) -> URL:
        """The URL as it will be used. Raises Invalid, with the code OUTGOING_REFUSED, if it may not be called."""
        if not url.isprintable() or " " in url or "\\" in url:
            raise _refused("it must not contain spaces, control characters or backslashes")
        try:
            parsed = URL(url)
        except ValueError:
            raise _refused("it cannot be read") from None
        self.check_parsed(parsed)
        return parsed

    def check_parsed(self, url: URL) -> None:
        """The same for a URL that is parsed already, such as the target of a redirect."""
        if url.scheme != "https" and (self.https_only or url.scheme != "http"):
            raise _refused("it must begin with https://")
        if url.raw_user is not None or url.raw_password is not None:
            raise _refused("it must not contain credentials")
        if self.ports is not None and url.port not in self.ports:
            raise _refused(f"its port must be {' or '.join(map(str, sorted(self.ports)))}")
        host = url.raw_host or ""
        if _is_host_name(host):
            return
        if _parse_address(host) is None:
            raise _refused("its host must be a host name or an IP address in the usual notation")
        if self.public_only and not is_public_address(host):
            raise _refused("its host is not a public address")


class FormPart(msgspec.Struct, frozen=True):
    """One part of a multipart form."""

    name: str
    value: str | bytes
    content_type: str | None = None
    filename: str | None = None


class Response(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


class RequestFailed(Busy):
    """There is no whole reply, and whether the request was read at the other end is unknown.

    `detail` is the same for every cause, so that nobody can scan ports with URLs of ours. `reason` is for logs.
    """

    code = "OUTGOING_FAILED"

    def __init__(self, reason: str, reply_status: int | None = None, detail: str | None = None) -> None:
        super().__init__(
            detail or "The URL could not be reached, or did not answer in time.", retry_after=_RETRY_AFTER_S
        )
        self.reason = reason
        self.reply_status = reply_status


class NotConnected(RequestFailed):
    """There was no connection, so nothing was sent."""


class ReplyTooLarge(RequestFailed):
    """The body of the reply is larger than the policy allows; the rest was not read."""

    def __init__(self, limit: int, reply_status: int) -> None:
        super().__init__("ReplyTooLarge", reply_status, f"The URL's reply is larger than {limit} bytes.")


class SafeHttpClient:
    """A pool of connections under one policy; `close` ends it."""

    def __init__(self, policy: HttpPolicy | None = None) -> None:
        self._policy = policy or HttpPolicy()
        self._session: aiohttp.ClientSession | None = None

    def check(self, url: str, field: str | None = None) -> None:
        """Raises Invalid for a URL that may not be called, without calling it; `field` is where the caller sent it."""
        try:
            self._policy.check(url)
        except Invalid as error:
            if field is None:
                raise
            reason = error.detail.removeprefix(_REFUSED).strip()
            raise Invalid(error.detail, code=error.code, faults=[Fault(field, reason)]) from None

    async def get(self, url: str) -> bytes:
        """The body of a reply with status 200. Raises Busy for any other reply and for none, Invalid for a bad URL."""
        response = await self.request("GET", url)
        if response.status != 200:
            raise Busy(f"The URL answered {response.status}.", code="OUTGOING_FAILED", retry_after=_RETRY_AFTER_S)
        return response.body

    async def request(
        self,
        method: str,
        url: str | URL,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        form: Sequence[FormPart] = (),
        read_body: bool = True,
    ) -> Response:
        """One request and its reply, whatever its status.

        Raises Invalid for a URL that may not be called, NotConnected if nothing was sent, ReplyTooLarge for a body
        above the limit and RequestFailed for everything else.
        """
        target = self._policy.check(url) if isinstance(url, str) else url
        policy, status = self._policy, None
        try:
            async with (
                asyncio.timeout(policy.total_s),
                self._open_session().request(
                    method,
                    target,
                    headers=headers,
                    data=_encode_form(form) if form else body,
                    allow_redirects=policy.max_redirects > 0,
                    max_redirects=policy.max_redirects + 1,  # aiohttp counts the first request
                ) as reply,
            ):
                status = reply.status
                content = await read_limited(reply.content, policy.max_bytes) if read_body else b""
                if content is None:
                    raise ReplyTooLarge(policy.max_bytes, status)
                return Response(status, reply.headers, content)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise NotConnected(type(error).__name__) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            raise RequestFailed(type(error).__name__, status) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            policy = self._policy
            connector = aiohttp.TCPConnector(
                limit=policy.connections,
                limit_per_host=policy.connections_per_host,
                keepalive_timeout=policy.keepalive_s,
                use_dns_cache=policy.dns_cache_s > 0,
                ttl_dns_cache=policy.dns_cache_s,
                resolver=PublicAddressResolver() if policy.public_only else None,
                socket_factory=_open_public_socket if policy.public_only else None,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=policy.connect_s, sock_connect=policy.connect_s, sock_read=policy.read_s
                ),
                cookie_jar=aiohttp.DummyCookieJar(),  # what one host sets is of no concern to another
                middlewares=(self._check_hop,),
                trust_env=False,
            )
        return self._session

    async def _check_hop(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Runs before every request of the session, the redirected ones too."""
        self._policy.check_parsed(request.url)
        return await handler(request)


class PublicAddressResolver(aiohttp.ThreadedResolver):
    """Resolves a name to its public addresses; raises OSError if it has none."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        results = [result for result in await super().resolve(host, port, family) if is_public_address(result["host"])]
        if not results:
            raise OSError(None, f"{host} has no public address")
        return results


def is_public_address(address: str) -> bool:
    """Whether an address is on the public internet, also as seen through the IPv4 address that it may contain.

    Mapped addresses and those of the well-known NAT64 prefix count as the IPv4 address in them, because networks
    without IPv4 reach public hosts through these. Other IPv6 addresses with an IPv4 address inside are not public.
    """
    parsed = _parse_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None or parsed in _NAT64:
            parsed = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        elif parsed not in _GLOBAL_UNICAST or (int(parsed) >> 32) & 0xFFFFFFFF in _ISATAP:
            return False
    if parsed is None or not parsed.is_global or parsed.is_multicast or parsed.is_reserved:
        return False
    return not any(parsed in network for network in _NOT_PUBLIC)


def is_loopback_url(url: str) -> bool:
    """Whether a URL names this machine: `localhost` or a loopback address."""
    try:
        host = URL(url).raw_host or ""
    except ValueError:
        return False
    parsed = _parse_address(host)
    return host == "localhost" or (parsed is not None and parsed.is_loopback)


async def read_limited(stream: aiohttp.StreamReader, limit: int) -> bytes | None:
    """Everything up to the end of the stream; None as soon as there are more bytes than the limit."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in stream.iter_any():
        size += len(chunk)
        if size > limit:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _open_public_socket(addr_info: aiohttp.AddrInfoType) -> socket.socket:
    """The socket for one attempt to connect; `addr_info` holds the address that it will be connected to."""
    family, kind, protocol, _, address = addr_info
    if not is_public_address(str(address[0])):
        raise OSError(None, f"{address[0]} is not a public address")
    return socket.socket(family, kind, protocol)


def _encode_form(parts: Sequence[FormPart]) -> aiohttp.FormData:
    form = aiohttp.FormData(default_to_multipart=True)
    for part in parts:
        form.add_field(part.name, part.value, content_type=part.content_type, filename=part.filename)
    return form


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None for a name, and for an address with a zone: it means something on this machine only."""
    try:
        return None if "%" in host else ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_host_name(host: str) -> bool:
    """Letters, digits, hyphens and underscores between dots. If the last label begins with a digit, it is a number."""
    labels = host.split(".")
    return (
        host.isascii()
        and len(host) <= 253
        and all(len(label) <= 63 and label.replace("-", "").replace("_", "").isalnum() for label in labels)
        and not labels[-1][0].isdigit()
    )


def _refused(reason: str) -> Invalid:
    return Invalid(f"{_REFUSED} {reason}.", code="OUTGOING_REFUSED")
