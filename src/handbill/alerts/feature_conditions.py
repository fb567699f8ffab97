"""Conditions of queues, messaging and ad stats. Limits are per tenant where one tenant's work is its own matter."""

from __future__ import annotations

from handbill.alerts.condition import Condition
from handbill.alerts.grammar import Both, Compare, Increase, Latest, Match, Unless

_LEADER = (Match("election", "=", "leader"),)
_WAITING = (Match("state", "=", "waiting"),)

JOBS = (
    Condition(
        name="HandbillTenantBacklogDeep",
        area="jobs",
        severity="warning",
        summary="Tenant {tenant} has {value} jobs waiting in {queue}",
        description="Its producers are refused for now (429). See `handbill jobs ls {queue} --tenant {tenant}`.",
        test=Compare(
            Latest("handbill_outbox_pending", "max", ("queue", "tenant"), (Match("tenant", "!=", "other"),)),
            ">",
            50_000,
        ),
        for_s=300,
    ),
    Condition(
        name="HandbillTenantBacklogOld",
        area="jobs",
        severity="warning",
        summary="Work of tenant {tenant} in {queue} has waited {value}",
        description="Either its rate limit is too low for what it sends, or the queue's workers are too few or down.",
        test=Compare(Latest("handbill_outbox_oldest_seconds", "max", ("queue", "tenant")), ">", 1_800),
        for_s=300,
        unit="seconds",
    ),
    Condition(
        name="HandbillUrgentQueueSlow",
        area="jobs",
        severity="warning",
        summary="{queue} is {value} behind",
        description="Dispatch and webhooks have queues of their own and never wait behind bulk work; look at their "
        "workers first.",
        test=Compare(
            Latest(
                "handbill_outbox_oldest_seconds",
                "max",
                ("queue",),
                (Match("queue", "=~", "message_dispatch|webhooks"),),
            ),
            ">",
            120,
        ),
        onset_s=120,
        for_s=30,
        unit="seconds",
    ),
    Condition(
        name="HandbillRelayStopped",
        area="jobs",
        severity="warning",
        summary="Work for {queue} is recorded, but nothing is relayed",
        description="No worker runs the relay (`handbill worker --only relay`), or it cannot reach Redis. Nothing "
        "is lost: rows "
        "wait in PostgreSQL.",
        test=Unless(
            Compare(Latest("handbill_outbox_pending", "sum", ("queue",)), ">", 0),
            (
                Compare(Increase("handbill_outbox_relayed_total", 600, ("queue",)), ">", 0),
                Compare(Latest("handbill_queue_depth", "sum", ("queue",), _WAITING), ">", 0),
            ),
        ),
        onset_s=600,
        for_s=30,
    ),
    Condition(
        name="HandbillQueueFull",
        area="jobs",
        severity="warning",
        summary="{value} jobs of {queue} are in Redis",
        description="Our own relay keeps queues short, so another program is adding them directly. They take Redis' "
        "memory.",
        test=Compare(Latest("handbill_queue_depth", "max", ("queue",), _WAITING), ">", 50_000),
        for_s=300,
    ),
    Condition(
        name="HandbillDeadLetters",
        area="jobs",
        severity="warning",
        summary="{value} jobs of {queue} failed for good in a quarter of an hour",
        description="`handbill dead ls --queue {queue}` shows why; `handbill dead redrive` brings them back.",
        test=Compare(Increase("handbill_dead_letters_total", 900, ("queue",)), ">", 0),
    ),
    Condition(
        name="HandbillDeadLettersPileUp",
        area="jobs",
        severity="warning",
        summary="{value} dead letters of {queue} wait for a person",
        description="Redrive or purge them: `handbill dead redrive --queue {queue} --dry-run` counts first.",
        test=Compare(Latest("handbill_dead_letters_open", "max", ("queue",)), ">", 1_000),
        for_s=1_800,
    ),
    Condition(
        name="HandbillOutboxForgotten",
        area="jobs",
        severity="warning",
        summary="Redis lost {value} jobs of {queue}; they were relayed again",
        description="Redis was wiped, failed over to an older copy, or jobs were removed by another program. Check "
        "its persistence "
        "(appendfsync always).",
        test=Compare(Increase("handbill_outbox_requeued_total", 900, ("queue",)), ">", 0),
    ),
    Condition(
        name="HandbillCircuitOpened",
        area="jobs",
        severity="warning",
        summary="A circuit breaker opened",
        description="Some outside service failed five times in a row; calls to it pause for five minutes. The log "
        "event "
        "`circuit-opened` names it.",
        test=Compare(Increase("handbill_breaker_opened_total", 900), ">", 0),
    ),
    Condition(
        name="HandbillNobodyLeads",
        area="jobs",
        severity="warning",
        summary="No worker leads",
        description="Sweeps and gauges do not run. Start a worker with the kind `cron`, or see why it cannot take "
        "its lock in "
        "PostgreSQL.",
        test=Compare(Latest("handbill_leader", "sum", (), _LEADER, absent=0), "<", 1),
        for_s=300,
    ),
)

