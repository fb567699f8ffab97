"""Jobs of the queues `message_dispatch`, `message_retry` and `webhooks`. Each may run again at any time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from handbill.jobs.model import Job, RetryLater, Unrecoverable
from handbill.kit.errors import Busy
from handbill.messaging.dispatch import QUEUE as DISPATCH
from handbill.messaging.hooks_out import QUEUE as WEBHOOKS
from handbill.messaging.recorder import RETRY_QUEUE as RETRY
from handbill.messaging.service import MessagingService

__all__ = ["DISPATCH", "JOBS", "RETRY", "WEBHOOKS", "MessagingTasks"]

LATER_MS = 2_000
JOBS: dict[str, dict[str, str]] = {
    DISPATCH: {
        "launch": "Write a campaign's audience down, page by page.",
        "turn": "Send for one number, for about a second.",
    },
    RETRY: {"retry": "Try again what was refused for a while, for one number."},
    WEBHOOKS: {
        "deliver": "Deliver one webhook of our own.",
        "refresh": "Ask the provider for a connection's numbers and templates.",
    },
}


class MessagingTasks:
    def __init__(self, messaging: MessagingService) -> None:
        self._messaging = messaging

    async def launch(self, job: Job, ctx: Any) -> int:
        try:
            return await self._messaging.launcher.write(_tenant(job), _id(job, "campaign_id"))
        except Busy as error:  # the segment is being evaluated, or an engine is away: no attempt is lost by it
            raise RetryLater(LATER_MS, error.code) from error

    async def turn(self, job: Job, ctx: Any) -> int:
        tenant_id = _tenant(job)
        done = await self._messaging.dispatcher.turn(tenant_id, str(job.data["number_id"]), _id(job, "turn"))
        if not done.more:
            await self._messaging.keeper.finish(tenant_id)
        return done.begun

    async def retry(self, job: Job, ctx: Any) -> int:
        tenant_id = _tenant(job)
        done = await self._messaging.dispatcher.turn(tenant_id, str(job.data["number_id"]), None, retries=True)
        if not done.more:
            await self._messaging.keeper.finish(tenant_id)
        return done.begun

    def handlers(self) -> Mapping[str, Mapping[str, Any]]:
        webhooks = {"deliver": self._messaging.hook_desk.deliver, "refresh": self._messaging.connections.refresh_job}
        return {
            DISPATCH: {"launch": self.launch, "turn": self.turn},
            RETRY: {"retry": self.retry},
            WEBHOOKS: webhooks,
        }


def _tenant(job: Job) -> int:
    if job.tenant_id is None:
        raise Unrecoverable("a job of messaging names its tenant")
    return job.tenant_id


def _id(job: Job, name: str) -> UUID:
    try:
        return UUID(str(job.data[name]))
    except (KeyError, TypeError, ValueError):
        raise Unrecoverable(f"{name} is missing or no id") from None
