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
    """One engine or task: whether it answers, whether we can do without it, and the error's code if it does not."""

    ok: bool
    vital: bool
    code: str | None = None


class Ready(msgspec.Struct, frozen=True):
    ready: bool
    parts: dict[str, Part]


class PartDetails(msgspec.Struct, frozen=True):
    """The same for an operator, with what the check measured and the error's whole text."""

    ok: bool
    vital: bool
    code: str | None = None
    reason: str | None = None
    measured: dict[str, Any] = {}


class ReadyDetails(msgspec.Struct, frozen=True):
    ready: bool
    parts: dict[str, PartDetails]

    def public(self) -> Ready:
        """What anybody may know."""
        return Ready(self.ready, {name: Part(part.ok, part.vital, part.code) for name, part in self.parts.items()})


class Readiness:
    """The list of what must answer. The wiring joins engines; features join their lag."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Check, bool]] = {}

    def join(self, name: str, check: Check, *, vital: bool) -> None:
        self._checks[name] = (check, vital)

    async def check(self) -> ReadyDetails:
        names = list(self._checks)
        parts = await asyncio.gather(*(self._part(*self._checks[name]) for name in names))
        found = dict(zip(names, parts, strict=True))
        return ReadyDetails(all(part.ok or not part.vital for part in parts), found)

    async def _part(self, check: Check, vital: bool) -> PartDetails:
        try:
            async with asyncio.timeout(PATIENCE_S):
                measured = await check()
        except HandbillError as error:
            return PartDetails(False, vital, error.code, error.detail)
        except TimeoutError:
            return PartDetails(False, vital, Busy.code, f"no answer within {PATIENCE_S:g} s")
        return PartDetails(True, vital, measured=measured or {})


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
                "postgres": {"ok": True, "vital": True, "code": None},
                "clickhouse": {"ok": False, "vital": False, "code": "CLICKHOUSE_AWAY"},
            },
        },
    },
)
async def ready(readiness: NamedDependency[SkipValidation[Readiness]]) -> Response[Ready]:
    """The engines answer too: 200 when every vital part does, else 503. The metrics port has lag and reasons."""
    found = (await readiness.check()).public()
    return Response(found, status_code=200 if found.ready else 503)


handlers = [health, ready]
