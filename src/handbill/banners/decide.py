"""Which banners a user sees now: one pure choice over a plan, and the one question to the caps that it needs.

Every route that shows something decides here. When Redis is away, or refuses to answer, PostgreSQL is asked, at most
fifty at a time; when that is away or full too, this process remembers the caps it saw last for the user; when it does
not, nothing is shown. Each step down is metered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from sys import getsizeof
from typing import Any

import msgspec

from handbill.active_hours.model import NOT_LEARNT, Profile, is_peak, level_of
from handbill.banners.catalogue import Catalogue, Snapshot
from handbill.banners.plan import CLICKS, Entry, Plan, Slot, bits_of
from handbill.banners.rates import Rates
from handbill.banners.targeting.context import minute_of_week
from handbill.banners.targeting.nodes import MINUTES_A_DAY
from handbill.caps.model import Viewer
from handbill.caps.service import Caps, CapsService
from handbill.kit.bounds import VIEWER_CAPS
from handbill.kit.caches import GenerationCache
from handbill.kit.errors import Broken, Busy, EngineRefused
from handbill.kit.telemetry import logs, metrics
from handbill.segments.service import ACTIVE_HOURS, Known

_log = logs.get("banners")
_RULE_COST = 20
_QUICK = 500
_AGAIN = 5
"""How often the next best is tried when a strict banner gets no slot."""

Slots = Sequence[tuple[Slot, int]]
_Key = tuple[int, str, str | None, str | None]


class Ask(msgspec.Struct, frozen=True):
    """For whom, when, under which circumstances; `values` are what targeting reads.

    `missing` is what rules ask of the person and nobody can answer for now. `hours` is what is learnt of the person's.
    """

    viewer: Viewer
    now_ms: int
    values: Mapping[str, Any]
    missing: frozenset[str] = frozenset()
    hours: Profile | None = None

    @property
    def user(self) -> str:
        return self.viewer.user_id


class Shown(msgspec.Struct, frozen=True):
    """What was chosen for each slot, and the leases of strict banners by their bits."""

    entries: list[list[Entry]]
    leases: Mapping[int, int] = {}


class Decider:
    """`seed` belongs to the installation: with the same seed and clock the same question has the same answer."""

    def __init__(
        self,
        catalogue: Catalogue,
        caps: CapsService,
        rates: Rates | None,
        *,
        seed: bytes = b"",
        known: Known | None = None,
        clicks: str = CLICKS,
    ) -> None:
        self._clicks = clicks
        self._known = known
        self._catalogue = catalogue
        self._caps = caps
        self._rates = rates
        self._seed = seed
        self._plans: dict[int, Plan] = {}
        self._making: dict[int, asyncio.Task[Plan]] = {}
        self._failed: dict[int, Snapshot] = {}
        """Catalogs for which no plan could be made: not tried again until they change."""
        # Stored on every decision. With more users than fit, medians of CPU time: 3.1 us here, 4.8 us in an LruCache,
        # 1.5 us in dicts that count no bytes; a decision takes about 130 us.
        self._last_seen: GenerationCache[_Key, Caps] = GenerationCache(VIEWER_CAPS, _remembered_bytes)

    async def plan(self, tenant_id: int) -> Plan:
        """The tenant's plan. While a large one is made anew, beside the loop, the one before it stands in."""
        snapshot = self._catalogue.tenant(tenant_id)
        plan = self._plans.get(tenant_id)
        if plan is not None and plan.snapshot is snapshot:
            return plan
        if not snapshot.version:
            return Plan(snapshot)  # a tenant without a catalogue is not worth remembering
        if self._failed.get(tenant_id) is snapshot:
            return plan or _plan_without_banners(snapshot)
        if _quick(snapshot, plan):
            try:
                return self._ready(Plan(snapshot, plan.pieces if plan is not None else None, self._clicks))
            except Exception as error:  # noqa: BLE001 - counted and logged; decisions go on with the plan before it
                self._on_failed(snapshot, error)
                return plan or _plan_without_banners(snapshot)
        making = self._making.get(tenant_id)
        if making is None:
            making = self._making[tenant_id] = asyncio.create_task(self._made(snapshot, plan), name="plan")
            making.add_done_callback(partial(self._on_made, snapshot))
        if plan is not None:
            return plan
        await asyncio.wait((making,))
        return making.result() if making.exception() is None else _plan_without_banners(snapshot)

    async def stop(self) -> None:
        """Let plans that are being made come to their end: a thread cannot be called back."""
        await asyncio.gather(*self._making.values(), return_exceptions=True)

    async def _made(self, snapshot: Snapshot, before: Plan | None) -> Plan:
        pieces = before.pieces if before is not None else None
        return self._ready(await asyncio.to_thread(Plan, snapshot, pieces, self._clicks))

    def _on_made(self, snapshot: Snapshot, making: asyncio.Task[Plan]) -> None:
        self._making.pop(snapshot.tenant_id, None)
        if not making.cancelled() and (error := making.exception()) is not None:
            self._on_failed(snapshot, error)

    def _on_failed(self, snapshot: Snapshot, error: BaseException) -> None:
        self._failed[snapshot.tenant_id] = snapshot
        metrics.PLANS_FAILED.inc()
        metrics.BANNERS_LEFT_OUT.inc(len(snapshot.banners))
        error_text = f"{type(error).__name__}: {error}"
        _log.error("banners.plan_failed", tenant_id=snapshot.tenant_id, error=error_text)

    def _ready(self, plan: Plan) -> Plan:
        tenant_id = plan.snapshot.tenant_id
        self._plans[tenant_id] = plan
        self._failed.pop(tenant_id, None)
        if self._rates is not None:
            self._rates.want(tenant_id, wanted=plan.ranks_by_ctr)
        return plan

    async def decided(self, plan: Plan, slots: Slots, ask: Ask) -> Shown:
        mask = self.candidates(plan, ask)
        caps = await self.caps(plan, mask, slots, ask) if mask else None
        if caps is None:
            return Shown([[] for _ in slots])
        if plan.people is not None:
            mask, ask = self.met(plan, mask, ask, caps)
        if not plan.strict:
            return Shown(self.choose(plan, mask, slots, ask, caps))
        return await self.leased(plan, mask, slots, ask, caps)

    def candidates(self, plan: Plan, ask: Ask) -> int:
        """Banners that are on, and whose shared rules hold."""
        mask = plan.open(ask.now_ms)
        return plan.index.narrowed(mask, ask.values) if mask else 0

    def met(self, plan: Plan, mask: int, ask: Ask, caps: Caps) -> tuple[int, Ask]:
        """The same once the person is known: its value came beside the caps."""
        people = plan.people
        if people is None:
            return mask, ask
        found: dict[str, Any] = {}
        missing = people.needs
        if people.needs and self._known is not None:
            found, missing = self._known.read(ask.viewer.tenant_id, ask.user, caps.beside, people.needs)
        hours = found.get(ACTIVE_HOURS)
        found[ACTIVE_HOURS] = _level_now(hours, ask.now_ms) if hours is not None else NOT_LEARNT
        ask = Ask(ask.viewer, ask.now_ms, {**ask.values, **found}, missing, hours)
        return people.narrowed(mask, ask.values, missing), ask

    async def caps(self, plan: Plan, mask: int, slots: Slots, ask: Ask) -> Caps | None:
        """What the user has seen; None when nobody can tell."""
        viewer = ask.viewer
        key = (viewer.tenant_id, viewer.user_id, viewer.device_id, viewer.session_id)
        beside: Sequence[bytes] = ()
        if plan.people is not None and plan.people.needs and self._known is not None:
            beside = self._known.keys(viewer.tenant_id, viewer.user_id)
        try:
            caps = await self._caps.look(viewer, plan.kinds, beside)
            if (plan.raised or not caps.sure) and _unsure(plan, mask, slots, ask, caps):
                along = caps.beside
                caps = await self._caps.completed(viewer, plan.kinds, caps)
                caps.beside = along
        except (Busy, Broken, EngineRefused):
            last = self._last_seen.get(key)
            metrics.DECIDE_FALLBACK.labels("empty" if last is None else "memory").inc()
            return last
        self._last_seen[key] = caps
        return caps

    async def leased(self, plan: Plan, mask: int, slots: Slots, ask: Ask, caps: Caps) -> Shown:
        """The same choice where some caps are strict: what has no lease is not shown, and the next best stands in."""
        found: list[list[Entry]] = []
        leases: dict[int, int] = {}
        for slot, limit in slots:
            picked = self._picked(plan, mask & slot.mask, slot, limit, ask, caps)
            for _ in range(_AGAIN):
                refused = await self._refused(picked, slot, ask, caps, leases)
                if not refused:
                    break
                mask &= ~refused
                picked = self._picked(plan, mask & slot.mask, slot, limit, ask, caps)
            for entry in picked:
                mask &= ~(1 << entry.bit)
            found.append([entry for entry in picked if not entry.strict or entry.bit in leases])
        return Shown(found, leases)

    def choose(self, plan: Plan, mask: int, slots: Slots, ask: Ask, caps: Caps) -> list[list[Entry]]:
        """For each slot up to its number of banners, best first; no banner twice. It holds nothing for anybody."""
        found = []
        for slot, limit in slots:
            picked = self._picked(plan, mask & slot.mask, slot, limit, ask, caps)
            for entry in picked:
                mask &= ~(1 << entry.bit)
            found.append(picked)
        return found

    async def _refused(self, picked: Sequence[Entry], slot: Slot, ask: Ask, caps: Caps, leases: dict[int, int]) -> int:
        """Ask a slot for each strict banner that has none yet. The bits of those that got none."""
        wanted: dict[int, list[Entry]] = {}
        for entry in picked:
            if entry.strict and entry.bit not in leases:
                wanted.setdefault(entry.lease_ms, []).append(entry)
        refused = 0
        for lease_ms, entries in wanted.items():
            asked = [(entry.bit, entry.rules + slot.rules) for entry in entries]
            granted = await self._caps.lease(ask.viewer, asked, ask.now_ms, ask.now_ms + lease_ms, caps)
            leases.update(granted)
            refused |= sum(1 << entry.bit for entry in entries if entry.bit not in granted)
        return refused

    def _picked(self, plan: Plan, mask: int, slot: Slot, limit: int, ask: Ask, caps: Caps) -> list[Entry]:
        picked: list[Entry] = []
        entries, allows, values, now_ms = plan.entries, plan.index.allows, ask.values, ask.now_ms
        if slot.rules and not caps.free(slot.rules, now_ms):
            return picked
        for bit in self._ranked(plan, mask, slot, ask, caps):
            entry = entries[bit]
            if entry.holds_out and entry.held_out(ask.user):
                continue
            if not allows(bit, values) or not caps.free(entry.rules, now_ms):
                continue
            if entry.strict and not _unheld(entry, slot, caps, now_ms):
                continue
            picked.append(entry)
            if len(picked) == limit:
                break
        return picked

    def _ranked(self, plan: Plan, mask: int, slot: Slot, ask: Ask, caps: Caps) -> Iterable[int]:
        if slot.order.settled:
            return bits_of(mask)
        entries = plan.entries
        rates = self._rates.of(ask.viewer.tenant_id) if self._rates is not None else {}
        peak = is_peak(ask.values.get(ACTIVE_HOURS, NOT_LEARNT))
        return slot.order.sorted(
            list(bits_of(mask)), self._drawing(ask), rates, lambda bit: entries[bit].seen(caps), peak=peak
        )

    def _drawing(self, ask: Ask) -> int:
        text = f"{ask.viewer.tenant_id}\0{ask.now_ms}\0{ask.user}".encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(text, digest_size=8, key=self._seed[:64]).digest(), "big")


