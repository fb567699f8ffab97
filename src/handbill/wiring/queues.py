"""The job queues: who handles which job, and what comes back by the clock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from handbill.banners.tasks import JOBS as BANNER_JOBS
from handbill.banners.tasks import QUEUE as BANNERS
from handbill.banners.tasks import BannerTasks
from handbill.jobs.chores import CronChore
from handbill.jobs.cron import Schedule, Schedulers
from handbill.jobs.model import Job
from handbill.jobs.worker import JobWorker
from handbill.kit.pulse import Pulse
from handbill.wiring import shipping
from handbill.wiring.house import House

SYSTEM = "system"
JOBS = {
    "cron.banner_sync": "Announce the schedule sync of this minute.",
    "cron.banner_rollup": "Announce the roll-up of yesterday.",
    "cron.rollup_dirty": "Recount past days that late events touched.",
    "cron.stats_audit": "Compare a few days of the stats with a recount, and look for days that were never rolled up.",
    "cron.parked_heal": "Send events that the database refused through the pipeline again, three times at most.",
    "cron.retention": "Make months ahead, drop months nobody needs, forget keys past the horizon and replayed events.",
}
"""The jobs of the queue `system`, each started by the clock."""

CATALOGUE: dict[str, dict[str, str]] = {BANNERS: BANNER_JOBS, SYSTEM: JOBS}
"""Every queue of the product and the jobs it carries, for the reference page."""

DIRTY_REST = timedelta(seconds=30)


def banner_tasks(house: House) -> BannerTasks:
    banners = house.banners
    return BannerTasks(
        house.database,
        house.catalogue,
        house.events,
        banners.schedule,
        banners.rollup,
        house.jobs.outbox,
        house.clock,
    )


class SystemTasks:
    """Small jobs of the house itself. Each may run again at any time."""

    def __init__(self, house: House) -> None:
        self._banners = house.banners
        self._events = house.events
        self._clock = house.clock
        self._history = shipping.history(house)

    async def rollup_dirty(self, job: Job, ctx: Any) -> int:
        return len(await self._banners.rollup.dirty(rest=DIRTY_REST))

    async def audit(self, job: Job, ctx: Any) -> int:
        await self._banners.rollup.stale_days()
        return await self._banners.rollup.audit()

    async def heal(self, job: Job, ctx: Any) -> int:
        return (await self._events.dead.heal()).sent

    async def retention(self, job: Job, ctx: Any) -> int:
        await self._events.forget_keys(self._clock.now())
        await self._events.forget_replayed(self._clock.now())
        await self._history.run()
        return len((await self._banners.retention.run()).dropped)

    def handlers(self, tasks: BannerTasks) -> Mapping[str, Any]:
        return {
            "cron.banner_sync": tasks.announce_sync,
            "cron.banner_rollup": tasks.announce_rollup,
            "cron.rollup_dirty": self.rollup_dirty,
            "cron.stats_audit": self.audit,
            "cron.parked_heal": self.heal,
            "cron.retention": self.retention,
        }


def schedules(house: House) -> list[Schedule]:
    given = house.settings.banners
    times = {
        "cron.banner_sync": given.schedule_sync_cron,
        "cron.banner_rollup": given.stats_rollup_cron,
        "cron.rollup_dirty": "* * * * *",
        "cron.stats_audit": "*/10 * * * *",
        "cron.parked_heal": "*/5 * * * *",
        "cron.retention": given.retention_cron,
    }
    return [Schedule(id=name, queue=SYSTEM, name=name, cron=cron) for name, cron in times.items()]


def banners_worker(house: House, pulse: Pulse) -> JobWorker:
    return _worker(house, BANNERS, banner_tasks(house).handlers(), pulse)


def system_worker(house: House, pulse: Pulse) -> JobWorker:
    return _worker(house, SYSTEM, SystemTasks(house).handlers(banner_tasks(house)), pulse)


def _worker(house: House, queue: str, handlers: Mapping[str, Any], pulse: Pulse) -> JobWorker:
    given = house.settings.jobs
    return JobWorker(
        house.jobs.queues,
        queue,
        handlers,
        lock_ms=given.lock_ms,
        stalled_ms=given.stalled_ms,
        grace_s=given.grace_s,
        pulse=pulse,
    )


def cron(house: House, pulse: Pulse) -> CronChore:
    return CronChore(Schedulers(house.jobs.queues), schedules(house), pulse=pulse)
