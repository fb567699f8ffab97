"""Why was this banner shown, or not, and when may it be next: the same decision, told banner by banner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from handbill.active_hours.model import MIN_EVENTS, MIN_SPAN_MS, hour_at, next_open, open_hours
from handbill.banners.decide import Ask, Decider, Shown, Slots
from handbill.banners.model import Banner, Campaign
from handbill.banners.pace import Pace
from handbill.banners.plan import Entry, Plan, Slot
from handbill.banners.targeting.nodes import AtLeast, Leaf, Node, clauses
from handbill.banners.targeting.people import asked
from handbill.banners.targeting.reader import read
from handbill.banners.wire import Names, Verdict, Why
from handbill.caps.model import FOREVER_MS, By, Limits, Rule, Window, kind_of
from handbill.caps.service import Caps
from handbill.kit.clock import from_ms
from handbill.kit.errors import Forbidden, Unauthorized
from handbill.kit.fast import FastRequest
from handbill.segments.service import ACTIVE_HOURS
from handbill.tenants.service import Directory

_HOUR_MS = 3_600_000


async def reader(directory: Directory, request: FastRequest) -> int:
    """The tenant of a secret key that may read the catalogue: what explains itself tells how it is set up."""
    scheme, _, sent = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    principal = await directory.secret_key(sent.strip()) if scheme.lower() == "bearer" else None
    if principal is None:
        raise Unauthorized("An explanation needs a secret key in Authorization: Bearer.")
    if not principal.allows("banners:read"):
        raise Forbidden("An explanation needs the scope banners:read; your key does not have it.", code="SCOPE_MISSING")
    return principal.tenant_id


class Explainer:
    def __init__(self, decider: Decider, pace: Pace | None) -> None:
        self._decider = decider
        self._pace = pace

    async def explained(self, plan: Plan, slots: Slots, ask: Ask) -> tuple[Shown, list[Verdict]]:
        mask = self._decider.candidates(plan, ask)
        caps = await self._decider.caps(plan, mask, slots, ask) if mask or plan.people else None
        if caps is not None:
            mask, ask = self._decider.met(plan, mask, ask, caps)
        shown = Shown([[] for _ in slots])
        if caps is not None:
            # Nothing is held for an explanation: it must not keep anybody from seeing a strict banner.
            shown = Shown([list(picked) for picked in self._decider.choose(plan, mask, slots, ask, caps)])
        over = self._pace is not None and self._pace.over(ask.viewer.tenant_id, ask.user)
        places = {entry.bit: place for place, entries in enumerate(shown.entries) for entry in entries}
        verdicts = [
            self._verdict(plan, entry, slot, ask, caps, places.get(entry.bit), place, over)
            for place, (slot, _) in enumerate(slots)
            for entry in plan.entries
        ]
        return shown, verdicts

    def _verdict(
        self,
        plan: Plan,
        entry: Entry,
        slot: Slot,
        ask: Ask,
        caps: Caps | None,
        at: int | None,
        place: int,
        over: bool,
    ) -> Verdict:
        banner = entry.banner
        named = slot.placement.slug if slot.placement is not None else None
        names = _names(plan, entry, slot)
        if at == place and not over:
            return Verdict(banner.public_id, named, "shown", Why.SHOWN, not_learnt(plan, banner, ask), names=names)
        why, rule, later = self._reason(plan, entry, slot, ask, caps)
        if why is Why.OUTRANKED and over:
            why = Why.RATE_LIMITED
        elif why is Why.OUTRANKED and at is not None:
            why = Why.ELSEWHERE
        return Verdict(banner.public_id, named, "passed", why, rule, later, names)

    def _reason(
        self, plan: Plan, entry: Entry, slot: Slot, ask: Ask, caps: Caps | None
    ) -> tuple[Why, str | None, datetime | None]:
        banner, now = entry.banner, from_ms(ask.now_ms)
        campaign = plan.snapshot.campaigns.get(banner.campaign_id or 0)
        closed = _closed(banner, campaign, now)
        if closed is not None:
            return closed
        if not slot.mask >> entry.bit & 1:
            return Why.PLACEMENT, None, None
        rule = failed_rule(banner, ask)
        if rule is not None:
            return Why.TARGETING, *(quiet_hour(banner, ask) or (rule, None))
        if entry.held_out(ask.user):
            return Why.HOLDOUT, f"{banner.holdout_percent:g} percent are held out", None
        if caps is None:
            return Why.UNKNOWN, "the caps could not be read", None
        return _capped(entry, slot, caps, ask.now_ms) or (Why.OUTRANKED, not_learnt(plan, banner, ask), now)


def _names(plan: Plan, entry: Entry, slot: Slot) -> Names:
    campaign = plan.snapshot.campaigns.get(entry.banner.campaign_id or 0)
    return Names(
        entry.banner.name,
        slot.placement.name if slot.placement is not None else None,
        campaign.name if campaign is not None else None,
    )


def failed_rule(banner: Banner, ask: Ask) -> str | None:
    """The first part of its rule that does not hold, in words."""
    if not banner.targeting:
        return None
    for clause in clauses(read(banner.targeting, str(banner.public_id))):
        if not clause.holds(ask.values):
            return clause.text
    missing = sorted(asked(banner.targeting) & ask.missing)
    return f"{', '.join(missing)} of this user is not known yet" if missing else None


def quiet_hour(banner: Banner, ask: Ask) -> tuple[str, datetime] | None:
    """In words, and when the next active hour begins, if this is what does not hold."""
    hours = ask.hours
    for clause in clauses(read(banner.targeting or {}, str(banner.public_id))):
        if clause.holds(ask.values):
            continue
        if hours is None or not isinstance(clause, Leaf) or not isinstance(clause.test, AtLeast):
            return None
        later = next_open(hours, clause.test.level, ask.now_ms)
        now, then = (f"{hour_at(hours.zone, moment):02}:00" for moment in (ask.now_ms, later))
        usual = open_hours(hours.levels, clause.test.level)
        text = f"the user is usually active at {usual} ({hours.zone}); it is {now} there now, next at {then}"
        return text, from_ms(later)
    return None


def not_learnt(plan: Plan, banner: Banner, ask: Ask) -> str | None:
    """Why a rule about active hours does not narrow, where a banner has one."""
    if not banner.targeting or not _asks_hours(read(banner.targeting, str(banner.public_id))):
        return None
    if not plan.snapshot.deciding.smart_scheduling:
        return "active hours hold for everybody: smart_scheduling is off"
    if ask.hours is not None and ask.hours.levels:
        return None
    events, days = (ask.hours.events, ask.hours.days) if ask.hours is not None else (0, 0)
    return (
        f"active hours of this user are not known yet: {events} of {MIN_EVENTS} events,"
        f" {days} of {MIN_SPAN_MS // (24 * _HOUR_MS)} days"
    )


def _asks_hours(node: Node) -> bool:
    return ACTIVE_HOURS in node.attributes


def _closed(banner: Banner, campaign: Campaign | None, now: datetime) -> tuple[Why, str | None, datetime | None] | None:
    if not banner.is_active:
        return Why.SWITCHED_OFF, None, None
    if banner.publish_at is not None and now < banner.publish_at:
        return Why.NOT_YET, f"begins at {banner.publish_at.isoformat()}", banner.publish_at
    if banner.expires_at is not None and now >= banner.expires_at:
        return Why.OVER, f"ended at {banner.expires_at.isoformat()}", None
    if banner.campaign_id is None:
        return None
    if campaign is None:
        return Why.CAMPAIGN_CLOSED, "the campaign was deleted", None
    if campaign.open_at(now):
        return None
    later = campaign.starts_at if campaign.is_active and campaign.starts_at and now < campaign.starts_at else None
    return Why.CAMPAIGN_CLOSED, f"campaign {campaign.name}", later


def _capped(entry: Entry, slot: Slot, caps: Caps, now_ms: int) -> tuple[Why, str | None, datetime | None] | None:
    """By which limit, and from when on all of them have room again."""
    rules = entry.rules + slot.rules
    verdict = caps.verdict(rules, now_ms, strict=entry.strict)
    if verdict.eligible:
        return None
    full = [rule for rule in _single(rules) if not caps.verdict((rule,), now_ms, strict=entry.strict).eligible]
    later = from_ms(verdict.next_eligible_at) if verdict.next_eligible_at is not None else None
    return Why.CAPPED, " and ".join(in_words(rule) for rule in full), later


def in_words(rule: Rule) -> str:
    windows = " and ".join(_window_in_words(window, rule.by) for window in rule.limits.windows)
    return f"{windows} per {kind_of(rule.scope).name.lower()} and {rule.by.name.lower()}"


def _window_in_words(window: Window, by: By) -> str:
    if by is By.SESSION:  # however long one is remembered
        return f"{window.x}"
    if window.y_ms == FOREVER_MS:
        return f"{window.x} in a lifetime"
    return f"{window.x} in {window.y_ms / _HOUR_MS:g} hours"


def _single(rules: Iterable[Rule]) -> Iterator[Rule]:
    """Each window as a rule of its own."""
    for rule in rules:
        for window in rule.limits.windows:
            yield Rule(rule.by, rule.scope, Limits((window,), rule.limits.known_from_ms))
