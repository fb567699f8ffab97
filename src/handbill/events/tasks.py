"""Jobs of the queue `requests` about parked events. Each names its request; all else is read from PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from handbill.events.parked_model import ParkedAction
from handbill.events.parked_requests import JOB_NAMES, ParkedRequests
from handbill.jobs.model import Job, RetryLater, request_of

__all__ = ["JOBS", "ParkedTasks"]

JOBS = {
    JOB_NAMES[ParkedAction.REPLAY]: "Send parked events through the pipeline again, some seconds of it at a time.",
    JOB_NAMES[ParkedAction.DROP]: "Delete parked events for good, some seconds of it at a time.",
}

Handler = Callable[[Job, Any], Awaitable[Any]]


class ParkedTasks:
    def __init__(self, requests: ParkedRequests) -> None:
        self._requests = requests

    def handlers(self) -> Mapping[str, Handler]:
        """By the job's name."""
        return dict.fromkeys(JOBS, self.run)

    async def run(self, job: Job, ctx: Any) -> str:
        """Raises RetryLater until the request has ended."""
        turn = await self._requests.run(*request_of(job))
        if turn.again_ms:
            raise RetryLater(turn.again_ms, turn.reason)
        return turn.status

    async def failed(self, job: Job, reason: str, trace: str) -> None:
        """A job that failed for good ends its request, so that nobody waits for it."""
        await self._requests.fail(*request_of(job))
