"""Every metric of the house, in one typed list. Rooms append theirs in a block headed by the room's name.

A tenant label is the internal number, and only where few tenants can appear; text from outside is never a label.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client import Counter as _Counter
from prometheus_client import Gauge as _Gauge
from prometheus_client import Histogram as _Histogram

REGISTRY = CollectorRegistry(auto_describe=True)
# When each series began: a tenth of all lines, which no rule and no dashboard reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)


def Counter(name: str, doc: str, labels: tuple[str, ...] = ()) -> _Counter:
    return _Counter(name, doc, labels, registry=REGISTRY)


def Gauge(name: str, doc: str, labels: tuple[str, ...] = ()) -> _Gauge:
    return _Gauge(name, doc, labels, registry=REGISTRY)


def Histogram(name: str, doc: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = SECONDS) -> _Histogram:
    return _Histogram(name, doc, labels, buckets=buckets, registry=REGISTRY)


# --- background tasks and process health
TASK_LAST_SUCCESS = Gauge(
    "handbill_task_last_success_timestamp_seconds", "When a background task last finished a run", ("task",)
)
TASK_ERRORS = Counter("handbill_task_errors", "Runs of a background task that failed", ("task",))
TASK_STUCK = Gauge(
    "handbill_task_stuck", "1 while a background task has made no progress within its own limit", ("task",)
)
TENANT_STEPS_FAILED = Counter(
    "handbill_tenant_steps_failed", "Steps of a per-tenant task that failed for one tenant, by task", ("task",)
)
TENANTS_FAILING = Gauge(
    "handbill_tenants_failing", "Tenants (or days of a tenant) that a per-tenant task fails for, by task", ("task",)
)
RETENTION_STEPS_FAILED = Counter("handbill_retention_steps_failed", "Steps of nightly retention that failed", ("step",))
CATALOG_AGE_SECONDS = Gauge(
    "handbill_catalog_age_seconds", "Time since the in-memory catalog was last known to be current"
)
GEO_AGE_SECONDS = Gauge("handbill_geo_age_seconds", "Age of the GeoIP file in use; NaN without one")
DISK_FREE_BYTES = Gauge("handbill_disk_free_bytes", "Free bytes on the disk of the data directory")
DISK_FREE_RATIO = Gauge("handbill_disk_free_ratio", "Free share of the disk of the data directory, 0 to 1")
NOT_READY = Gauge("handbill_not_ready", "1 while a part of /ready fails, by part", ("part",))
NOT_MEASURED = float("nan")
"""The value of a gauge before it is measured, where 0 would mean something: a new file, a full disk."""
GEO_AGE_SECONDS.set(NOT_MEASURED)
DISK_FREE_BYTES.set(NOT_MEASURED)
DISK_FREE_RATIO.set(NOT_MEASURED)

# --- postgres
PG_SECONDS = Histogram("handbill_pg_seconds", "Time of one PostgreSQL statement", ("statement",))
PG_ERRORS = Counter("handbill_pg_errors", "PostgreSQL statements that failed, by SQLSTATE", ("sqlstate",))
PG_IN_USE = Gauge("handbill_pg_in_use", "Connections out of the pool at this moment", ("pool",))
PG_WAIT_SECONDS = Histogram("handbill_pg_wait_seconds", "Time spent waiting for a free connection", ("pool",))
PG_HOT_LOOKUPS = Counter(
    "handbill_postgres_hot_lookups",
    "Look-ups of hot routes, by outcome: answered, timed_out (waited and fell back), refused (did not wait)",
    ("outcome",),
)

# --- redis
REDIS_BATCH = Histogram("handbill_redis_batch", "Commands that shared one write", (), SIZES)
REDIS_SECONDS = Histogram("handbill_redis_seconds", "Time from the write of a batch to its first reply")
REDIS_ERRORS = Counter("handbill_redis_errors", "Failed Redis calls, by kind", ("kind",))
REDIS_CONNECTS = Counter("handbill_redis_connects", "Connections made to Redis, reconnects included")

# --- clickhouse
CH_SECONDS = Histogram("handbill_ch_seconds", "Time of one ClickHouse call", ("kind",))
CH_ERRORS = Counter("handbill_ch_errors", "Failed ClickHouse calls, by engine code (0: the engine was away)", ("code",))
CH_ROWS = Counter("handbill_ch_rows", "Rows sent to ClickHouse", ("table",))

# --- tenants
TENANTS_LOOKUPS = Counter(
    "handbill_tenants_lookups",
    "Keys and sessions looked up, by kind and by where the answer came from",
    ("kind", "source"),
)
TENANTS_JWKS_FETCHES = Counter("handbill_tenants_jwks_fetches", "Key sets fetched from tenants' URLs", ("outcome",))
TENANTS_LOGINS = Counter("handbill_tenants_logins", "Logins, by outcome", ("outcome",))
TENANTS_LIMIT_OPEN = Counter(
    "handbill_tenants_limit_open", "Logins let through uncounted because Redis was away (fails open)"
)

# --- api
API_SECONDS = Histogram("handbill_api_seconds", "Time from a request to the end of its answer", ("route", "method"))
API_REPLIES = Counter("handbill_api_replies", "Answers, by route, method and status", ("route", "method", "status"))
API_TENANT_REQUESTS = Counter(
    "handbill_api_tenant_requests",
    "Requests by tenant number: the first tenants seen by name, then `other`",
    ("tenant",),
)
API_IN_FLIGHT = Gauge("handbill_api_in_flight", "Requests being answered at this moment")
API_BODY_BYTES_HELD = Gauge("handbill_api_body_bytes_held", "Bytes of request bodies under way, held in memory")
API_CONNECTIONS_CUT = Counter(
    "handbill_api_connections_cut", "Connections shut down because their address held more than its share of them"
)
API_REPLAYS = Counter("handbill_api_replays", "Requests with an idempotency key, by what became of them", ("outcome",))

# --- events
PIPELINE_SECONDS = Histogram("handbill_pipeline_seconds", "Time of one pipeline step for one batch", ("step",))
EVENTS_ACCEPTED = Counter("handbill_events_accepted", "Events taken at the edge, durable", ("kind",))
EVENTS_SHED = Counter("handbill_events_shed", "Requests refused with 429 because the lanes lag too far behind")
EVENTS_COUNTED = Counter("handbill_events_counted", "Events counted for the first time")
EVENTS_DROPPED = Counter("handbill_events_dropped", "Events not counted, by kind and reason", ("kind", "reason"))
CAPTURE_THROTTLED = Counter("handbill_capture_throttled", "Requests with events refused by a tenant's rate")
CAPTURE_LIMITS_OPEN = Counter("handbill_capture_limits_open", "Requests let pass because Redis could not be asked")
INCOMING_DRAINED = Counter("handbill_incoming_drained", "Entries taken from the compatibility stream into the journal")
EVENTS_PARKED = Counter("handbill_events_parked", "Events parked with their bytes, by reason", ("reason",))
EVENTS_FLOODING_TENANTS = Gauge(
    "handbill_events_flooding_tenants", "Tenants with more rejected events in ten minutes than are parked one by one"
)
EVENTS_KEY_LOOKUPS = Counter(
    "handbill_events_key_lookups",
    "Views that may be copies of forgotten ones and were looked up before they moved a cap, by outcome",
    ("outcome",),
)
EVENTS_SHIPPED = Counter("handbill_events_shipped", "Events that ClickHouse has acknowledged")
EVENTS_UNSHIPPED = Gauge("handbill_events_unshipped", "Counted events that ClickHouse has not got, by lane", ("lane",))
EVENTS_UNSHIPPED_SECONDS = Gauge(
    "handbill_events_unshipped_seconds", "Age of the oldest batch that ClickHouse has not got, by lane", ("lane",)
)
OVERRIDES_SHIPPED = Counter("handbill_overrides_shipped", "Moves of an id to another person, told to ClickHouse")
PERSON_PROPERTIES_EXPORTED = Counter(
    "handbill_person_properties_exported",
    "People whose properties were sent to ClickHouse, the same one as often as it changed",
)
OVERRIDES_SQUASHED = Counter("handbill_overrides_squashed", "Overrides that were written into the rows and ended")
EVENTS_SHIPPING_LOST = Counter(
    "handbill_events_shipping_lost", "Counted events that the journal lost before ClickHouse had them"
)
EXPORT_ROWS_MISSING = Counter(
    "handbill_export_rows_missing", "Rows that ClickHouse took and did not have when they were counted"
)
EXPORT_ROWS_LOST = Counter(
    "handbill_export_rows_lost", "Exported rows that ClickHouse has lost and the journal does not have any more"
)
EXPORT_ROWS_DOUBLED = Counter("handbill_export_rows_doubled", "Rows that ClickHouse has more often than once")
SEQUENCE_CORRECTIONS_FINISHED = Counter(
    "handbill_sequence_corrections_finished",
    "Events that ClickHouse was seen to have with the smaller sequence that a copy brought",
)
SEQUENCE_CORRECTIONS_OPEN = Gauge(
    "handbill_sequence_corrections_open",
    "Events of which ClickHouse may have a larger sequence than the one that counts",
)
EXPORT_AUDIT_AGE_SECONDS = Gauge(
    "handbill_export_audit_age_seconds", "Age of the oldest exported batch that was not counted a second time"
)
JOURNAL_LAG_EVENTS = Gauge("handbill_journal_lag_events", "Events behind the cursor, by lane", ("lane",))
JOURNAL_LAG_SECONDS = Gauge("handbill_journal_lag_seconds", "Age of the oldest uncommitted event, by lane", ("lane",))
JOURNAL_GAPS = Counter("handbill_journal_gaps", "Times a lane's journal began behind its cursor: entries were lost")

# --- outbox and dead letters
OUTBOX_RELAYED = Counter("handbill_outbox_relayed", "Outbox rows handed to a queue", ("queue",))
OUTBOX_AGE_SECONDS = Histogram("handbill_outbox_age_seconds", "Time a due row waited before it was relayed", ("queue",))
OUTBOX_SETTLED = Counter(
    "handbill_outbox_settled", "Outbox rows removed, by what became of the job", ("queue", "outcome")
)
OUTBOX_REQUEUED = Counter(
    "handbill_outbox_requeued", "Relayed rows whose job Redis had forgotten, relayed again", ("queue",)
)
OUTBOX_PENDING = Gauge(
    "handbill_outbox_pending", "Due rows by queue and tenant number: the largest, then `other`", ("queue", "tenant")
)
OUTBOX_OLDEST_SECONDS = Gauge(
    "handbill_outbox_oldest_seconds", "Age of the oldest due row, by queue and tenant number", ("queue", "tenant")
)
QUEUE_DEPTH = Gauge("handbill_queue_depth", "Jobs in a queue, by state", ("queue", "state"))
DEAD_LETTERS = Counter("handbill_dead_letters", "Jobs that failed for good", ("queue",))
DEAD_LETTERS_OPEN = Gauge("handbill_dead_letters_open", "Dead letters that nobody has redriven or purged", ("queue",))
PRESSURE_REFUSED = Counter("handbill_pressure_refused", "Producers told to come back later", ("queue",))
BREAKER_OPENED = Counter("handbill_breaker_opened", "Times a circuit was opened")
BREAKER_FAILED_OPEN = Counter("handbill_breaker_failed_open", "Calls let through because the breaker's Redis was away")
LEADER = Gauge("handbill_leader", "1 while this process leads, by election", ("election",))

# --- caps
CAPS_MALFORMED = Counter("handbill_caps_malformed", "Packed cap values that could not be read and were started anew")
CAPS_HISTORY = Counter("handbill_caps_history", "Cap questions that went to PostgreSQL, by why", ("why",))
CAPS_REBUILT = Counter("handbill_caps_rebuilt", "Views put back into the caps by a rebuild or a back-fill")
CAPS_LEASES = Counter("handbill_caps_leases", "Slots asked for by strict decisions, by answer", ("answer",))
CAPS_LATE = Counter("handbill_caps_late", "Strict views reported after their lease had ended; they count all the same")

# --- journal
JOURNAL_APPEND_EVENTS = Histogram("handbill_journal_append_events", "Events that shared one append", (), SIZES)
JOURNAL_APPEND_SECONDS = Histogram("handbill_journal_append_seconds", "Time until an append was durable")
JOURNAL_COMMANDS_FAILED = Counter(
    "handbill_journal_commands_failed", "Commands beside an append (caps) that Redis refused; the events were kept"
)
JOURNAL_REFUSED = Counter(
    "handbill_journal_refused", "Appends refused, by why (full: the lane's buffer; away)", ("why",)
)
JOURNAL_SPILLED = Counter("handbill_journal_spilled", "Events sent to an overflow lane because their tenant was noisy")

# --- banners
SCHEDULE_CHANGES = Counter("handbill_schedule_changes", "Banners and campaigns whose status the clock changed")
SERVE_KEYS = Gauge(
    "handbill_serve_keys", "Keys of other programs under banners:serve:* at the last change of a schedule"
)
STATS_CORRECTED = Counter("handbill_stats_corrected", "Rows of the live stats that a recount had to set right")
STATS_AUDIT_WRONG = Counter("handbill_stats_audit_wrong", "Rows of the live stats that an audit found wrong")
ROLLUP_STALE_DAYS = Gauge("handbill_rollup_stale_days", "Days since the oldest day that should have been rolled up")
PARTITIONS_DROPPED = Counter("handbill_partitions_dropped", "Months of raw rows that retention dropped")
CATALOGUE_LOADS = Counter("handbill_catalogue_loads", "Tenants whose catalogue was loaded anew")
CATALOG_UNREADABLE_ROWS = Counter(
    "handbill_catalog_unreadable_rows", "Stored rows left out of a load of the catalog, by kind", ("kind",)
)
BANNERS_LEFT_OUT = Counter(
    "handbill_banners_left_out", "Banners that could not be compiled for decisions; shown to nobody until saved again"
)
PLANS_FAILED = Counter("handbill_banner_plans_failed", "Catalogs of a tenant that could not be compiled for decisions")
CATALOGUE_STALE = Counter(
    "handbill_catalogue_stale", "Refreshes of the catalogue that failed; the last copy was served"
)

# --- jobs
JOB_SECONDS = Histogram("handbill_job_seconds", "Time of one attempt at a job", ("queue",))
JOBS_ENDED = Counter(
    "handbill_jobs_ended",
    "Attempts by how they ended: completed, failed (for good), again (later), back (handed back), gone, stalled",
    ("queue", "how"),
)
DECIDE_FALLBACK = Counter("handbill_decide_fallback", "Decisions made without Redis, by what stood in", ("by",))
THROTTLE_REFUSED = Counter("handbill_throttle_refused", "Tracking requests refused by the limit per client address")
THROTTLE_OPEN = Counter("handbill_throttle_open", "Tracking requests let pass because Redis was away")

# --- contacts
IMPORT_ROWS = Counter("handbill_import_rows", "Rows of imported files: parsed, rejected or merged", ("what",))

# --- show
REDIRECT_UNCOUNTED = Counter("handbill_redirect_uncounted", "Clicks led on but not counted, by the error", ("code",))
GEO_FETCH = Counter("handbill_geo_fetch", "Attempts to fetch the GeoIP file: fetched or failed", ("how",))

# --- insights
INSIGHTS_SECONDS = Histogram("handbill_insights_seconds", "Time to answer a question about events", ("question",))
INSIGHTS_REFUSED = Counter(
    "handbill_insights_refused", "Questions not answered, by why: busy, full, heavy, left", ("why",)
)
READS_WAITED = Counter(
    "handbill_reads_waited",
    "Reads that were asked to wait, by what for, and by outcome: complete, incomplete, full (it was not waited)",
    ("until", "outcome"),
)
INSIGHTS_TAILS = Gauge("handbill_insights_tails", "Live tails that are open in this process")
INSIGHTS_TAIL_SKIPPED = Counter("handbill_insights_tail_skipped", "Events that a live tail was too slow to show")

# --- segments
SEGMENTS_REFRESHED = Counter("handbill_segments_refreshed", "People held against the segments' rules after a change")
PROJECTION_WALKS = Counter(
    "handbill_projection_walks", "Walks that wrote everybody's projection: lost (Redis was wiped) or grown", ("why",)
)
PROJECTION_FILLS = Counter(
    "handbill_projection_fills", "Projections a decision asked for: filled, nobody, failed or left", ("outcome",)
)

# --- people
PEOPLE_FOLDED = Counter("handbill_people_folded", "Marked ids whose people were worked out, by sort", ("sort",))
PEOPLE_REFOLDS = Counter("handbill_people_refolds", "Components folded anew: a late edge, or one undone")
PEOPLE_MENDED = Counter("handbill_people_mended", "Tenants for whom a crash had left people unfolded or untold")

# --- ad stats
ADSTATS_SYNCS = Counter("handbill_adstats_syncs", "Sync jobs by level and by how they ended", ("level", "outcome"))
ADSTATS_ROWS = Counter("handbill_adstats_rows", "Rows that syncs wrote, by stage; unchanged ones are not", ("stage",))
ADSTATS_FETCH_SECONDS = Histogram(
    "handbill_adstats_fetch_seconds", "Time of one answer of an ad platform", ("provider",)
)
ADSTATS_TOKENS_DEAD = Counter(
    "handbill_adstats_tokens_dead", "Ad accounts whose token died and that must be reconnected"
)
ADSTATS_UNMATCHED = Counter(
    "handbill_adstats_unmatched", "Rows of a platform about entities that nobody has imported, or that it does not name"
)
TOKEN_SECONDS_LEFT = Gauge(
    "handbill_token_seconds_left",
    "Time left of the token that ends first, by kind (whatsapp, meta_ads); negative after its end",
    ("kind",),
)
TOKENS_ENDING = Gauge("handbill_tokens_ending", "Tokens that end within 7 days, by kind", ("kind",))
TOKENS_DEAD = Gauge("handbill_tokens_dead", "Tokens that their provider refuses, by kind", ("kind",))

# --- messaging: providers
MESSAGING_TOKENS_DEAD = Counter(
    "handbill_messaging_tokens_dead", "Connections whose token the provider refuses, counted when it is found out"
)
PROVIDER_SENDS = Counter(
    "handbill_provider_sends",
    "Requests to send one message, by outcome: accepted, refused, unwritten (safe to repeat), lost (unknown)",
    ("channel", "outcome"),
)

# --- messaging: campaigns
MESSAGES = Counter(
    "handbill_messages",
    "Claimed messages by what came of them: accepted, failed, again (later), unknown, back (not tried), skipped",
    ("how",),
)
MESSAGE_SKIPS = Counter("handbill_message_skips", "Messages skipped, by reason", ("reason",))
MESSAGE_WAIT_SECONDS = Histogram(
    "handbill_message_wait_seconds", "From the time a message was made to its first attempt"
)
CAMPAIGNS_ENDED = Counter("handbill_campaigns_ended", "Campaigns by how they ended or were paused", ("how",))
WEBHOOKS_KEPT = Counter("handbill_webhooks_kept", "Webhooks of providers: new, copy (known already), refused", ("how",))
WEBHOOK_FACTS = Counter("handbill_webhook_facts", "What webhooks said, by kind", ("kind",))
WEBHOOKS_PARKED = Counter("handbill_webhooks_parked", "Webhooks that could not be worked on and wait for a person")
HOOK_DELIVERIES = Counter("handbill_hook_deliveries", "Our own webhooks, by how a try ended", ("how",))
HOOKS_DISABLED = Counter("handbill_hooks_disabled", "Webhooks of ours that were switched off: they failed for too long")
MESSAGING_JAIN = Gauge(
    "handbill_messaging_jain", "Jain's index of the tenants' sending rates in the last minute; 1 is fair"
)
MESSAGING_RATE = Gauge(
    "handbill_messaging_rate", "Messages a second in the last minute, by internal tenant number", ("tenant",)
)
MESSAGING_WAIT = Gauge(
    "handbill_messaging_wait", "Mean wait in seconds in the last minute, by internal tenant number", ("tenant",)
)
