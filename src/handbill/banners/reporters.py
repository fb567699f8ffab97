"""Who reports impressions, clicks and views: how many may come from there, and whether it is sure whose they are."""

from __future__ import annotations

from handbill.banners.callers import Caller, caller, require_user_token, secret_key
from handbill.banners.throttle import Throttle
from handbill.banners.tokens import Token
from handbill.kit.clock import Clock
from handbill.kit.errors import Forbidden, NotFound, Unauthorized
from handbill.kit.fast import FastRequest
from handbill.tenants.model import Principal
from handbill.tenants.service import Directory


class Reporters:
    """One for all routes that take reports."""

    def __init__(self, directory: Directory, by_address: Throttle, by_key: Throttle, clock: Clock) -> None:
        self._directory = directory
        self._by_address = by_address
        self._by_key = by_key
        self._clock = clock

    async def admit(self, request: FastRequest, what: str, cost: int = 1) -> None:
        """Raises Throttled when too many of `what` come from the address or, where one is sent, with the secret key."""
        if b"authorization" in request.headers and (key := await self._secret_key(request)) is not None:
            name = f"{what}:key:{key.key_id}"
            if not self._by_key.passes(name, cost):
                await self._by_key.take(name, cost)
            return
        name = f"{what}:{request.client_ip}"
        if not self._by_address.passes(name, cost):
            await self._by_address.take(name, cost)

    async def _secret_key(self, request: FastRequest) -> Principal | None:
        """None for no key and for a bad one, which is refused where it matters."""
        try:
            return await secret_key(self._directory, request)
        except (Unauthorized, Forbidden):
            return None

    async def check_user(self, request: FastRequest, tenant_id: int, user: str | None, decision: Token | None) -> None:
        """Whether an event may name this user. Raises UserTokenRequired where the tenant requires proof and has none,
        and NotFound for another tenant's secret key: to it the banner does not exist.

        Proof is a user's token of that user, a secret key of the tenant, or the token of a decision for that user and
        banner (the caller has checked both), if the decision had proof. Without a user there is nothing to prove.
        """
        if b"authorization" in request.headers:
            key = await self._secret_key(request)
            if key is not None and key.tenant_id != tenant_id:
                raise NotFound("There is no such banner; nothing was counted.", code="BANNER_NOT_FOUND")
        if user is None or not (await self._directory.profile(tenant_id)).settings.jwt.required:
            return
        who = Caller(tenant_id, None)
        if b"authorization" in request.headers:
            who = await caller(self._directory, request, tenant_id, needs_proof=False)
        if who.subject is not None and who.subject != user:
            raise Forbidden("userId is not the subject of the token; nothing was counted.", code="NOT_YOUR_USER")
        proved = decision is not None and decision.proved and self._clock.now_ms() < decision.expires_ms
        await require_user_token(self._directory, who, proved=proved)


async def lacks_proof(directory: Directory, token: Token) -> bool:
    """Whether a followed link must not be counted: its decision does not prove whose it is, and the tenant requires it.

    Its click is a drop with the reason UNPROVED_USER; whoever follows the link gets there all the same.
    """
    return not token.proved and (await directory.profile(token.tenant_id)).settings.jwt.required
