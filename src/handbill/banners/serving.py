"""What to show, over HTTP: `GET /banners` (ids, all that may be shown) and `POST /v1/decide` (whole answers, the best).

Any failure behind them is an empty list with 200, never an error page: the app renders without banners.
"""

from __future__ import annotations

import secrets

import msgspec

from handbill.banners import docs, wire
from handbill.banners.callers import caller, query_of, text_of
from handbill.banners.catalogue import Catalogue
from handbill.banners.decide import Ask, Decider, Shown, Slots
from handbill.banners.explain import Explainer, reader
from handbill.banners.plan import Plan, Slot
from handbill.banners.show import Show
from handbill.banners.stamps import Stamps
from handbill.banners.targeting.context import Asked, agent_text
from handbill.banners.tokens import Tokens
from handbill.banners.tracking import check_type
from handbill.banners.wire import ContextIn, DecideIn
from handbill.caps.model import Viewer
from handbill.caps.service import CapsService
from handbill.kit.agents import device_of
from handbill.kit.bounds import ID_MAX
from handbill.kit.clock import Clock
from handbill.kit.errors import Fault, Forbidden, Invalid
from handbill.kit.fast import FastReply, FastRequest, FastRoute
from handbill.tenants.service import Directory

_BODY_LIMIT = 64 << 10
_ALL = 1_000
_NO_STORE = ((b"cache-control", b"no-store"),)
_encode = msgspec.json.Encoder().encode


