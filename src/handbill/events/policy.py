"""How the consumer behaves, as data. Every number is a setting."""

from __future__ import annotations

import msgspec


class ConsumerPolicy(msgspec.Struct, frozen=True):
    """`overflow_share` is the part of the time a noisy tenant's lane may work while it has a backlog."""

    batch_events: int = 5_000
    batch_wait_ms: int = 50
    lease_s: float = 6.0
    overflow_share: float = 0.25
    trim_after_s: float = 600.0
