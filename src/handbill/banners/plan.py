"""One tenant's catalogue made ready for deciding: banners as bits, rules indexed, answers half written.

Built once per snapshot, on first use. The bits stand in the tenant's own order of ranking, so that where nothing lively
ranks, walking them upwards is walking them best first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

import msgspec

from handbill.banners.catalogue import Snapshot
from handbill.banners.limits import kinds_of, lease_ms, placement_rules, rules_of
from handbill.banners.model import Banner, Criterion, Placement, Variant
from handbill.banners.ranking import DEFAULT, LIVELY, Order, settled_order
from handbill.banners.targeting.context import Questions
from handbill.banners.targeting.cost import too_costly
from handbill.banners.targeting.index import Clause, Index, clauses_of, mask_of
from handbill.banners.targeting.nodes import Any_, Node
from handbill.banners.targeting.people import People, asked, of_person
from handbill.banners.targeting.reader import read_checked
from handbill.banners.variants import face, held_out, variant_of
from handbill.caps.model import Rule
from handbill.caps.service import Caps
from handbill.kit.clock import from_ms
from handbill.kit.errors import NotFound
from handbill.kit.telemetry import logs, metrics
from handbill.segments.service import ACTIVE_HOURS

CLICKS = "/r/"
"""What a link for clicks begins with: a path, or with the public address before it."""
_NEVER = 1 << 62
_log = logs.get("banners")


class Face:
    """One face of a banner as bytes: everything of the answer that does not change from request to request."""

    __slots__ = ("after", "before", "cta", "middle", "variant")

    def __init__(self, banner: Banner, variant: Variant | None, campaign: UUID | None, clicks: str = CLICKS) -> None:
        shown = face(banner, variant)
        self.cta = shown.pop("cta_link")
        key = variant.key if variant is not None else None
        head = msgspec.json.encode({"banner_id": banner.public_id, "campaign_id": campaign, "variant": key, **shown})
        self.variant = key.encode() if key is not None else b""
        # {..., "click_url": "/r/TOKEN", "z_duration_sec": 3, "token": "TOKEN", "expires_at": "..."}
        link = b',"click_url":' + msgspec.json.encode(clicks)[:-1]
        self.before = head[:-1] + (link if self.cta else b',"click_url":')
        self.middle = b'%s,"z_duration_sec":%d,"token":"' % (b'"' if self.cta else b"null", banner.z_duration_sec)
        self.after = b'","expires_at":"'

    def written(self, token: bytes, expires: bytes) -> bytes:
        if self.cta:
            return b"".join((self.before, token, self.middle, token, self.after, expires, b'"}'))
        return b"".join((self.before, self.middle, token, self.after, expires, b'"}'))


class Piece(msgspec.Struct, frozen=True):
    """What one version of a banner brings to every plan it is in, whatever stands beside it."""

    version: int
    clauses: tuple[Clause, ...]
    faces: tuple[Face, ...]
    of_person: tuple[Clause, ...] = ()
    needs: frozenset[str] = frozenset()
    campaign: UUID | None = None


def piece_of(banner: Banner, campaign: UUID | None, clicks: str) -> Piece:
    variants = banner.variants or (None,)
    faces = tuple(Face(banner, variant, campaign, clicks) for variant in variants)
    found = clauses_of(_rule_of(banner))
    needs = asked(banner.targeting)
    later = tuple(clause for clause in found if of_person(clause))
    if not later:
        return Piece(banner.version, found, faces, campaign=campaign)
    now = tuple(clause for clause in found if not of_person(clause))
    return Piece(banner.version, now, faces, later, needs, campaign)


def _for_nobody(piece: Piece) -> Piece:
    return msgspec.structs.replace(piece, clauses=clauses_of(Any_(())), of_person=())


def _rule_of(banner: Banner) -> Node | None:
    """None means everybody. A stored rule that this version cannot read means nobody; no other banner is affected."""
    if not banner.targeting:
        return None
    rule, errors = read_checked(banner.targeting, str(banner.public_id))
    if errors:
        _log.warning(
            "banners.targeting_unreadable",
            tenant_id=banner.tenant_id,
            banner_id=str(banner.public_id),
            field=f"targeting.{errors[0].field}",
            reason=errors[0].reason,
            detail="the banner is shown to nobody until its targeting is saved again",
        )
    return rule


class Entry:
    """One banner of a plan."""

    __slots__ = ("_faces", "banner", "bit", "holds_out", "lease_ms", "rules", "strict")

    def __init__(self, bit: int, banner: Banner, faces: tuple[Face, ...], rules: tuple[Rule, ...]) -> None:
        self.bit = bit
        self.banner = banner
        self.rules = rules
        self.strict = banner.cap_mode == "strict"
        self.lease_ms = lease_ms(banner)
        self.holds_out = banner.holdout_percent > 0
        self._faces = faces

    def face(self, who: str) -> Face:
        if len(self._faces) == 1:
            return self._faces[0]
        return self._faces[variant_of(self.banner, who)]

    def seen(self, caps: Caps) -> int:
        """How often the viewer saw this banner, as far as its limits keep count."""
        own = self.rules[0]
        return caps.seen(own.by, own.scope)

    def held_out(self, who: str) -> bool:
        return self.holds_out and held_out(self.banner, who)


class CompiledBanner(msgspec.Struct, frozen=True):
    """A banner of one snapshot with all that a plan needs of it."""

    banner: Banner
    piece: Piece
    rules: tuple[Rule, ...]
    changes: tuple[int, ...]


def compile_banners(snapshot: Snapshot, before: Mapping[int, Piece], clicks: str) -> dict[int, CompiledBanner]:
    """By the banner's number. One that cannot be compiled is left out, logged and counted; the others stay."""
    compiled = {}
    for banner in snapshot.banners:
        piece = before.get(banner.id)
        campaign = snapshot.campaign_of(banner)
        try:
            if piece is None or (piece.version, piece.campaign) != (banner.version, campaign):
                piece = piece_of(banner, campaign, clicks)
            changes = tuple(snapshot.changes(banner))
            compiled[banner.id] = CompiledBanner(banner, piece, rules_of(banner, snapshot), changes)
        except Exception as error:  # noqa: BLE001 - one banner must not take its neighbours away
            metrics.BANNERS_LEFT_OUT.inc()
            error_text = f"{type(error).__name__}: {error}"
            _log.error(
                "banners.banner_left_out",
                tenant_id=banner.tenant_id,
                banner_id=str(banner.public_id),
                error=error_text,
                detail="the banner is shown to nobody until it is saved again",
            )
    return compiled