TOKENS = (
    Condition(
        name="HandbillTokenEnds",
        area="tokens",
        severity="warning",
        summary="A token of {kind} ends within 7 days or has ended (time left: {value})",
        description="After its end nothing is sent, or no ad figures are read, for its tenant. The worker's log names "
        "each as tokens.ending; only its owner can make a new one.",
        test=Compare(Latest("handbill_token_seconds_left", "min", ("kind",)), "<", 7 * 86_400),
        unit="seconds",
    ),
    Condition(
        name="HandbillWhatsAppTokenDead",
        area="tokens",
        severity="warning",
        summary="WhatsApp refuses the token of {value} connections",
        description="Nothing of their tenants is sent until they have a new one (`PATCH /admin/connections/(id)`). The "
        "worker's log names each as messaging.token_dead.",
        test=Compare(Increase("handbill_messaging_tokens_dead_total", 3_600), ">", 0),
    ),
)

MESSAGING = (
    Condition(
        name="HandbillWebhooksParked",
        area="messaging",
        severity="critical",
        summary="{value} webhooks of a provider could not be processed",
        description="Their bytes are kept and nothing of them was counted. `GET /admin/inbox/parked` shows the "
        "error; repair it, "
        "then `POST /admin/inbox/parked/replay`.",
        test=Compare(Increase("handbill_webhooks_parked_total", 3_600), ">", 0),
    ),
    Condition(
        name="HandbillWebhooksRefused",
        area="messaging",
        severity="warning",
        summary="More webhooks are refused than accepted",
        description="Most likely an app secret was changed at the provider and not here (`PATCH "
        "/admin/connections/(id)`). The "
        "provider repeats what was refused for seven days.",
        test=Both(
            Compare(
                Increase("handbill_webhooks_kept_total", 600, (), (Match("how", "=", "refused"),)),
                ">",
                Increase("handbill_webhooks_kept_total", 600, (), (Match("how", "=", "new"),)),
            ),
            Compare(Increase("handbill_webhooks_kept_total", 600, (), (Match("how", "=", "refused"),)), ">", 20),
        ),
        for_s=600,
    ),
    Condition(
        name="HandbillHookDisabled",
        area="messaging",
        severity="warning",
        summary="A webhook of a tenant was switched off: nothing arrived there for three days",
        description="Its owner sees it in `GET /admin/hooks` (off_reason: failing) and in the audit log, and "
        "switches it on again "
        "when the address works.",
        test=Compare(Increase("handbill_hooks_disabled_total", 3_600), ">", 0),
    ),
)

ADSTATS = (
    Condition(
        name="HandbillAdAccountDisconnected",
        area="adstats",
        severity="warning",
        summary="{value} ad accounts must be connected again",
        description="Their platform no longer accepts the token. Nothing more is read until there is a new one; see "
        "the log lines "
        "ad-account-disconnected.",
        test=Compare(Increase("handbill_adstats_tokens_dead_total", 3_600), ">", 0),
    ),
    Condition(
        name="HandbillAdStatsFailing",
        area="adstats",
        severity="warning",
        summary="More ad stats syncs fail than succeed",
        description="The platform is down, or its API has changed. What was read before stays; see "
        "stats-sync-failed in the "
        "worker's log.",
        test=Compare(
            Increase("handbill_adstats_syncs_total", 1_800, (), (Match("outcome", "=", "failed"),)),
            ">",
            Increase("handbill_adstats_syncs_total", 1_800, (), (Match("outcome", "=", "done"),)),
        ),
        for_s=900,
    ),
    Condition(
        name="HandbillAdStatsSilent",
        area="adstats",
        severity="warning",
        summary="No ad stats were read for an hour",
        description="The scheduler or the workers of the queue stats-sync do not run; see `handbill jobs ls`.",
        test=Both(
            Compare(Increase("handbill_adstats_syncs_total", 3_600), "==", 0),
            Compare(Latest("handbill_adstats_syncs_total", "sum"), ">", 0),
        ),
        for_s=1_800,
    ),
)
