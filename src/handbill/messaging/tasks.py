"""Jobs of the queues `message_dispatch`, `message_retry` and `webhooks`. Each may run again at any time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from handbill.jobs.model import Job, RetryLater, Unrecoverable
from handbill.kit.errors import Busy, Conflict, HandbillError, Invalid, NotFound, Throttled, Unprocessable
from handbill.messaging.dispatch import QUEUE as DISPATCH
from handbill.messaging.hooks_out import QUEUE as WEBHOOKS
from handbill.messaging.recorder import RETRY_QUEUE as RETRY
from handbill.messaging.service import MessagingService
from handbill.messaging.singles.model import NewMessage
from handbill.messaging.singles.service import Request

__all__ = ["DISPATCH", "JOBS", "RETRY", "WEBHOOKS", "MessagingTasks"]

LATER_MS = 2_000
JOBS: dict[str, dict[str, str]] = {
    DISPATCH: {
        "launch": "Write a campaign's audience down, page by page.",
        "turn": "Send for one number, for about a second.",
        "send": "Accept one single message of another program, and send it.",
        "send_waiting": "Send the single messages that wait for one number.",
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

    async def send(self, job: Job, ctx: Any) -> dict[str, Any]:
        """A job of another program: `docs/queues.md` says what it holds. What cannot be accepted fails for good."""
        tenant_id = _tenant(job)
        new, request = single_of(job)
        try:
            made = await self._messaging.singles.send(tenant_id, new, request)
        except Throttled as error:
            raise RetryLater(int((error.retry_after or 10) * 1000), error.code) from error
        except (Invalid, NotFound, Unprocessable, Conflict) as error:
            raise Unrecoverable(_words(error)) from None
        await self._messaging.single_dispatcher.send_waiting(tenant_id, made.number_id)
        now = await self._messaging.singles.read(tenant_id, made.message_id)
        return {"message_id": str(now.message_id), "state": now.state, "reason": now.reason}

    async def send_waiting(self, job: Job, ctx: Any) -> int:
        turn = _id(job, "turn") if isinstance(job.data, dict) and "turn" in job.data else None
        number_id = str(job.data["number_id"])
        done = await self._messaging.single_dispatcher.send_waiting(_tenant(job), number_id, turn)
        return done.begun

    async def retry(self, job: Job, ctx: Any) -> int:
        tenant_id = _tenant(job)
        await self._messaging.single_dispatcher.send_waiting(tenant_id, str(job.data["number_id"]))
        done = await self._messaging.dispatcher.turn(tenant_id, str(job.data["number_id"]), None, retries=True)
        if not done.more:
            await self._messaging.keeper.finish(tenant_id)
        return done.begun

    def handlers(self) -> Mapping[str, Mapping[str, Any]]:
        webhooks = {"deliver": self._messaging.hook_desk.deliver, "refresh": self._messaging.connections.refresh_job}
        return {
            DISPATCH: {
                "launch": self.launch,
                "turn": self.turn,
                "send": self.send,
                "send_waiting": self.send_waiting,
            },
            RETRY: {"retry": self.retry},
            WEBHOOKS: webhooks,
        }


def single_of(job: Job) -> tuple[NewMessage, Request]:
    """The message that another program's job asks for. Raises Unrecoverable with every fault of the payload."""
    try:
        new = msgspec.convert(job.data, NewMessage)
    except msgspec.ValidationError as error:
        raise Unrecoverable(f"the payload cannot be read: {error}") from None
    key = new.idempotency_key or _key_of(job)
    if len(key) > 200 or not key.isascii() or not key.isprintable():
        raise Unrecoverable("idempotency_key: must be 1 to 200 printable ASCII characters")
    return new, Request(key, "job", f"job {DISPATCH}", keep_refused=True)


def _key_of(job: Job) -> str:
    """The producer's own id names the message. A number that the queue counted comes again once Redis was emptied."""
    return f"job:{job.wire_id}:{job.timestamp}" if job.wire_id.isdecimal() else f"job:{job.wire_id}"


def _words(error: HandbillError) -> str:
    faults = "; ".join(f"{fault.field}: {fault.reason}" for fault in error.faults)
    return f"{error.code}: {error.detail}" + (f" ({faults})" if faults else "")


def _tenant(job: Job) -> int:
    if job.tenant_id is None:
        raise Unrecoverable("a job of messaging names its tenant")
    return job.tenant_id


def _id(job: Job, name: str) -> UUID:
    try:
        return UUID(str(job.data[name]))
    except (KeyError, TypeError, ValueError):
        raise Unrecoverable(f"{name} is missing or no id") from None
