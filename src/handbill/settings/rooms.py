"""Settings of the rooms that face users: what is captured, shown, known, reached and accounted for."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from handbill.settings.types import SECRET, HttpUrl


class Events(msgspec.Struct, frozen=True):
    lanes: Annotated[int, Meta(ge=1, le=100, description="Main lanes of the journal; only ever raise it.")] = 4
    overflow_lanes: Annotated[
        int, Meta(ge=1, le=100, description="Lanes beside them for tenants that send more than their share.")
    ] = 2
    batch_events: Annotated[int, Meta(ge=1, le=100_000, description="The most events in one transaction.")] = 5_000
    batch_wait_ms: Annotated[
        int, Meta(ge=0, le=10_000, description="How long a batch that is not full waits for more events.")
    ] = 50
    lease_s: Annotated[
        float, Meta(ge=1, le=600, description="Seconds after which a silent worker's lanes go to another.")
    ] = 6.0
    overflow_share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="The part of the time that overflow lanes work while main lanes have work.",
        ),
    ] = 0.25
    trim_after_s: Annotated[
        float, Meta(ge=60, description="Seconds for which the journal keeps what is counted already.")
    ] = 600.0
    backpressure_threshold: Annotated[
        int, Meta(ge=1, description="Events waiting to be counted above which new ones are refused with 429.")
    ] = 900_000
    backpressure_seconds: Annotated[
        float, Meta(ge=1, description="Seconds that the oldest may wait to be counted before new ones are refused.")
    ] = 600.0
    retry_after_s: Annotated[
        float, Meta(ge=0, description="Seconds after which a refused client is asked to come back.")
    ] = 5.0
    ship_events: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Counted events of a lane that go to ClickHouse together, at least.")
    ] = 1_000
    ship_wait_s: Annotated[
        float, Meta(ge=0, le=600, description="Seconds after which fewer than that go to ClickHouse all the same.")
    ] = 1.0
    ship_most_events: Annotated[
        int, Meta(ge=1, le=1_000_000, description="The most events of one shipment while many wait.")
    ] = 20_000
    unshipped_limit: Annotated[
        int,
        Meta(
            ge=1,
            description="Counted events waiting for ClickHouse above which new ones are refused with 429.",
        ),
    ] = 2_000_000
    history_days: Annotated[
        int,
        Meta(ge=0, description="Days for which ClickHouse keeps events, unless the tenant has its own; 0: for ever."),
    ] = 0
    quota_per_day: Annotated[
        int,
        Meta(ge=0, description="Product events a tenant may send a day (UTC), unless it has its own; 0: no limit."),
    ] = 0
    rate_per_second: Annotated[
        float,
        Meta(ge=0, description="Product events a tenant may send a second, unless it has its own; 0: no limit."),
    ] = 0.0
    incoming_stream: Annotated[
        str | None,
        Meta(
            description="A Redis stream of flat entries, such as `events:incoming`, that is drained into the journal."
        ),
    ] = None


class Banners(msgspec.Struct, frozen=True):
    throttle_per_minute: Annotated[
        int,
        Meta(
            ge=0,
            description="Never more than so many impressions in any 60 s from one client address, a fifth of them at "
            "once; as many clicks, views and requests for banners that are not shown. 0 means no limit.",
        ),
    ] = 600
    key_throttle_per_minute: Annotated[
        int,
        Meta(
            ge=0,
            description="The same for requests with a secret key: by the key, wherever they come from. 0 means no "
            "limit.",
        ),
    ] = 60_000
    accidental_close_ms: Annotated[
        int, Meta(ge=0, description="A view closed sooner than this is marked as accidental.")
    ] = 500
    schedule_sync_cron: Annotated[
        str, Meta(min_length=9, description="When banners and campaigns are switched by their schedules (cron, UTC).")
    ] = "* * * * *"
    stats_rollup_cron: Annotated[
        str, Meta(min_length=9, description="When yesterday's statistics are recomputed (cron, UTC).")
    ] = "0 1 * * *"
    retention_cron: Annotated[
        str, Meta(min_length=9, description="When partitions past their retention are dropped (cron, UTC).")
    ] = "30 2 * * *"
    retention_days: Annotated[int, Meta(ge=1, description="Days for which raw events are kept.")] = 90
    token_ttl_s: Annotated[
        int, Meta(ge=60, le=2_592_000, description="For how long a decision's token and link are good.")
    ] = 86_400
    decisions_per_minute: Annotated[
        int,
        Meta(
            ge=0,
            description="Decisions for one user: so many at once, and as many a minute from then on; more are refused "
            "with 429 `USER_THROTTLED`. 0 means no limit.",
        ),
    ] = 120
    geo_file: Annotated[
        str | None,
        Meta(description="A country database (MMDB) on this machine, for targeting by country."),
    ] = None
    geo_url: Annotated[
        HttpUrl | None, Meta(description="Where the country database is fetched from; none by default.")
    ] = None
    geo_insecure: Annotated[
        bool, Meta(description="Whether that address may be plain HTTP or private: for a mirror in your own network.")
    ] = False


class Insights(msgspec.Struct, frozen=True):
    max_seconds: Annotated[
        int, Meta(ge=1, le=25, description="Seconds that one question about events may take before it is refused.")
    ] = 20
    max_memory_mb: Annotated[
        int, Meta(ge=64, description="Megabytes of the event store's memory that one question may use.")
    ] = 1024
    max_rows_read: Annotated[int, Meta(ge=1_000, description="Rows that one question may read in the event store.")] = (
        500_000_000
    )
    questions_at_once: Annotated[
        int, Meta(ge=1, le=100, description="Questions of one tenant that a process answers at the same time.")
    ] = 4
    questions_per_process: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="Questions of all tenants that a process answers at the same time; tenants take turns.",
        ),
    ] = 16


class Adstats(msgspec.Struct, frozen=True):
    mode: Annotated[
        Literal["latest", "sum"],
        Meta(description="How a day is made of a platform's answers: the newest one, or all of them added up."),
    ] = "latest"
    sync_cron: Annotated[
        str, Meta(min_length=9, description="When ad accounts are looked through for what is due (cron, UTC).")
    ] = "*/5 * * * *"
    raw_days: Annotated[
        int, Meta(ge=1, description="Days after which a month of an ad platform's answers may go; the ledger stays.")
    ] = 35
    meta_url: Annotated[HttpUrl, Meta(description="Where Meta's Graph API answers.")] = "https://graph.facebook.com"
    meta_insecure: Annotated[
        bool,
        Meta(
            description="Whether that address may be plain HTTP or private, in your own network: tokens are readable."
        ),
    ] = False
    meta_version: Annotated[
        str, Meta(pattern=r"^v[0-9]{1,3}[.][0-9]$", description="The version of the Graph API that is asked for.")
    ] = "v23.0"
    meta_app_secret: Annotated[
        str | None, Meta(description="Proves to Meta that calls come from your app; unset sends none.", extra=SECRET)
    ] = None
    meta_poll_ms: Annotated[
        int, Meta(ge=10, description="How often Meta is asked whether an asynchronous report is ready.")
    ] = 2_000


class Contacts(msgspec.Struct, frozen=True):
    upload_dir: Annotated[
        str | None,
        Meta(description="Where uploaded files lie, seen by every API and worker; unset means `uploads` in the home."),
    ] = None
    upload_limit: Annotated[int, Meta(ge=1_024, description="The largest uploaded file, in bytes.")] = 1_073_741_824
    unpacked_limit: Annotated[int, Meta(ge=1_024, description="The most bytes a packed file may unpack to.")] = (
        4_294_967_296
    )
    xlsx_limit: Annotated[
        int, Meta(ge=1_024, description="The most bytes an XLSX may unpack to; it is read whole, unlike the others.")
    ] = 134_217_728
    imports_at_once: Annotated[
        int, Meta(ge=1, le=100, description="Imports of one tenant that run at the same time; the others wait.")
    ] = 2
    imports_waiting: Annotated[
        int, Meta(ge=1, le=10_000, description="Imports of one tenant under way above which uploads are refused.")
    ] = 20
    unstarted_uploads: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Uploads of one tenant that nobody started, above which another is refused."),
    ] = 20
    unstarted_bytes: Annotated[
        int,
        Meta(
            ge=1_024,
            description="Bytes of such uploads of one tenant, together; at least as many as one file may have.",
        ),
    ] = 2_147_483_648
    unstarted_hours: Annotated[
        int, Meta(ge=1, le=8_760, description="Hours after which an upload that nobody started expires.")
    ] = 48
    keep_days: Annotated[
        int, Meta(ge=1, description="Days for which uploaded files are kept, counted from the upload.")
    ] = 7
    report_days: Annotated[int, Meta(ge=1, description="Days for which the rejected rows of an import are kept.")] = 90
    chunk_bytes: Annotated[int, Meta(ge=4_096, le=67_108_864, description="Bytes of a file that one job parses.")] = (
        1_048_576
    )
    slice_rows: Annotated[
        int, Meta(ge=100, le=1_000_000, description="Rows of an import that one transaction merges, about.")
    ] = 25_000
    parsers: Annotated[
        int, Meta(ge=0, le=256, description="Processes that parse files; 0 means one for each core.")
    ] = 0
    chunk_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=3_600,
            description="Seconds of CPU time that one chunk of a file may take; what takes longer is halved, and"
            " rejected in the end. A chunk of 1 MB usually takes one or two.",
        ),
    ] = 60
    parser_memory_mb: Annotated[
        int, Meta(ge=512, le=1_048_576, description="Address space of one process that reads files, in megabytes.")
    ] = 4_096
    preview_processes: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Processes of one API process that read the first rows of uploaded files, started when needed;"
            " a tenant has at most half of them at once.",
        ),
    ] = 2
    preview_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=600,
            description="Seconds of CPU time that reading the first rows of a file may take, for its proposal or its"
            " preview; a file that takes longer is refused as `IMPORT_LIMIT`.",
        ),
    ] = 30
    preview_memory_mb: Annotated[
        int,
        Meta(ge=512, le=1_048_576, description="Address space of one process that reads first rows, in megabytes."),
    ] = 2_048


class Messaging(msgspec.Struct, frozen=True):
    graph_url: Annotated[
        HttpUrl,
        Meta(description="Where WhatsApp's API is; the address of `handbill fake-graph` to try things out."),
    ] = "https://graph.facebook.com"
    graph_version: Annotated[
        str, Meta(pattern=r"^v[0-9]{1,3}\.[0-9]{1,2}$", description="The version of that API in every address.")
    ] = "v23.0"
    graph_insecure: Annotated[
        bool,
        Meta(
            description="Whether that address may be plain HTTP or private, in your own network: tokens are readable."
        ),
    ] = False
    graph_connections: Annotated[
        int, Meta(ge=1, le=10_000, description="Requests to that API that one process has under way at once.")
    ] = 256
    graph_connect_ms: Annotated[
        int, Meta(ge=10, description="The longest wait for a connection; nothing was sent when it ends.")
    ] = 5_000
    graph_answer_ms: Annotated[
        int, Meta(ge=10, description="The longest wait for an answer; whether it was sent is unknown when it ends.")
    ] = 30_000
    turn_ms: Annotated[
        int, Meta(ge=50, le=10_000, description="How long one number sends before its next turn is queued.")
    ] = 1_000
    lease_s: Annotated[
        float, Meta(ge=1, description="How long a number's turns may be silent before they are begun anew.")
    ] = 30
    standard_per_second: Annotated[
        int, Meta(ge=0, description="Messages a second of one tenant of the standard tier; 0 means no limit of ours.")
    ] = 10
    enterprise_per_second: Annotated[int, Meta(ge=0, description="The same for the enterprise tier.")] = 50
    claim_s: Annotated[
        float, Meta(ge=1, description="After this a claimed message that was not tried goes back to its place.")
    ] = 30
    unanswered_s: Annotated[
        float,
        Meta(ge=1, description="After this an attempt without an answer is unknown; longer than any answer may take."),
    ] = 120
    unknown_hours: Annotated[
        float, Meta(ge=0, description="How long a webhook may lift an unknown message before it counts as failed.")
    ] = 72
    number_pause_s: Annotated[
        float, Meta(ge=0, description="How long a number rests after the provider throttled it twice in a row.")
    ] = 60
    pause_after_refusals: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="So many refusals of one campaign in a row that everybody else would get pause it.",
        ),
    ] = 5
    campaigns_per_poll: Annotated[
        int, Meta(ge=1, le=1_000, description="Campaigns that begin at once, over all tenants; others a second later.")
    ] = 10
    campaigns_per_tenant: Annotated[
        int,
        Meta(ge=1, le=1_000, description="How many of them one tenant has in each round while others have some ready."),
    ] = 2
    singles_waiting: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Single messages of one tenant without an outcome; more are refused."),
    ] = 10_000
    hooks_insecure: Annotated[
        bool, Meta(description="Whether our own webhooks may go to plain HTTP and private addresses: for trying out.")
    ] = False
    dispatch_concurrency: Annotated[
        int, Meta(ge=1, le=1_000, description="Numbers for which one worker sends at once.")
    ] = 64
