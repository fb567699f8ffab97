"""`/health`: this process answers and its background tasks run. `/ready`: all that it needs is well too.

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

from handbill.api.reply_rate import ReplyRate
from handbill.kit import task_health
from handbill.kit.errors import Busy, HandbillError
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import metrics

PATIENCE_S = 5.0
EVALUATE_EVERY_S = 5.0
SAMPLE_EVERY_S = 1.0

Check = Callable[[], Awaitable[dict[str, Any] | None]]


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok", "stuck"] = "ok"
    """`stuck`: a background task of this process no longer runs, and a restart may help."""


class Part(msgspec.Struct, frozen=True):
    """One engine or task: whether it answers, whether we can do without it, and what there is to say about it."""

    ok: bool
    """Whether it answers, or runs."""
    vital: bool
    """Whether the installation is not ready without it."""
    detail: dict[str, Any] = {}
    """The error's `code` where it is not well; empty otherwise."""

    def public(self) -> Part:
        """Of the detail only the error's code."""
        return Part(self.ok, self.vital, {name: self.detail[name] for name in ("code",) if name in self.detail})


class Ready(msgspec.Struct, frozen=True):
    ready: bool
    """Whether every vital part is well."""
    parts: dict[str, Part]
    """Each engine and task by its name."""

    def public(self) -> Ready:
        """What anybody may know."""
        return Ready(self.ready, {name: part.public() for name, part in self.parts.items()})


class Readiness:
    """The list of what must be well. Evaluated for each request, and in the background for the metrics."""

    def __init__(self, replies: ReplyRate) -> None:
        self.replies = replies
        self._checks: dict[str, tuple[Check, bool]] = {}
        self._tasks = (
            BackgroundTask("reply-rate", replies.sample, period_s=SAMPLE_EVERY_S),
            BackgroundTask("readiness", self.evaluate, period_s=EVALUATE_EVERY_S),
        )

    async def start(self) -> None:
        """Keep `handbill_not_ready` current from now on."""
        for task in self._tasks:
            await task.start()

    async def stop(self) -> None:
        """Stop what `start` began."""
        for task in self._tasks:
            await task.stop()

    async def evaluate(self) -> None:
        """Check every part and set its metric."""
        for name, part in (await self.check()).parts.items():
            metrics.NOT_READY.labels(name).set(not part.ok)

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


def current_health() -> tuple[Health, int]:
    """Whether a restart of this process may help, and the HTTP status that says so."""
    return (Health("stuck"), 503) if task_health.unhealthy() else (Health(), 200)


@get(
    "/health",
    operation_id="health",
    tags=["Health"],
    opt={"public": True, "open_query": True, "example": {"status": "ok"}},
)
async def health() -> Response[Health]:
    """This process answers and its background tasks run: 200, else 503. For load balancers and supervisors."""
    body, status = current_health()
    return Response(body, status_code=status)


@get(
    "/ready",
    operation_id="ready",
    tags=["Health"],
    opt={
        "public": True,
        "open_query": True,
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
    """Every vital part is well: 200, else 503. For operators and deploys; the metrics port has lag and reasons."""
    found = (await readiness.check()).public()
    return Response(found, status_code=200 if found.ready else 503)


handlers = [health, ready]
