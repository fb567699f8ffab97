"""The job queues: who handles which job, and what comes back by the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

from handbill.adstats.tasks import CRON as ADSTATS_CRON
from handbill.adstats.tasks import JOBS as ADSTATS_JOBS
from handbill.adstats.tasks import QUEUE as STATS_SYNC
from handbill.adstats.tasks import AdstatsTasks
from handbill.banners.tasks import JOBS as BANNER_JOBS
from handbill.banners.tasks import QUEUE as BANNERS
from handbill.banners.tasks import BannerTasks
from handbill.contacts.tasks import JOBS as CONTACT_JOBS
from handbill.contacts.tasks import ContactTasks
from handbill.events.tasks import JOBS as PARKED_JOBS
from handbill.events.tasks import ParkedTasks
from handbill.jobs.chores import CronChore
from handbill.jobs.cron import Schedule, Schedulers
from handbill.jobs.model import Job
from handbill.jobs.worker import JobWorker
from handbill.jobs.worker.pool import CpuPool
from handbill.kit.telemetry import logs, metrics
from handbill.messaging.tasks import DISPATCH, RETRY, WEBHOOKS, MessagingTasks
from handbill.messaging.tasks import JOBS as MESSAGE_JOBS
from handbill.tenants.tasks import JOBS as PERSON_JOBS
from handbill.tenants.tasks import QUEUE as REQUESTS
from handbill.tenants.tasks import PersonTasks
from handbill.wiring import shipping
from handbill.wiring.house import House

_log = logs.get("jobs.system")
SYSTEM = "system"
JOBS = {
    "cron.banner_sync": "Announce the schedule sync of this minute.",
    "cron.banner_rollup": "Announce the roll-up of yesterday.",
    "cron.rollup_dirty": "Recount past days that late events touched.",
    "cron.stats_audit": "Compare a few days of the stats with a recount, and look for days that were never rolled up.",
    "cron.parked_heal": "Send events that the database refused through the pipeline again, three times at most.",
    "cron.contacts_sweep": "Cancel unstarted uploads that expired; remove old uploaded files and ended suppressions.",
    "cron.campaign_poll": "Begin campaigns whose time has come, fairly; end those that are over; ring idle numbers.",
    "cron.messaging_upkeep": "Measure fairness, forget worked-off webhooks.",
    "cron.connections": "Ask the providers again about numbers and templates.",
    "cron.retention": "Make months ahead, drop old months, forget old keys, corrections and replayed events.",
    **ADSTATS_CRON,
}
"""The jobs of the queue `system`, each started by the clock."""

CATALOGUE: dict[str, dict[str, str]] = {
    BANNERS: BANNER_JOBS,
    **CONTACT_JOBS,
    **MESSAGE_JOBS,
    STATS_SYNC: ADSTATS_JOBS,
    REQUESTS: {**PERSON_JOBS, **PARKED_JOBS},
    SYSTEM: JOBS,
}
"""Every queue of the product and the jobs it carries, for the reference page."""

HOOK_LOG = timedelta(days=30)
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
        self._messaging = house.messaging
        self._clock = house.clock
        self._history = shipping.history(house)
        self._adstats = AdstatsTasks(house.adstats, house.clock)
        self._contacts = house.contacts
        self._dropped = 0

    async def contacts_sweep(self, job: Job, ctx: Any) -> int:
        return await self._contacts.sweep()

    async def rollup_dirty(self, job: Job, ctx: Any) -> int:
        return len(await self._banners.rollup.dirty(rest=DIRTY_REST))

    async def audit(self, job: Job, ctx: Any) -> int:
        await self._banners.rollup.stale_days()
        return await self._banners.rollup.audit()

    async def heal(self, job: Job, ctx: Any) -> int:
        return await self._events.dead.heal()

    async def retention(self, job: Job, ctx: Any) -> int:
        """Every step by itself; raises at the end when one of them failed, so that the job is tried again and told."""
        now = self._clock.now()
        await _run_steps(
            {
                "event_keys": lambda: self._events.forget_keys(now),
                "sequence_corrections": lambda: self._events.forget_sequence_corrections(now),
                "replayed_events": lambda: self._events.forget_replayed(now),
                "parked_requests": lambda: self._events.parked_requests.prune(now),
                "history": self._history.run,
                "banners": self._run_banner_retention,
            }
        )
        return self._dropped

    async def _run_banner_retention(self) -> None:
        self._dropped = len((await self._banners.retention.run()).dropped)

    async def campaign_poll(self, job: Job, ctx: Any) -> int:
        return len(await self._messaging.keeper.poll())

    async def connections(self, job: Job, ctx: Any) -> int:
        return await self._messaging.connections.queue_all()

    async def messaging_upkeep(self, job: Job, ctx: Any) -> int:
        await self._messaging.fairness.measure()
        await self._messaging.hook_desk.forget(self._clock.now() - HOOK_LOG)
        return await self._messaging.keeper.forget()

    def handlers(self, tasks: BannerTasks) -> Mapping[str, Any]:
        return {
            "cron.banner_sync": tasks.announce_sync,
            "cron.banner_rollup": tasks.announce_rollup,
            "cron.rollup_dirty": self.rollup_dirty,
            "cron.stats_audit": self.audit,
            "cron.parked_heal": self.heal,
            "cron.contacts_sweep": self.contacts_sweep,
            "cron.campaign_poll": self.campaign_poll,
            "cron.messaging_upkeep": self.messaging_upkeep,
            "cron.connections": self.connections,
            "cron.retention": self.retention,
            **self._adstats.cron_handlers(),
        }


async def _run_steps(steps: Mapping[str, Callable[[], Awaitable[Any]]]) -> None:
    """Run all steps, whatever one of them raises. An ExceptionGroup at the end has the errors."""
    errors: list[Exception] = []
    for step, run in steps.items():
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - raised below, after the other steps had their turn
            _log.error("retention.step_failed", step=step, error=f"{type(error).__name__}: {error}")
            metrics.RETENTION_STEPS_FAILED.labels(step).inc()
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(steps)} steps failed", errors)


def schedules(house: House) -> list[Schedule]:
    given = house.settings.banners
    times = {
        "cron.banner_sync": given.schedule_sync_cron,
        "cron.banner_rollup": given.stats_rollup_cron,
        "cron.rollup_dirty": "* * * * *",
        "cron.stats_audit": "*/10 * * * *",
        "cron.parked_heal": "*/5 * * * *",
        "cron.contacts_sweep": "17 * * * *",
        "cron.campaign_poll": "* * * * *",
        "cron.messaging_upkeep": "* * * * *",
        "cron.connections": "17 * * * *",
        "cron.retention": given.retention_cron,
        "cron.adstats": house.settings.adstats.sync_cron,
        "cron.adstats_retention": given.retention_cron,
    }
    return [Schedule(id=name, queue=SYSTEM, name=name, cron=cron) for name, cron in times.items()]


def banners_worker(house: House) -> JobWorker:
    return _worker(house, BANNERS, banner_tasks(house).handlers())


def system_worker(house: House) -> JobWorker:
    return _worker(house, SYSTEM, SystemTasks(house).handlers(banner_tasks(house)))


def stats_sync_worker(house: House) -> JobWorker:
    return _worker(house, STATS_SYNC, AdstatsTasks(house.adstats, house.clock).handlers())


def requests_worker(house: House) -> JobWorker:
    people = PersonTasks(house.tenants.erasures, house.tenants.exports)
    parked = ParkedTasks(house.events.parked_requests)

    async def failed(job: Job, reason: str, trace: str) -> None:
        await (parked if job.name in PARKED_JOBS else people).failed(job, reason, trace)

    return _worker(house, REQUESTS, {**people.handlers(), **parked.handlers()}, on_failed=failed)


class ImportWorkers:
    """The three queues of an import, and the processes that parse for them; they start and stop as one chore."""

    def __init__(self, house: House) -> None:
        self._pool = CpuPool(house.settings.contacts.parsers or None, house.settings.contacts.parser_memory_mb << 20)
        tasks = ContactTasks(house.contacts.runner, self._pool.run)
        self.ready = asyncio.Event()
        # Parsing waits for a process anyway: more chunks at once would only fill the memory.
        lanes = {"upload_jobs": 2, "upload_chunks": self._pool.size + 1, "import_persistence": 2}
        self._workers = [
            _worker(house, queue, handlers, concurrency=lanes[queue], on_failed=tasks.failed)
            for queue, handlers in tasks.handlers().items()
        ]

    async def start(self) -> None:
        for worker in self._workers:
            await worker.start()
            await worker.ready.wait()
        self.ready.set()

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        await self._pool.stop()


def dispatch_worker(house: House) -> JobWorker:
    handlers = MessagingTasks(house.messaging).handlers()[DISPATCH]
    return _worker(house, DISPATCH, handlers, concurrency=house.settings.messaging.dispatch_concurrency)


def retry_worker(house: House) -> JobWorker:
    return _worker(house, RETRY, MessagingTasks(house.messaging).handlers()[RETRY])


def webhooks_worker(house: House) -> JobWorker:
    return _worker(house, WEBHOOKS, MessagingTasks(house.messaging).handlers()[WEBHOOKS])


def _worker(house: House, queue: str, handlers: Mapping[str, Any], **how: Any) -> JobWorker:
    given = house.settings.jobs
    return JobWorker(
        house.jobs.queues,
        queue,
        handlers,
        lock_ms=given.lock_ms,
        stalled_ms=given.stalled_ms,
        grace_s=given.grace_s,
        **how,
    )


def cron(house: House) -> CronChore:
    return CronChore(Schedulers(house.jobs.queues), schedules(house))
