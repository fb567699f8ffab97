"""A background task that follows Redis channels and subscribes again after any error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from handbill.infra.redis.client import Redis
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask


class SubscriptionTask(BackgroundTask):
    """Calls `on_message(channel, message)`; with ("", b"") after each gap, when messages may have been missed.

    `subscribed` is set by the first subscription, also while Redis does not answer yet.
    """

    def __init__(
        self,
        name: str,
        redis: Redis,
        channels: Sequence[str],
        on_message: Callable[[str, bytes], None],
        *,
        health: TaskHealth | None = None,
    ) -> None:
        super().__init__(name, self._receive, health=health)
        self.subscribed = asyncio.Event()
        self._redis = redis
        self._channels = tuple(channels)
        self._on_message = on_message

    async def _receive(self) -> None:
        async with self._redis.subscribe(*self._channels) as messages:
            if self.subscribed.is_set():
                self._on_message("", b"")
            self.subscribed.set()
            self.ready.set()
            self.health.succeeded()  # a message may come much later, or never
            async for channel, message in messages:
                self.health.processed()
                self._on_message(channel, message)
