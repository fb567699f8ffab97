"""Entries of the compatibility stream as events: when they are drained, and when a parked one is tried again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from handbill.events.dialects.canon import Moment, Refused, Terms
from handbill.events.dialects.collect import Warned
from handbill.events.dialects.flat import DIALECT, flat_event
from handbill.events.model import HORIZON_DAYS, CapturedEvent, Reason
from handbill.events.reader import ParkedBody
from handbill.kit.bounds import ID_MAX, PROJECTS
from handbill.kit.caches import TtlCache
from handbill.kit.clock import Clock, to_ms
from handbill.kit.errors import Forbidden, NotFound, Unauthorized
from handbill.tenants.service import TenantService

_FRESH_S = 5.0
_HORIZON_MS = HORIZON_DAYS * 86_400_000
_flat = msgspec.json.Decoder(dict[str, str])


class NoEvent(Exception):
    """The entry is no event that may come in; `tenant` is whose it would have been, as far as that is known."""

    def __init__(self, reason: Reason, detail: str, tenant: int | None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.tenant = tenant


class Entries:
    def __init__(self, tenants: TenantService, clock: Clock) -> None:
        self._tenants = tenants
        self._clock = clock
        self._projects: TtlCache[str, int | None] = TtlCache(PROJECTS, _FRESH_S, clock.monotonic)

    async def event(self, sent: Mapping[str, str], entry: str, received: int, warned: Warned) -> CapturedEvent:
        """Adds to `warned` what is left out of the event. Raises NoEvent with the reason."""
        tenant = await self._tenant(sent)
        try:
            privacy = (await self._tenants.directory.profile(tenant)).settings.privacy
        except Unauthorized as error:  # the tenant is gone; its name is remembered for some seconds
            raise _unknown(error.detail) from None
        moment = Moment(received, lambda: f"{DIALECT}:{entry}")
        try:
            event = flat_event(sent, entry, moment, Terms(tenant, privacy.truncate_ip), warned)
        except Refused as refused:
            raise NoEvent(refused.reason, "a field of the entry", tenant) from None
        if event.at < received - _HORIZON_MS:
            raise NoEvent(Reason.TOO_OLD, "older than the horizon of deduplication", tenant)
        return event

    async def again(self, parked: ParkedBody) -> CapturedEvent | None:
        """A parked entry, read as it would have been when it came. None: it is no entry, or still no event."""
        try:
            sent = _flat.decode(parked.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if parked.event_id is None:  # bytes of the journal that happen to look like one
            return None
        added = parked.id.int >> 80  # its id is made of the moment that the entry's own id tells
        received = received_at(added, to_ms(parked.parked_at))
        try:
            event = await self.event(sent, parked.event_id.removeprefix(f"{DIALECT}:"), received, [])
        except NoEvent:
            return None
        if parked.tenant_id not in (None, event.tenant):  # the name is another's by now
            return None
        return event

    async def _tenant(self, sent: Mapping[str, str]) -> int:
        """By the write key, else by the project: its number or its slug."""
        key = sent.get("api_key") or sent.get("write_key") or sent.get("token")
        if key:
            try:
                principal = await self._tenants.directory.write_key(key)
            except Forbidden as error:
                raise _unknown(error.detail) from None
            if principal is None:
                raise _unknown("the write key is not known")
            return principal.tenant_id
        name = sent.get("project_id") or sent.get("tenant_id") or ""
        number = await self._project(name) if 0 < len(name) <= ID_MAX else None
        if number is None:
            raise _unknown("the project is not known, or suspended")
        return number

    async def _project(self, name: str) -> int | None:
        """The tenant's number, as it was a few seconds ago at the most."""
        if name in self._projects:
            return self._projects[name]
        try:
            tenant = await self._tenants.find_tenant(name)
        except NotFound:
            number = None
        else:
            number = None if tenant.status == "suspended" else tenant.tenant_id
        self._projects[name] = number
        return number


def received_at(added: int, now: int) -> int:
    """When the entry was added, by Redis' own clock; a producer that made its ids up gets our time."""
    return added if now - _HORIZON_MS < added <= now else now


def _unknown(detail: str) -> NoEvent:
    return NoEvent(Reason.UNKNOWN_OBJECT, detail, None)
