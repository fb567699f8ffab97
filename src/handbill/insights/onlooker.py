"""Looking at the journal's lanes without a cursor of one's own: from now on, and never more than a little at a time.

Only the events of the tenants that somebody listens to are decoded; entries without any are not even received.
Whoever only looks must not go through the reader's door: a cursor that nobody committed would be taken for a loss.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence

import msgspec

from handbill.events.model import Event, decode, tenant_of
from handbill.infra.journal.newest import NewestEntries
from handbill.infra.redis import Keys, Redis
from handbill.kit.turns import Turns

ENTRIES = 50
MAX_BYTES = 8 << 20
EVENTS = 2_000
"""Of one tenant in one look: more come too fast to be read by anybody."""
_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class Glance(msgspec.Struct, frozen=True):
    """What came since the last look. `skipped` are events of a tenant beyond its newest; `is_behind` says that entries
    were not looked at, which may have events of anybody."""

    events: list[Event]
    skipped: Counter[int] = msgspec.field(default_factory=Counter)
    is_behind: bool = False


class Onlooker:
    def __init__(self, redis: Redis, lanes: Sequence[str], keys: Keys | None = None) -> None:
        self.lanes = tuple(lanes)
        self._entries = NewestEntries(redis, keys or Keys(), max_entries=ENTRIES, max_bytes=MAX_BYTES)
        self._cursors: dict[str, tuple[str, int]] = {}

    async def begin(self) -> None:
        """From now on: what is in the lanes already is not looked at."""
        for lane in self.lanes:
            self._cursors[lane] = await self._entries.position(lane)

    async def look(self, lane: str, tenant_ids: Collection[int]) -> Glance:
        """One lane at a time: entries may be large, and those of all lanes together are many."""
        after, counted = self._cursors[lane]
        newest = await self._entries.read(lane, after, tenant_ids)
        if newest is None:
            return Glance([])
        self._cursors[lane] = (newest.end, newest.total)
        bodies, skipped = await _pick(newest.packed, tenant_ids)
        return Glance(await _decode(bodies), skipped, newest.first > counted)


async def _pick(packed: Sequence[bytes], tenant_ids: Collection[int]) -> tuple[list[bytes], Counter[int]]:
    """The tenants' events in their order, the newest of each; and how many more there are. None is decoded."""
    turns, taken, skipped = Turns(), Counter[int](), Counter[int]()
    bodies: deque[bytes] = deque()
    for entry in reversed(packed):
        for body in reversed(_unpack(entry)):
            tenant_id = tenant_of(body)
            if tenant_id is not None and tenant_id in tenant_ids:
                if taken[tenant_id] < EVENTS:
                    taken[tenant_id] += 1
                    bodies.appendleft(body)
                else:
                    skipped[tenant_id] += 1
        await turns.count(len(entry))
    return list(bodies), skipped


async def _decode(bodies: Sequence[bytes]) -> list[Event]:
    """Bytes that are no event are parked by the pipeline, where they are told; here they are passed over."""
    turns, events = Turns(), list[Event]()
    for body in bodies:
        try:
            events.append(decode(body))
        except msgspec.DecodeError:
            continue
        await turns.count(len(body))
    return events