def _remembered_bytes(key: _Key, caps: Caps) -> int:
    _, user, device, session = key
    return getsizeof(user) + getsizeof(device) + getsizeof(session) + caps.size


def _plan_without_banners(snapshot: Snapshot) -> Plan:
    """Where no plan could be made, and none was made before: nothing is shown at any of the tenant's places."""
    return Plan(msgspec.structs.replace(snapshot, banners=(), by_id={}))


def _quick(snapshot: Snapshot, before: Plan | None) -> bool:
    """Whether the plan is made in a few milliseconds: then it is made at once. A rule costs far more than a place."""
    pieces = before.pieces if before is not None else {}
    fresh = sum(
        1 for banner in snapshot.banners if (kept := pieces.get(banner.id)) is None or kept.version != banner.version
    )
    return fresh * _RULE_COST + len(snapshot.banners) <= _QUICK


def _level_now(hours: Profile, now_ms: int) -> int:
    """How busy this hour is for the user. The time of day in a zone is remembered for the minute."""
    return level_of(hours, minute_of_week(hours.zone, now_ms // 60_000) % MINUTES_A_DAY // 60)


def _unheld(entry: Entry, slot: Slot, caps: Caps, now_ms: int) -> bool:
    """Whether a strict banner has a slot that no earlier decision holds."""
    return caps.verdict(entry.rules + slot.rules, now_ms, strict=True).eligible


def _unsure(plan: Plan, mask: int, slots: Slots, ask: Ask, caps: Caps) -> bool:
    """Whether a yes could rest on views that only PostgreSQL knows."""
    for slot, _ in slots:
        for bit in bits_of(mask & slot.mask):
            if caps.unsure(plan.entries[bit].rules + slot.rules, ask.now_ms):
                return True
    return False
