"""The table of defaults: one row per queue. A producer's own options win over the row, the row over the last line."""

from __future__ import annotations

import msgspec

from handbill.jobs.model import Backoff, Keep

MINUTE = 60_000
DAY_S = 86_400


class Limit(msgspec.Struct, frozen=True):
    """What one tenant may start in one queue: `rate` a second after a burst, and how its share of the slots weighs.

    With weight w a tenant holds at most w / (w + 1) of a worker's slots while another waits: half of them for 1.
    A rate of 0 means no limit.
    """

    rate: float = 10.0
    burst: int = 10
    weight: float = 1.0


STANDARD = Limit(rate=10, burst=10)
ENTERPRISE = Limit(rate=50, burst=50, weight=2.0)
UNLIMITED = Limit(rate=0, burst=1)


class QueueDefaults(msgspec.Struct, frozen=True):
    """How a queue treats its jobs unless they say otherwise."""

    attempts: int = 3
    backoff: Backoff = Backoff("exponential", delay_ms=MINUTE, jitter=0.2)
    concurrency: int = 10
    keep_completed: Keep = Keep(count=100)
    keep_failed: Keep = Keep(count=1_000, age_s=30 * DAY_S)
    limit: Limit = STANDARD
    timeout_ms: int | None = None


SOON = Backoff("exponential", delay_ms=1_000, jitter=0.2)
AD_SYNC_DELAYS = Backoff("list", delays_ms=(1 * MINUTE, 5 * MINUTE, 15 * MINUTE))

TABLE: dict[str, QueueDefaults] = {
    "banners": QueueDefaults(concurrency=20, keep_completed=Keep(count=100), limit=UNLIMITED),
    "upload_jobs": QueueDefaults(concurrency=2),
    "upload_chunks": QueueDefaults(concurrency=50, limit=Limit(rate=0, burst=1)),
    "import_persistence": QueueDefaults(concurrency=8, limit=Limit(rate=0, burst=1)),
    "stats-sync": QueueDefaults(attempts=4, backoff=AD_SYNC_DELAYS, concurrency=5, keep_failed=Keep(count=50)),
    # One job is a turn of one number; the rate is the sends' own, and so are their retries.
    "message_dispatch": QueueDefaults(backoff=SOON, concurrency=64, keep_completed=Keep(count=1_000), limit=UNLIMITED),
    "message_retry": QueueDefaults(backoff=SOON, concurrency=8, keep_completed=Keep(count=1_000), limit=UNLIMITED),
    "webhooks": QueueDefaults(attempts=8, backoff=Backoff("exponential", delay_ms=5_000, jitter=0.5), concurrency=20),
    # A worker that dies uses an attempt of what it was at.
    "requests": QueueDefaults(attempts=10, backoff=SOON, concurrency=4),
    "system": QueueDefaults(concurrency=4, limit=UNLIMITED),
}
"""Every queue the product itself uses. A queue that is not here gets the plain QueueDefaults()."""


def defaults_of(queue: str) -> QueueDefaults:
    return TABLE.get(queue) or QueueDefaults()
