"""`/health`: this process answers. `/ready`: so do the engines it cannot work without."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from handbill.kit.errors import HandbillError

PATIENCE_S = 5.0

Check = Callable[[], Awaitable[dict[str, Any] | None]]


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"


class Part(msgspec.Struct, frozen=True):
    """One engine or chore: whether it answers, whether we can do without it, and what it says."""

    ok: bool
    vital: bool
    detail: dict[str, Any] = {}


class Ready(msgspec.Struct, frozen=True):
    ready: bool
    parts: dict[str, Part]


class Readiness:
    """The list of what must answer. The wiring joins engines; rooms join their lag."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Check, bool]] = {}

    def join(self, name: str, check: Check, *, vital: bool) -> None:
        self._checks[name] = (check, vital)

    async def look(self) -> Ready:
        names = list(self._checks)
        parts = await asyncio.gather(*(self._part(*self._checks[name]) for name in names))
        found = dict(zip(names, parts, strict=True))
        return Ready(all(part.ok or not part.vital for part in parts), found)

    async def _part(self, check: Check, vital: bool) -> Part:
        try:
            async with asyncio.timeout(PATIENCE_S):
                detail = await check()
        except HandbillError as error:
            return Part(False, vital, {"code": error.code})
        except TimeoutError:
            return Part(False, vital, {"code": "BUSY"})
        return Part(True, vital, detail or {})


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
                "journal": {"ok": True, "vital": False, "detail": {"lag_events": 120, "lag_seconds": 0.04}},
            },
        },
    },
)
async def ready(readiness: NamedDependency[SkipValidation[Readiness]]) -> Response[Ready]:
    """The engines answer too: 200 when every vital part does, else 503."""
    found = await readiness.look()
    return Response(found, status_code=200 if found.ready else 503)


handlers = [health, ready]
