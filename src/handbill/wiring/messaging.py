"""Messaging, from the settings: the room itself, and the chores that come by the clock."""

from __future__ import annotations

from handbill.infra.redis import Keys
from handbill.infra.safe_http import TENANT_PORTS, HttpPolicy, SafeHttpClient
from handbill.jobs.chores import Loop
from handbill.jobs.defaults import defaults_of
from handbill.kit.public_url import PublicUrl
from handbill.messaging.hooks_out import QUEUE as HOOKS_QUEUE
from handbill.messaging.ports import Contacts
from handbill.messaging.service import (
    KeeperPolicy,
    MessagingPolicy,
    MessagingService,
    Pauses,
    TurnPolicy,
    load_sealed,
)
from handbill.settings import Settings
from handbill.tenants.seals import Sealer
from handbill.wiring import providers, secrets
from handbill.wiring.house import House

SWEEP_S = 1.0
IDLE_S = 0.2
HOOK_TIMEOUT_S = 10.0


def policy(settings: Settings) -> MessagingPolicy:
    given = settings.messaging
    return MessagingPolicy(
        turn=TurnPolicy(
            turn_s=given.turn_ms / 1000,
            lease_s=given.lease_s,
            standard_per_second=given.standard_per_second,
            enterprise_per_second=given.enterprise_per_second,
            in_flight=given.graph_connections,
            pause_after=given.pause_after_refusals,
        ),
        keeper=KeeperPolicy(
            claim_s=given.claim_s,
            answer_s=given.unanswered_s,
            unknown_h=given.unknown_hours,
            per_poll=given.campaigns_per_poll,
            per_tenant=given.campaigns_per_tenant,
        ),
        pauses=Pauses(throttled_s=given.number_pause_s),
        singles_waiting=given.singles_waiting,
    )


def service(house: House, contacts: Contacts) -> MessagingService:
    settings = house.settings
    vault = providers.vault(settings, load_sealed(house.database), house.clock)
    return MessagingService(
        house.database,
        house.redis,
        house.jobs.outbox,
        house.tenants.audit,
        providers.whatsapp(settings, vault),
        vault,
        contacts,
        house.clock,
        verify_key=secrets.derived(settings, "webhook verify tokens"),
        seal=Sealer(secrets.derived(settings, "hooks")),
        http=SafeHttpClient(hook_policy(settings)),
        policy=policy(settings),
        keys=Keys(),
        public_url=PublicUrl(settings.api.public_url),
    )


def hook_policy(settings: Settings) -> HttpPolicy:
    """A connection for each slot of the queue: a tenant's share of the slots is then its share of the connections."""
    insecure = settings.messaging.hooks_insecure
    ports = None if insecure else TENANT_PORTS
    slots = defaults_of(HOOKS_QUEUE).concurrency
    return HttpPolicy(
        https_only=not insecure, public_only=not insecure, ports=ports, total_s=HOOK_TIMEOUT_S, connections=slots
    )


class MessageSweep(Loop):
    """Begins campaigns whose time has come, frees claims of workers that are gone, calls attempts without an answer
    unknown, and rings where work lies."""

    def __init__(self, house: House) -> None:
        super().__init__("message-sweep")
        self._messaging = house.messaging

    async def turn(self) -> None:
        await self._messaging.keeper.begin()
        await self._messaging.keeper.sweep()
        await self.rest(SWEEP_S)


class WebhookWork(Loop):
    """Works on webhooks that were kept, a batch at a time."""

    def __init__(self, house: House) -> None:
        super().__init__("webhook-work")
        self._messaging = house.messaging

    async def turn(self) -> None:
        worked = await self._messaging.incoming.work()
        self.health.processed(worked)
        self.ready.set()
        if not worked:
            await self.rest(IDLE_S)
