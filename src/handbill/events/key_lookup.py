"""Which events are counted already, asked by hot routes: one statement for all that ask meanwhile, in bounded time.

PostgreSQL may be away or slow, and a hot route must not wait for it: after a look-up without an answer there are none
for a moment, and whoever asks learns at once that nobody knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from handbill.events.reader import EventReader
from handbill.infra.postgres import Database, PostgresError
from handbill.kit.batcher import Batcher, BatchLimits
from handbill.kit.errors import Busy
from handbill.kit.telemetry import logs, metrics

_log = logs.get("events")
PAUSE_S = 1.0
"""After a look-up without an answer the next one waits so long; whoever asks meanwhile is not kept."""
_KEY_BYTES = 100
_LIMITS = BatchLimits(waiting_items=10_000, waiting_bytes=2 << 20, batch_items=500, batch_bytes=1 << 20)
_FIRST, _COPY, _UNANSWERED = (metrics.EVENTS_KEY_LOOKUPS.labels(each) for each in ("first", "copy", "unanswered"))

Key = tuple[int, bytes]
"""(tenant, key)"""


class KeyLookup:
    def __init__(self, database: Database, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._reader = EventReader()
        self._batcher: Batcher[Key, bool] = Batcher(self._look_up, lambda key: _KEY_BYTES, _LIMITS)
        self._paused_until: float | None = None

    async def is_counted(self, tenant_id: int, key: bytes) -> bool | None:
        """Whether this event was counted before. None: PostgreSQL did not say so in time."""
        try:
            if self._is_paused():
                raise _paused()
            counted = await self._batcher.submit((tenant_id, key))
        except (Busy, PostgresError):
            _UNANSWERED.inc()
            return None
        (_COPY if counted else _FIRST).inc()
        return counted

    async def _look_up(self, keys: Sequence[Key]) -> list[bool]:
        if self._is_paused():
            raise _paused()
        try:
            counted = await self._database.hot.run(lambda: self._select(keys), has_fallback=True)
        except (Busy, PostgresError) as error:
            self._paused_until = self._monotonic() + PAUSE_S
            _log.debug("events.key_lookup_unanswered", keys=len(keys), error=type(error).__name__)
            # Busy to all of them: halving the batch would only ask again.
            raise _paused() from error
        return [key in counted for key in keys]

    async def _select(self, keys: Sequence[Key]) -> set[Key]:
        async with self._database.worker() as tx:
            return await self._reader.counted_among(tx, keys)

    def _is_paused(self) -> bool:
        return self._paused_until is not None and self._monotonic() < self._paused_until


def _paused() -> Busy:
    return Busy("PostgreSQL was asked in vain a moment ago; nothing was looked up.", retry_after=PAUSE_S)
