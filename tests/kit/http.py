"""A client for a running API process, and its replies as tests look at them."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from handbill.kit.codes import CODES
from tests.kit.processes import Process


class Api:
    """A running process and a client that speaks to it."""

    def __init__(self, process: Process, base: str, client: aiohttp.ClientSession) -> None:
        self.process = process
        self.base = base
        self.client = client

    async def __call__(self, method: str, path: str, *, key: str | None = None, **options: Any) -> Reply:
        headers = dict(options.pop("headers", {}))
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        async with self.client.request(method, self.base + path, headers=headers, **options) as reply:
            return Reply(reply.status, await reply.read(), reply.headers.copy())


class Reply:
    def __init__(self, status: int, body: bytes, headers: Any) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self, status: int, code: str) -> dict[str, Any]:
        """The body as the one shape of errors, checked."""
        assert self.status == status, self.body
        assert self.headers["content-type"].startswith("application/problem+json")
        found: dict[str, Any] = self.json()
        assert found["code"] == code
        assert found["status"] == status
        assert found["type"].endswith(code)
        assert found["detail"]
        assert found["instance"] == self.headers["x-request-id"]
        assert code in CODES
        return found
