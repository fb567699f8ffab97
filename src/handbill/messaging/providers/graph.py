"""One HTTP session to a Graph server: bounded, guarded, without redirects; and the line between unsent and unknown.

That line is drawn by the kind of error. A connection that never came about wrote nothing: the name did not resolve, the
address did not answer, no connection of the pool became free in time. Everything later may have been read at the other
end. A limit on the whole could not tell the two apart, so it is so wide that connecting has failed long before, and
what it ends is unknown. A request that failed on a connection kept from before counts as unknown, too; connections are
let go before the other side lets go of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from handbill.infra.outgoing import PublicOnly, is_public
from handbill.kit import crashpoints
from handbill.kit.bounds import PROVIDER_ADDRESSES
from handbill.kit.caches import Memo
from handbill.kit.errors import Invalid
from handbill.messaging.model import Credentials, Lost, Unwritten

BASE_URL = "https://graph.facebook.com"
VERSION = "v23.0"
ANSWER_LIMIT = 8 * 1024 * 1024
KEEP_S = 15.0


class Reply(msgspec.Struct, frozen=True):
    status: int
    body: bytes


class Graph:
    """`insecure` allows plain HTTP to any host; loopback, where the fake server lives, is always allowed."""

    def __init__(
        self,
        base_url: str = BASE_URL,
        version: str = VERSION,
        *,
        connections: int = 256,
        connect_s: float = 5.0,
        answer_s: float = 30.0,
        insecure: bool = False,
    ) -> None:
        self._guarded = not (insecure or _is_loopback(base_url))
        if self._guarded:
            _check(base_url)
        self._root = f"{base_url.rstrip('/')}/{version}"
        self._connections = connections
        self._longest_s = connect_s + 2 * answer_s
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_s, sock_connect=connect_s, sock_read=answer_s)
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self,
        method: str,
        path: str,
        credentials: Credentials,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        form: aiohttp.FormData | None = None,
    ) -> Reply | Unwritten | Lost:
        """One request and its whole answer, whatever its status; or why there is none."""
        url = _address(self._root, path, credentials.token, credentials.app_secret)
        if query:
            url = url.update_query(query)
        headers = {"Authorization": f"Bearer {credentials.token}"}
        data: Any = form
        if body is not None:
            data = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        crashpoints.reached(f"before:graph:{method}")
        found = await self._exchange(method, url, headers, data)
        crashpoints.reached(f"after:graph:{method}")
        return found

    async def _exchange(self, method: str, url: URL, headers: dict[str, str], data: Any) -> Reply | Unwritten | Lost:
        status: int | None = None
        try:
            async with (
                asyncio.timeout(self._longest_s),
                self._client().request(method, url, headers=headers, data=data, allow_redirects=False) as reply,
            ):
                status = reply.status
                return Reply(status, await _bounded(reply))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            return Unwritten(f"no connection ({type(error).__name__})")
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            return Lost(f"no whole answer ({type(error).__name__})", status)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            options: dict[str, Any] = {"resolver": PublicOnly()} if self._guarded else {}
            connector = aiohttp.TCPConnector(
                limit=self._connections, ttl_dns_cache=60, keepalive_timeout=KEEP_S, **options
            )
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, trust_env=False)
        return self._session


def _build_address(root: str, path: str, token: str, app_secret: str | None) -> URL:
    """With `appsecret_proof`: a token that leaks is then of no use to anybody without the app's secret."""
    url = URL(f"{root}/{path}", encoded=True)
    if not app_secret:
        return url
    proof = hmac.new(app_secret.encode(), token.encode(), hashlib.sha256).hexdigest()
    return url.update_query(appsecret_proof=proof)


_address = Memo(_build_address, PROVIDER_ADDRESSES)


async def _bounded(reply: aiohttp.ClientResponse) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in reply.content.iter_any():
        size += len(chunk)
        if size > ANSWER_LIMIT:
            raise aiohttp.ClientPayloadError("the answer is too large")
        chunks.append(chunk)
    return b"".join(chunks)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(url: str) -> None:
    """Only the operator sets this address, but a typing error must not send tokens over the open line."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    literal = host.replace(".", "").isdecimal() or ":" in host
    if parts.scheme != "https" or not host or parts.username or (literal and not is_public(host)):
        raise Invalid(
            "The Graph address was refused: it must be https:// with a public host, or a server on this machine. "
            "Nothing was sent.",
            code="OUTGOING_REFUSED",
        )