class Serving:
    """Without `show` it has no installation behind it: tokens of its own, and no limit per user."""

    def __init__(
        self, catalogue: Catalogue, caps: CapsService, directory: Directory, clock: Clock, *, show: Show | None = None
    ) -> None:
        self._catalogue = catalogue
        self._directory = directory
        self._clock = clock
        self._decider = show.decider if show is not None else Decider(catalogue, caps, None)
        self._country = show.country if show is not None else None
        self._tokens = show.tokens if show is not None else Tokens(secrets.token_bytes(32))
        self._pace = show.pace if show is not None else None
        self._explainer = Explainer(self._decider, self._pace)
        self._stamps = Stamps()

    def routes(self) -> list[FastRoute]:
        return [
            FastRoute("GET", "/banners", self.banners, cors=True, doc=docs.BANNERS),
            FastRoute("POST", "/v1/decide", self.decide, cors=True, body_limit=_BODY_LIMIT, doc=docs.DECIDE),
        ]

    # --- GET /banners

    async def banners(self, request: FastRequest) -> FastReply:
        """Every banner the user may see now, best first."""
        who = await caller(self._directory, request)
        query = query_of(request)
        user = _user(who.subject, query.get("user_id"))
        if self._pace is not None and not self._pace.passes(who.tenant_id, user):
            await self._pace.take(who.tenant_id, user)
        plan = await self._decider.plan(who.tenant_id)
        placement = query.get("placement")
        slot = plan.slot(placement) if placement is not None else plan.anywhere
        context = ContextIn(language=text_of(query, "language"), country=text_of(query, "country"))
        viewer = Viewer(who.tenant_id, user, text_of(query, "device_id") or None, text_of(query, "session_id") or None)
        ask = await self._ask(plan, viewer, context, request)
        shown = await self._decider.decided(plan, [(slot, _ALL)], ask)
        ids = wire.Shown([entry.banner.public_id for entry in shown.entries[0]], user)
        return FastReply(200, _encode(ids), headers=_NO_STORE)

    # --- POST /v1/decide

    async def decide(self, request: FastRequest) -> FastReply:
        if b"explain=" in request.query and query_of(request).get("explain") == "1":
            return await self._explained(request)
        who = await caller(self._directory, request)
        check_type(request)
        sent = wire.decide_in(request.body)
        subject = who.subject
        user = sent.user_id if subject is None else subject
        if user is None or subject is not None:
            user = _user(subject, sent.user_id)
        tenant_id = who.tenant_id
        if self._pace is not None and not self._pace.passes(tenant_id, user):
            await self._pace.take(tenant_id, user)
        plan = await self._decider.plan(tenant_id)
        slots = _slots(plan, sent)
        viewer = Viewer(tenant_id, user, sent.device_id, sent.session_id)
        ask = await self._ask(plan, viewer, sent.context, request)
        shown = await self._decider.decided(plan, slots, ask)
        person = self._person(ask, sent.context, request, proved=who.is_proved)
        body = self._written(slots, shown, ask, person)
        return FastReply(200, b"".join(body), headers=_NO_STORE)

    async def _explained(self, request: FastRequest) -> FastReply:
        """The same answer with every banner's verdict, for who may read the catalogue."""
        tenant_id = await reader(self._directory, request)
        check_type(request)
        sent = wire.decide_in(request.body)
        user = _user(None, sent.user_id)
        plan = await self._decider.plan(tenant_id)
        slots = _slots(plan, sent)
        viewer = Viewer(tenant_id, user, sent.device_id, sent.session_id)
        ask = await self._ask(plan, viewer, sent.context, request)
        shown, verdicts = await self._explainer.explained(plan, slots, ask)
        body = self._written(slots, shown, ask, self._person(ask, sent.context, request, proved=False))
        body[-1] = b'],"explain":' + _encode(verdicts) + b"}"
        return FastReply(200, b"".join(body), headers=_NO_STORE)

    async def _ask(self, plan: Plan, viewer: Viewer, context: ContextIn, request: FastRequest) -> Ask:
        """The question as the decider takes it. Where the user's zone is not told, the tenant's is meant."""
        zone = context.time_zone
        if zone is None:
            zone = "UTC"
            if plan.questions.moment:
                zone = (await self._directory.profile(viewer.tenant_id)).tenant.time_zone
        now_ms = self._clock.now_ms()
        asked = Asked(viewer.user_id, now_ms, context, request.headers, request.client_ip, zone)
        return Ask(viewer, now_ms, plan.questions.answered(asked, self._country))

    def _person(self, ask: Ask, context: ContextIn, request: FastRequest, *, proved: bool) -> bytes:
        """Whom the tokens name. The country is what was sent, or what targeting had to look up: a look-up for the token
        alone costs 19 us for an address that was not seen before."""
        viewer, values = ask.viewer, ask.values
        device = values.get("device") or device_of(agent_text(context.user_agent, request.headers))
        return self._tokens.person(
            viewer.user_id, viewer.session_id, device, context.country or values.get("country"), proved=proved
        )

    def _written(self, slots: Slots, shown: Shown, ask: Ask, person: bytes) -> list[bytes]:
        """The answer in pieces: what never changes was written when the plan was made."""
        tokens, user, tenant_id, now_ms = self._tokens, ask.user, ask.viewer.tenant_id, ask.now_ms
        leases = shown.leases
        expires = self._stamps.written(now_ms + tokens.ttl_ms)
        out = [b'{"user_id":', _encode(user), b',"decided_at":"', self._stamps.written(now_ms), b'","decisions":[']
        for place, (slot, _) in enumerate(slots):
            out.append(b"," + slot.head if place else slot.head)
            for number, entry in enumerate(shown.entries[place]):
                face, banner = entry.face(user), entry.banner
                token = tokens.mint(
                    tenant_id, banner.id, slot.number, banner.campaign_id or 0, face.variant, now_ms, person,
                    leases.get(entry.bit, 0),
                )  # fmt: skip
                if number:
                    out.append(b",")
                out.append(face.written(token, expires))
            out.append(b"]}")
        out.append(b"]}")
        return out


def _slots(plan: Plan, sent: DecideIn) -> list[tuple[Slot, int]]:
    if not sent.placements:
        return [(plan.anywhere, sent.limit)]
    return [(plan.slot(named), sent.limit) for named in sent.placements]


def _user(subject: str | None, sent: str | None) -> str:
    if subject is not None:
        if sent is not None and sent != subject:
            raise Forbidden("user_id is not the subject of the token.", code="NOT_YOUR_USER")
        return subject
    if not sent or len(sent) > ID_MAX:
        raise Invalid(
            "Say for whom: a user's token, or user_id beside the write key.",
            faults=[Fault("user_id", f"must have 1 to {ID_MAX} characters")],
        )
    return sent
