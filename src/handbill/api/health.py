"""`/health`: this process answers. `/ready`: so do the engines it cannot work without.

The public `/ready` says of each part only whether it is well. How far counting is behind is the traffic of all tenants
together: that is on the operator's listener alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from handbill.kit.errors import Busy, HandbillError

PATIENCE_S = 5.0

Check = Callable[[], Awaitable[dict[str, Any] | None]]


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"


class Part(msgspec.Struct, frozen=True):
    """One engine or task: whether it answers, whether we can do without it, and what there is to say about it."""

    ok: bool
    vital: bool
    detail: dict[str, Any] = {}

    def public(self) -> Part:
        """Of the detail only the error's code."""
        return Part(self.ok, self.vital, {name: self.detail[name] for name in ("code",) if name in self.detail})


class Ready(msgspec.Struct, frozen=True):
    ready: bool
    parts: dict[str, Part]

    def public(self) -> Ready:
        """What anybody may know."""
        return Ready(self.ready, {name: part.public() for name, part in self.parts.items()})


class Readiness:
    """The list of what must answer. The wiring joins engines; features join their lag."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Check, bool]] = {}

    def join(self, name: str, check: Check, *, vital: bool) -> None:
        self._checks[name] = (check, vital)

    async def check(self) -> Ready:
        names = list(self._checks)
        parts = await asyncio.gather(*(self._part(*self._checks[name]) for name in names))
        found = dict(zip(names, parts, strict=True))
        return Ready(all(part.ok or not part.vital for part in parts), found)

    async def _part(self, check: Check, vital: bool) -> Part:
        try:
            async with asyncio.timeout(PATIENCE_S):
                measured = await check()
        except HandbillError as error:
            return Part(False, vital, {"code": error.code, "reason": error.detail})
        except TimeoutError:
            return Part(False, vital, {"code": Busy.code, "reason": f"no answer within {PATIENCE_S:g} s"})
        return Part(True, vital, measured or {})


@get("/health", operation_id="health", tags=["Health"], opt={"public": True, "example": {"status": "ok"}})
async def health() -> Health:
    """This process is alive and answers."""
    return Health()


@get(
    "/ready",
    operation_id="ready",
    tags=["Health"],
    opt={
        "public": True,
        "example": {
            "ready": True,
            "parts": {
                "postgres": {"ok": True, "vital": True, "detail": {}},
                "clickhouse": {"ok": False, "vital": False, "detail": {"code": "CLICKHOUSE_AWAY"}},
            },
        },
    },
)
async def ready(readiness: NamedDependency[SkipValidation[Readiness]]) -> Response[Ready]:
    """The engines answer too: 200 when every vital part does, else 503. The metrics port has lag and reasons."""
    found = (await readiness.check()).public()
    return Response(found, status_code=200 if found.ready else 503)


handlers = [health, ready]
