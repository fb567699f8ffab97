"""The face of this room: connections, campaigns, the sending of messages, and what comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database, Tx
from handbill.infra.redis import Keys, Redis
from handbill.infra.safe_http import SafeHttpClient
from handbill.infra.state import StateTable
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock
from handbill.kit.errors import NotFound
from handbill.kit.ids import Ids
from handbill.kit.public_url import PublicUrl
from handbill.messaging.callbacks import Callbacks
from handbill.messaging.campaigns import Campaigns
from handbill.messaging.connections import Connections
from handbill.messaging.consequences import Consequences, Pauses
from handbill.messaging.dispatch import Dispatcher, TurnPolicy
from handbill.messaging.drafts import CampaignDrafts, CampaignPatch
from handbill.messaging.erasure import Erasure
from handbill.messaging.estimates import EstimatePolicy, Estimator
from handbill.messaging.fairness import Fairness
from handbill.messaging.hearing import Hearing
from handbill.messaging.hooks import HookDesk
from handbill.messaging.hooks_out import Hooks
from handbill.messaging.incoming import Incoming
from handbill.messaging.keeper import Keeper, KeeperPolicy
from handbill.messaging.launch import Launcher
from handbill.messaging.limits import PAIR_KEPT, Pace
from handbill.messaging.links import Safe
from handbill.messaging.model import Account
from handbill.messaging.opt_out_words import NewOptOutWords, OptOutWords, OptOutWordService
from handbill.messaging.pacer import Pacer
from handbill.messaging.ports import AudiencePage, Contacts, Recipient
from handbill.messaging.providers.port import Provider
from handbill.messaging.providers.vault import Seal
from handbill.messaging.recorder import Recorder
from handbill.messaging.single_outcomes import SingleOutcomes
from handbill.messaging.singles.model import NewMessage, SingleMessage
from handbill.messaging.singles.sending import SingleDispatcher
from handbill.messaging.singles.service import Request as MessageRequest
from handbill.messaging.singles.service import SingleMessages
from handbill.messaging.store import S
from handbill.messaging.token_states import TokenStates
from handbill.tenants.service import Audit

__all__ = [
    "SINGLES_IN_FLIGHT", "STATE", "AudiencePage", "CampaignPatch", "Contacts", "EstimatePolicy", "KeeperPolicy",
    "MessageRequest", "MessagingPolicy", "MessagingService", "NewMessage", "NewOptOutWords", "OptOutWords", "Pauses",
    "Recipient", "SingleMessage", "TurnPolicy", "load_sealed",
]  # fmt: skip

SINGLES_IN_FLIGHT = 32
"""Requests for single messages that one process has under way, beside those of campaigns."""

STATE = (
    StateTable("messaging.switches", ("tenant_id",), frozenset({"updated_at"})),
    StateTable("messaging.opt_out_words", ("tenant_id",), frozenset({"updated_at"})),
    StateTable("messaging.connections", ("tenant_id", "connection_id"), frozenset({"updated_at", "sealed"})),
    StateTable(
        "messaging.numbers",
        ("tenant_id", "number_id"),
        frozenset({"turn", "turn_until", "single_turn", "single_until", "throttled", "updated_at"}),
    ),
    StateTable("messaging.templates", ("tenant_id", "connection_id", "name", "language")),
    StateTable(
        "messaging.campaigns",
        ("tenant_id", "campaign_id"),
        frozenset({"updated_at", "spent", "estimate", "failed_code", "failed_in_row"}),
    ),
    StateTable("messaging.messages", ("tenant_id", "message_id"), frozenset({"claim"})),
    StateTable("messaging.single_messages", ("tenant_id", "message_id")),
    StateTable("messaging.reached", ("tenant_id", "portfolio", "address")),
    StateTable("messaging.undeliverable", ("tenant_id", "channel", "address")),
    StateTable("messaging.inbound", ("tenant_id", "wamid")),
    StateTable("messaging.preferences", ("tenant_id", "channel", "address")),
    StateTable("messaging.alerts", ("tenant_id", "alert_key")),
    StateTable("messaging.hooks", ("tenant_id", "hook_id"), frozenset({"sealed"})),
    StateTable("messaging.hook_deliveries", ("tenant_id", "delivery_id"), frozenset({"finished_at"})),
)
"""The inbox of webhooks is left out: what it says is in the other tables once it was worked on."""


class MessagingPolicy(msgspec.Struct, frozen=True):
    turn: TurnPolicy = TurnPolicy()
    keeper: KeeperPolicy = KeeperPolicy()
    pauses: Pauses = Pauses()
    estimate: EstimatePolicy = EstimatePolicy()
    pair: Pace = PAIR_KEPT
    singles_waiting: int = 10_000


class MessagingService:
    def __init__(
        self,
        database: Database,
        redis: Redis,
        outbox: Outbox,
        audit: Audit,
        provider: Provider,
        safe: Safe,
        contacts: Contacts,
        clock: Clock,
        *,
        verify_key: bytes,
        seal: Seal,
        http: SafeHttpClient,
        public_url: PublicUrl,
        policy: MessagingPolicy | None = None,
        keys: Keys | None = None,
        ids: Ids | None = None,
    ) -> None:
        policy = policy or MessagingPolicy()
        ids = ids or Ids(clock)
        self.provider = provider
        self.hooks = Hooks(outbox, clock, ids)
        self.pacer = Pacer(redis, keys or Keys(), clock, pair=policy.pair)
        outcomes = SingleOutcomes(self.hooks)
        self.recorder = Recorder(database, outbox, outcomes, clock)
        self.tokens = TokenStates(database, audit, clock)
        self.consequences = Consequences(contacts, audit, self.hooks, clock, policy.pauses, self.tokens)
        self.dispatcher = Dispatcher(
            database, outbox, provider, self.pacer, self.recorder, self.consequences, clock, ids, policy.turn
        )
        self.single_dispatcher = SingleDispatcher(
            database, outbox, provider, self.pacer, self.recorder, self.consequences, outcomes, clock, ids,
            msgspec.structs.replace(policy.turn, in_flight=SINGLES_IN_FLIGHT),
        )  # fmt: skip
        self.singles = SingleMessages(
            database, audit, contacts, self.single_dispatcher, outcomes, clock, ids, policy.singles_waiting
        )
        self.keeper = Keeper(
            database, outbox, self.dispatcher, self.consequences, self.hooks, self.single_dispatcher, outcomes, clock,
            policy.keeper,
        )  # fmt: skip
        self.launcher = Launcher(database, outbox, contacts, self.dispatcher, self.consequences, clock, ids)
        estimator = Estimator(database, contacts, clock, policy.turn, policy.estimate)
        self.campaigns = Campaigns(database, audit, contacts, self.dispatcher, self.keeper, estimator, clock, ids)
        self.drafts = CampaignDrafts(database, audit, clock, ids)
        callbacks = Callbacks(verify_key, public_url)
        self.connections = Connections(
            database, audit, provider, safe, self.dispatcher, self.hooks, self.consequences, outbox, clock, ids,
            callbacks,
        )  # fmt: skip
        self.opt_out_words = OptOutWordService(database, audit, clock)
        hearing = Hearing(
            contacts, self.consequences, self.hooks, outbox, outcomes, clock, self.opt_out_words,
            policy.turn.pause_after,
        )  # fmt: skip
        self.incoming = Incoming(database, audit, safe, callbacks.verify_token, hearing, clock)
        self.hook_desk = HookDesk(database, audit, self.hooks, seal, http, clock, ids)
        self.fairness = Fairness(database, clock)
        self.erasure = Erasure(database, contacts)

    async def start(self) -> None:
        """Nothing to begin: connections are made when first needed."""

    async def import_done(self, tx: Tx, tenant_id: int, body: dict[str, Any]) -> None:
        """An import of contacts has ended, in this transaction: whoever wants to know is told."""
        await self.hooks.announce(tx, tenant_id, "import.done", body)

    async def uses(self, tx: Tx, tenant_id: int, segment: UUID) -> list[str]:
        """Campaigns that are meant for the segment and not over: it must stay."""
        rows = await tx.fetch(S.campaigns_of_segment, tenant_id, str(segment))
        return [f"the campaign {row['name']}" for row in rows]

    async def stop(self) -> None:
        await self.hook_desk.close()
        await self.provider.close()


def load_sealed(database: Database) -> Callable[[Account], Awaitable[bytes]]:
    """Finds the sealed secret behind an account; the wiring hands it to the vault."""

    async def load(account: Account) -> bytes:
        async with database.tenant(account.tenant_id) as tx:
            sealed = await tx.fetchval(S.read_sealed, account.tenant_id, UUID(account.secret))
        if sealed is None:
            raise NotFound("There is no such connection.", code="CONNECTION_NOT_FOUND")
        return bytes(sealed)

    return load
