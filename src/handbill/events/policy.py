"""How the consumer behaves, as data. Every number is a setting."""

from __future__ import annotations

import msgspec


class ConsumerPolicy(msgspec.Struct, frozen=True):
    """`overflow_share` is the part of the time a noisy tenant's lane may work while other lanes have work."""

    batch_events: int = 5_000
    batch_wait_ms: int = 50
    lease_s: float = 6.0
    overflow_share: float = 0.25
    trim_after_s: float = 600.0


class ShippingPolicy(msgspec.Struct, frozen=True):
    """Batches are shipped together: `ship_events` of them or `ship_wait_s` after the first, at most `most_events`.

    `hold_events`: rows that a lane keeps in memory until they are shipped; the others are read from the journal again.
    A lane looks every `look_every_s` for batches that the auditor has sent back.
    Events may be large: at most `hold_bytes` are kept so, and a group is closed by the batch that fills `most_bytes`.
    """

    ship_events: int = 1_000
    ship_wait_s: float = 1.0
    most_events: int = 20_000
    hold_events: int = 20_000
    most_bytes: int = 32 << 20
    hold_bytes: int = 32 << 20
    look_every_s: float = 15.0
