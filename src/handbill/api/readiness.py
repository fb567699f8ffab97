"""What must be well before an API process says that it is ready: engines, and work that must make progress."""

from __future__ import annotations

from typing import Any

from handbill.api.health import Readiness
from handbill.api.reply_rate import MAX_SHARE, ReplyRate
from handbill.kit import task_health
from handbill.kit.errors import Broken
from handbill.wiring.house import House

CATALOG_AGE_S = 30.0


def readiness(house: House) -> Readiness:
    """The parts of `/ready`. ClickHouse may be gone for a moment: nothing the API accepts needs it at once."""
    parts = _Parts(house)
    result = Readiness(ReplyRate(house.clock))
    result.join("postgres", house.database.health, vital=True)
    result.join("redis", house.redis.health, vital=True)
    result.join("clickhouse", house.clickhouse.health, vital=False)
    result.join("journal", parts.journal, vital=False)
    result.join("counting", parts.counting, vital=True)
    result.join("exports", parts.exports, vital=True)
    result.join("catalog", parts.catalog, vital=True)
    result.join("errors", lambda: check_errors(result.replies), vital=True)
    result.join("disk", house.disk.check, vital=True)
    result.join("tasks", check_tasks, vital=True)
    return result


class _Parts:
    """The checks of work that a container does."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def journal(self) -> dict[str, Any]:
        """How far counting is behind. A long way behind is answered by 429 on the routes that add to it."""
        events, seconds = self._house.events.lag
        return {"lag_events": events, "lag_seconds": round(seconds, 3)}

    async def counting(self) -> None:
        """Raises Broken while a lane has events and its cursor does not move."""
        if lanes := self._house.events.stalled.counting:
            raise Broken(
                f"Events wait and none was counted for 30 s in: {', '.join(lanes)}. They are kept in Redis. See "
                "that a worker with `consume` runs, its log, and who holds a lock (pg_stat_activity in PostgreSQL).",
                code="COUNTING_STALLED",
            )

    async def exports(self) -> None:
        """Raises Broken while the oldest batch of a lane does not get to ClickHouse."""
        if lanes := self._house.events.stalled.exports:
            raise Broken(
                f"Counted events do not get to ClickHouse in: {', '.join(lanes)}. They are kept in Redis. Look whether "
                "ClickHouse answers and has disk space, and at the worker's log.",
                code="EXPORTS_STALLED",
            )

    async def catalog(self) -> dict[str, Any]:
        """Raises Broken while banners are served from a copy that may be old."""
        age = self._house.catalogue.age_seconds()
        if age > CATALOG_AGE_S:
            raise Broken(
                f"The catalog in memory was last compared with PostgreSQL {age:.0f} s ago; changes of banners do not "
                "show. Look whether PostgreSQL answers; if it does, restart this process.",
                code="CATALOG_STALE",
            )
        return {"age_seconds": round(age, 3)}


async def check_errors(replies: ReplyRate) -> dict[str, Any]:
    """Raises Broken while too many replies of this process are errors of ours."""
    count, errors = replies.recent()
    if replies.has_many_errors():
        raise Broken(
            f"{errors} of the last {count} replies were errors of the server (limit {MAX_SHARE:.0%}). Look at the "
            "other parts, then at the log for `request-failed`.",
            code="MANY_ERRORS",
        )
    return {"replies": count, "errors": errors}


async def check_tasks() -> dict[str, Any]:
    """Raises Broken while a required background task hangs or keeps failing."""
    unhealthy = set(task_health.unhealthy())
    if unhealthy:
        texts = [
            f"{each.name} (no sign of life for {each.silent_seconds():.0f} s; last error: {each.last_error or 'none'})"
            for each in task_health.running()
            if each.name in unhealthy
        ]
        raise Broken(
            f"Background tasks make no progress: {'; '.join(texts)}. Restart this process.", code="TASKS_STUCK"
        )
    return {"running": sorted({each.name for each in task_health.running()})}
