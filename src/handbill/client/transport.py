"""One bounded request: whatever the server does, it ends in time, takes little memory and raises nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import msgspec

ANSWER_MAX = 4 << 20
"""Bytes of an answer; a longer one is not read to its end."""
_PIECE = 1 << 16
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_log = logging.getLogger("handbill.client")


class Answer(msgspec.Struct, frozen=True):
    """The server's answer: status 0 when nothing came in time, `body` None when it was not JSON of a bounded size."""

    status: int = 0
    retry_after: str | None = None
    body: Any = None


class Transport:
    """The connections to one server, made with the first request."""

    def __init__(self, url: str, headers: dict[str, str], timeout_s: float) -> None:
        self._url = url.rstrip("/")
        # Nothing packed is asked for or unpacked: a few bytes could become gigabytes.
        self._headers = {**headers, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        self._timeout_s = timeout_s
        self._http: aiohttp.ClientSession | None = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        data: bytes | None = None,
        params: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Raises nothing: any failure is an answer without a status."""
        try:
            async with asyncio.timeout(self._timeout_s if timeout_s is None else timeout_s):
                return await self._call(method, path, data, params)
        except Exception as error:  # noqa: BLE001 - asking never fails, whatever aiohttp or the line come up with
            _log.debug("no answer to %s %s: %r", method, path, error)
            return Answer()

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _call(self, method: str, path: str, data: bytes | None, params: dict[str, str] | None) -> Answer:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                headers=self._headers,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        url = self._url + path
        async with self._http.request(method, url, data=data, params=params, allow_redirects=False) as reply:
            body = await _read(reply.content)
            return Answer(reply.status, reply.headers.get("Retry-After"), body)


async def _read(content: aiohttp.StreamReader) -> Any:
    read = bytearray()
    async for piece in content.iter_chunked(_PIECE):
        read += piece
        if len(read) > ANSWER_MAX:
            return None
    try:
        return msgspec.json.decode(read) if read else None
    except _UNREADABLE:
        return None
