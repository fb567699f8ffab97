"""How many rejected events may be parked, per tenant, and when the installation is at fault instead of a tenant.

Each tenant has its own budget. A tenant above it does not stop its lane: its events of that batch are parked together.
A wrong setting or a half-done migration makes the database reject everybody's events, and parking all of them would
look like work done. So while more tenants are above their budget than had events counted, nothing is parked.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping

ALWAYS = 20
"""So many rows of a tenant in one batch may be parked whatever the share: a small batch may consist of nothing else."""
WINDOW_S = 600.0
WINDOW_ALWAYS = 200
"""So many rows of a tenant in ten minutes may be parked whatever the share."""
SLOT_S = 60.0
"""The window moves in steps of this length, which bounds what is remembered per tenant."""


class Flood:
    """What one process has counted and parked in the last ten minutes, by tenant."""

    def __init__(self) -> None:
        self._slots: deque[tuple[float, Counter[int], Counter[int]]] = deque()
        self._counted: Counter[int] = Counter()
        self._parked: Counter[int] = Counter()
        self._flooding: dict[int, float] = {}

    def note(self, now: float, counted: Mapping[int, int], parked: Mapping[int, int]) -> None:
        """Remember a committed batch. A tenant with counted rows and no parked ones floods no longer."""
        if not self._slots or now - self._slots[-1][0] >= SLOT_S:
            self._slots.append((now, Counter(), Counter()))
        _, slot_counted, slot_parked = self._slots[-1]
        for tenant_id, rows in counted.items():
            slot_counted[tenant_id] += rows
            self._counted[tenant_id] += rows
            if rows and not parked.get(tenant_id):
                self._flooding.pop(tenant_id, None)
        for tenant_id, rows in parked.items():
            slot_parked[tenant_id] += rows
            self._parked[tenant_id] += rows
        self._expire(now)

    def budget(self, now: float, tenant_id: int, rows: int) -> int:
        """How many of this tenant's `rows` in a batch may be parked one by one now."""
        self._expire(now)
        share = max(WINDOW_ALWAYS, self._counted[tenant_id]) - self._parked[tenant_id]
        return min(max(ALWAYS, rows // 2), max(share, 0))

    def is_installation_fault(self, now: float, flooding: Collection[int], accepted: Collection[int]) -> bool:
        """Are more tenants above their budget than had rows accepted, in this batch or in the window?

        With no other tenant to compare with, one tenant's flood is taken for a fault of the installation.
        """
        self._expire(now)
        for tenant_id in flooding:
            self._flooding[tenant_id] = now
        healthy = {*(tenant_id for tenant_id, rows in self._counted.items() if rows), *accepted} - self._flooding.keys()
        return len(self._flooding) > len(healthy)

    def flooding(self, now: float) -> int:
        """How many tenants were above their budget in the window."""
        self._expire(now)
        return len(self._flooding)

    def _expire(self, now: float) -> None:
        while self._slots and self._slots[0][0] < now - WINDOW_S:
            _, counted, parked = self._slots.popleft()
            self._counted = Counter({key: left for key, n in self._counted.items() if (left := n - counted[key]) > 0})
            self._parked = Counter({key: left for key, n in self._parked.items() if (left := n - parked[key]) > 0})
        if self._flooding:
            self._flooding = {key: at for key, at in self._flooding.items() if at >= now - WINDOW_S}