class Slot(msgspec.Struct, frozen=True):
    """A place to fill: which banners fit, in which order. Number 0 is "anywhere"."""

    number: int
    mask: int
    order: Order
    head: bytes
    rules: tuple[Rule, ...] = ()
    placement: Placement | None = None


class Plan:
    def __init__(self, snapshot: Snapshot, pieces: Mapping[int, Piece] | None = None, clicks: str = CLICKS) -> None:
        """`pieces` of an earlier plan are taken over where their banners have not changed."""
        self.snapshot = snapshot
        compiled = compile_banners(snapshot, pieces or {}, clicks)
        self.pieces = {number: each.piece for number, each in compiled.items()}
        ranking = tuple(snapshot.deciding.ranking) or DEFAULT
        banners = settled_order(tuple(each.banner for each in compiled.values()), ranking)
        self.entries = [
            Entry(bit, banner, self.pieces[banner.id].faces, compiled[banner.id].rules)
            for bit, banner in enumerate(banners)
        ]
        refused = self._too_costly()
        pieces_now = [
            _for_nobody(self.pieces[each.id]) if each.id in refused else self.pieces[each.id] for each in banners
        ]
        self.index = Index([piece.clauses for piece in pieces_now])
        self.people: People | None = None
        """What the rules ask of the person; nothing, for most."""
        places = tuple((place, tuple(place.ranking) or ranking) for place in snapshot.placements.values())
        rules = [piece.of_person for piece in pieces_now]
        ranks_by_hour = any("active_hour" in each for each in (ranking, *(each for _, each in places)))
        asks_hours = ranks_by_hour or any(ACTIVE_HOURS in clause.attributes for rule in rules for clause in rule)
        hours = asks_hours and snapshot.deciding.smart_scheduling
        if hours or any(rules):
            self.people = People(rules, [piece.needs for piece in pieces_now], hours=hours)
        self.questions = Questions(self.index.attributes | (self.people.attributes if self.people else frozenset()))
        self._banners = banners
        self._orders: dict[tuple[Criterion, ...], Order] = {}
        self._slots: dict[str, Slot] = {}
        self.anywhere = Slot(0, (1 << len(banners)) - 1, self._order(ranking), _head(None))
        for place, placed_ranking in places:
            slot = self._slot(place, placed_ranking)
            self._slots[place.slug] = self._slots[str(place.public_id)] = slot
        self.ranks_by_ctr = any("ctr" in order.ranking for order in self._orders.values())
        self.lively = any(not LIVELY.isdisjoint(order.ranking) for order in self._orders.values())
        self.strict = any(entry.strict for entry in self.entries)
        limits = [rule for entry in self.entries for rule in entry.rules]
        limits += [rule for slot in self._slots.values() for rule in slot.rules]
        self.kinds = kinds_of(limits)
        self.raised = any(rule.limits.known_from_ms for rule in limits)
        """A limit was raised: what Redis does not know of older views, PostgreSQL may."""
        self._changes = sorted({change for each in compiled.values() for change in each.changes})
        self._open = (0, 0, 0)  # mask, from, until

    def _too_costly(self) -> frozenset[int]:
        """Banners whose patterns are too many for one tenant: shown to nobody, so that no decision waits for them."""
        refused = too_costly({number: (*piece.clauses, *piece.of_person) for number, piece in self.pieces.items()})
        if refused:
            banners = {banner.id: banner for banner in self.snapshot.banners}
            _log.error(
                "banners.patterns_too_costly",
                tenant_id=self.snapshot.tenant_id,
                banner_ids=[str(banners[number].public_id) for number in sorted(refused)[:10]],
                banners=len(refused),
                detail="they are shown to nobody until the tenant has fewer or simpler patterns",
            )
        return refused

    def slot(self, named: str) -> Slot:
        """By slug or public id."""
        found = self._slots.get(named)
        if found is None:
            raise NotFound(f"There is no placement {named[:100]}.", code="PLACEMENT_NOT_FOUND")
        return found

    def open(self, now_ms: int) -> int:
        """Banners whose switch is on and whose window, and whose campaign's, holds now. To the millisecond."""
        mask, since, until = self._open
        if since <= now_ms < until:
            return mask
        now, is_shown = from_ms(now_ms), self.snapshot.is_shown
        mask = mask_of(entry.bit for entry in self.entries if is_shown(entry.banner, now))
        since = max((change for change in self._changes if change <= now_ms), default=0)
        until = min((change for change in self._changes if change > now_ms), default=_NEVER)
        self._open = (mask, since, until)
        return mask

    def _slot(self, place: Placement, ranking: tuple[Criterion, ...]) -> Slot:
        fits = (entry.banner.placement_ids for entry in self.entries)
        mask = mask_of(bit for bit, wanted in enumerate(fits) if not wanted or place.id in wanted)
        return Slot(place.id, mask, self._order(ranking), _head(place), placement_rules(place), place)

    def _order(self, ranking: tuple[Criterion, ...]) -> Order:
        found = self._orders.get(ranking)
        if found is None:
            found = self._orders[ranking] = Order(self._banners, ranking)
        return found


def bits_of(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _head(place: Placement | None) -> bytes:
    """The beginning of a decision's JSON, up to its banners."""
    told = (place.slug, place.public_id) if place is not None else (None, None)
    return msgspec.json.encode({"placement": told[0], "placement_id": told[1]})[:-1] + b',"banners":['
