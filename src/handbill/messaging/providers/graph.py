"""One HTTP session to a Graph server: bounded, guarded, without redirects; and the line between unsent and unknown.

That line is drawn by the kind of error. A connection that never came about wrote nothing: the name did not resolve, the
address did not answer, no connection of the pool became free in time. Everything later may have been read at the other
end. A limit on the whole could not tell the two apart, so it is so wide that connecting has failed long before, and
what it ends is unknown. A request that failed on a connection kept from before counts as unknown, too; connections are
let go before the other side lets go of them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from yarl import URL

from handbill.infra.safe_http import FormPart, HttpPolicy, NotConnected, RequestFailed, SafeHttpClient
from handbill.kit import crashpoints
from handbill.kit.bounds import PROVIDER_ADDRESSES
from handbill.kit.caches import Memo
from handbill.messaging.model import Credentials, Lost, Unwritten

BASE_URL = "https://graph.facebook.com"
VERSION = "v23.0"
ANSWER_LIMIT = 8 * 1024 * 1024
KEEP_S = 15.0
DNS_CACHE_S = 60


class Reply(msgspec.Struct, frozen=True):
    status: int
    body: bytes


class Graph:
    """Raises Invalid for a base URL that is not https with a public host, unless `insecure` allows any URL."""

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
        self._http = SafeHttpClient(
            HttpPolicy(
                https_only=not insecure,
                public_only=not insecure,
                ports=None,
                max_bytes=ANSWER_LIMIT,
                total_s=connect_s + 2 * answer_s,
                connect_s=connect_s,
                read_s=answer_s,
                connections=connections,
                keepalive_s=KEEP_S,
                dns_cache_s=DNS_CACHE_S,
            )
        )
        self._http.check(base_url)
        self._root = f"{base_url.rstrip('/')}/{version}"

    async def call(
        self,
        method: str,
        path: str,
        credentials: Credentials,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        form: Sequence[FormPart] = (),
    ) -> Reply | Unwritten | Lost:
        """One request and its whole answer, whatever its status; or why there is none."""
        url = _address(self._root, path, credentials.token, credentials.app_secret)
        if query:
            url = url.update_query(query)
        headers = {"Authorization": f"Bearer {credentials.token}"}
        data: bytes | None = None
        if body is not None:
            data = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        crashpoints.reached(f"before:graph:{method}")
        reply = await self._exchange(method, url, headers, data, form)
        crashpoints.reached(f"after:graph:{method}")
        return reply

    async def _exchange(
        self, method: str, url: URL, headers: dict[str, str], body: bytes | None, form: Sequence[FormPart]
    ) -> Reply | Unwritten | Lost:
        try:
            response = await self._http.request(method, url, headers=headers, body=body, form=form)
        except NotConnected as error:
            return Unwritten(f"no connection ({error.reason})")
        except RequestFailed as error:
            return Lost(f"no whole answer ({error.reason})", error.reply_status)
        return Reply(response.status, response.body)

    async def close(self) -> None:
        await self._http.close()


def _build_address(root: str, path: str, token: str, app_secret: str | None) -> URL:
    """With `appsecret_proof`: a token that leaks is then of no use to anybody without the app's secret."""
    url = URL(f"{root}/{path}", encoded=True)
    if not app_secret:
        return url
    proof = hmac.new(app_secret.encode(), token.encode(), hashlib.sha256).hexdigest()
    return url.update_query(appsecret_proof=proof)


_address = Memo(_build_address, PROVIDER_ADDRESSES)
