"""Every setting, one frozen struct per room. A field's description is its documentation: `handbill settings` prints it.

A field is read from `HANDBILL_<SECTION>__<NAME>`; an empty value means "not set". Names end in their unit.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from handbill.settings.alerts import Alerts
from handbill.settings.rooms import Adstats, Banners, Contacts, Events, Insights, Messaging
from handbill.settings.types import LOOPBACK, SECRET, SECRET_URL, HttpUrl, Port, PostgresUrl, PublicUrl, RedisUrl


class Log(msgspec.Struct, frozen=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The least level that is written to the log; lines are JSON on standard error."),
    ] = "info"


class Telemetry(msgspec.Struct, frozen=True):
    otlp_endpoint: Annotated[
        HttpUrl | None, Meta(description="Where OpenTelemetry traces go (OTLP over HTTP); unset means no tracing.")
    ] = None
    service_name: Annotated[str, Meta(description="The service name on every trace.")] = "handbill"


class Postgres(msgspec.Struct, frozen=True):
    url: Annotated[
        PostgresUrl | None,
        Meta(
            description="The owner's direct address, used for migrations; unset means the embedded PostgreSQL.",
            extra=SECRET_URL,
        ),
    ] = None
    app_url: Annotated[
        PostgresUrl | None,
        Meta(
            description="Address of the role handbill_app, through a pooler if you have one; derived if unset.",
            extra=SECRET_URL,
        ),
    ] = None
    worker_url: Annotated[
        PostgresUrl | None,
        Meta(
            description="Address of the role handbill_worker, through a pooler if you have one; derived if unset.",
            extra=SECRET_URL,
        ),
    ] = None
    direct_url: Annotated[
        PostgresUrl | None,
        Meta(
            description="Address of the role handbill_worker past any pooler, for session locks; derived if unset.",
            extra=SECRET_URL,
        ),
    ] = None
    pooler_prepares: Annotated[
        bool, Meta(description="Whether your pooler keeps prepared statements (PgBouncer 1.21 or newer does).")
    ] = False
    port: Annotated[Port | None, Meta(description="Port of the embedded PostgreSQL; unset means a free one.")] = None
    app_size: Annotated[int, Meta(ge=1, le=500, description="Connections of one process as the app role.")] = 10
    worker_size: Annotated[int, Meta(ge=1, le=500, description="Connections of one process as the worker role.")] = 10
    direct_size: Annotated[int, Meta(ge=1, le=100, description="Connections of one process past any pooler.")] = 2
    statement_timeout_ms: Annotated[
        int, Meta(ge=100, description="The longest that one statement may run before PostgreSQL ends it.")
    ] = 30_000
    lock_timeout_ms: Annotated[int, Meta(ge=10, description="The longest that one statement may wait for a lock.")] = (
        5_000
    )
    fallback_timeout_ms: Annotated[
        int,
        Meta(
            ge=10,
            description="How long hot routes wait for a PostgreSQL that does not answer before they use their memory.",
        ),
    ] = 250
    lookup_timeout_ms: Annotated[
        int,
        Meta(
            ge=10,
            description="The same where only PostgreSQL knows (a key never seen before): then the answer is 503.",
        ),
    ] = 2_000


class Redis(msgspec.Struct, frozen=True):
    url: Annotated[
        RedisUrl | None,
        Meta(
            description="redis://:password@host:port/db (or rediss://, unix://) of a single primary, with or without "
            "replicas; Redis Cluster and Sentinel are not supported. Unset means the embedded Redis.",
            extra=SECRET_URL,
        ),
    ] = None
    port: Annotated[Port | None, Meta(description="Port of the embedded Redis; unset means a free one.")] = None
    timeout_ms: Annotated[
        int, Meta(ge=10, description="The longest that one call waits for an answer before Redis counts as away.")
    ] = 1_000


class ClickHouse(msgspec.Struct, frozen=True):
    url: Annotated[
        HttpUrl | None,
        Meta(
            description="http://user:password@host:port/database; unset means the embedded ClickHouse.",
            extra=SECRET_URL,
        ),
    ] = None
    port: Annotated[Port | None, Meta(description="Port of the embedded ClickHouse; unset means a free one.")] = None


class Api(msgspec.Struct, frozen=True):
    host: Annotated[str, Meta(description="The address on which the API listens.")] = LOOPBACK
    port: Annotated[int, Meta(ge=1, le=65535, description="The port on which the API listens.")] = 8080
    public_url: Annotated[
        PublicUrl | None,
        Meta(
            description="Where others reach this API, e.g. https://ads.example.com: every link that leaves the "
            "installation begins with it. Unset, what needs a link is refused with PUBLIC_URL_UNSET."
        ),
    ] = None
    processes: Annotated[int, Meta(ge=1, le=64, description="API processes that share the port under `up`.")] = 1
    body_limit: Annotated[int, Meta(ge=1_024, description="The largest request body, in bytes.")] = 1_048_576
    body_timeout_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=600,
            description="Seconds for a body, or for each part of it that has as many bytes as the least rate makes in "
            "this time: about a megabyte. A slower client gets 408 and its connection is closed.",
        ),
    ] = 30.0
    body_bytes_per_s: Annotated[int, Meta(ge=1, description="The least rate of a body, in bytes a second.")] = 32_768
    upload_bytes_per_s: Annotated[
        int,
        Meta(ge=1, description="The least rate of an uploaded file, in bytes a second; it may take as long as it is."),
    ] = 4_096
    bodies_held_bytes: Annotated[
        int,
        Meta(
            ge=1_048_576,
            description="The most bytes of bodies under way that one process holds; beyond it, 503 BODIES_BUSY.",
        ),
    ] = 268_435_456
    bodies_held_bytes_per_address: Annotated[
        int,
        Meta(ge=1_048_576, description="The same for the clients of one address (IPv6: of one /64 network)."),
    ] = 67_108_864
    bodies_per_address: Annotated[
        int,
        Meta(
            ge=1,
            description="The most bodies under way from one address in one process, those not counted that come in one "
            "packet; beyond it, 429 TOO_MANY_BODIES.",
        ),
    ] = 256
    header_timeout_s: Annotated[
        int,
        Meta(
            ge=1,
            le=600,
            description="Seconds after which a connection is closed that has sent no whole request head, also between "
            "two requests.",
        ),
    ] = 30
    max_connections: Annotated[
        int,
        Meta(
            ge=16,
            le=65_535,
            description="The most open connections of one process; further ones wait to be accepted. When three "
            "quarters are open, addresses with the most are cut back to an equal share, except trusted proxies.",
        ),
    ] = 1_024
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(description="Networks (comma-separated CIDRs) whose X-Forwarded-For is believed; none by default."),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(description="Origins that may call the write-key routes from a browser, separated by commas."),
    ] = ("*",)
    secure_cookies: Annotated[
        bool, Meta(description="Whether session cookies are sent over HTTPS only; switch off for plain HTTP.")
    ] = True
    metrics_host: Annotated[str, Meta(description="The address of the API's operator-only listener.")] = LOOPBACK
    metrics_port: Annotated[
        int,
        Meta(
            ge=0, le=65535, description="Port of the API's /metrics, and of /ready with all details; 0 switches it off."
        ),
    ] = 9101
    kill_timeout_s: Annotated[
        int,
        Meta(ge=1, le=600, description="Seconds that open requests have after a stop signal before they are cut."),
    ] = 10
    heartbeat_file: Annotated[
        str | None,
        Meta(
            description="The file touched every 5 s while the API process is alive; unset means `run/api.heartbeat` "
            "under the home. Under `up`, further processes use the same name with `-2`, `-3` and so on."
        ),
    ] = None


class Worker(msgspec.Struct, frozen=True):
    only: Annotated[
        tuple[Literal["relay", "consume", "jobs", "cron"], ...],
        Meta(description="The kinds of chores this process runs (relay, consume, jobs, cron); unset means all."),
    ] = ()
    host: Annotated[str, Meta(description="The address of the worker's health page.")] = LOOPBACK
    port: Annotated[int, Meta(ge=0, le=65535, description="Port of the worker's GET /health; 0 switches it off.")] = (
        3001
    )
    metrics_port: Annotated[
        int, Meta(ge=0, le=65535, description="Port of the worker's Prometheus page; 0 switches it off.")
    ] = 9102
    heartbeat_file: Annotated[
        str | None, Meta(description="The file touched while the worker is alive; unset means one under the home.")
    ] = None
    stop_seconds: Annotated[
        int, Meta(ge=1, le=600, description="How long one chore may take to stop before it is left behind.")
    ] = 20
    max_errors: Annotated[
        int,
        Meta(ge=1, description="Errors in a row, busy ones not counted, after which the worker exits to be restarted."),
    ] = 100


class Health(msgspec.Struct, frozen=True):
    disk_free_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="`/ready` fails below this free share of the data directory's disk; 0: never."),
    ] = 0.05
    disk_free_bytes: Annotated[
        int, Meta(ge=0, description="`/ready` fails below so many free bytes on the data directory's disk; 0: never.")
    ] = 1_073_741_824


class Tenants(msgspec.Struct, frozen=True):
    key_cache_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=300,
            description="How long a process may trust a key that it has looked up. For five times as long, the next "
            "request with a write key is still answered at once, and the key is looked up again beside it.",
        ),
    ] = 5.0
    seal_key: Annotated[
        str | None,
        Meta(
            description="Seals the tenants' own secrets at rest; unset means a generated one in the home's secrets.",
            extra=SECRET,
        ),
    ] = None
    session_hours: Annotated[int, Meta(ge=1, le=8_760, description="How long a user's session lasts.")] = 12


class Jobs(msgspec.Struct, frozen=True):
    prefix: Annotated[
        str, Meta(min_length=1, description="Prefix of every queue key, the same as that of BullMQ's other clients.")
    ] = "bull"
    lock_ms: Annotated[
        int, Meta(ge=1_000, description="How long a running job's lock lasts when its worker no longer renews it.")
    ] = 30_000
    stalled_ms: Annotated[
        int, Meta(ge=1_000, description="How often jobs of workers that are gone are looked for.")
    ] = 30_000
    grace_s: Annotated[
        int, Meta(ge=0, le=600, description="Seconds that running jobs have at a stop before they are handed back.")
    ] = 15
    relay_per_tenant: Annotated[
        int, Meta(ge=1, description="The most outbox rows of one tenant that one relay cycle takes.")
    ] = 50
    relay_per_cycle: Annotated[int, Meta(ge=1, description="The most outbox rows that one relay cycle takes.")] = 500
    relay_poll_ms: Annotated[
        int, Meta(ge=10, description="How often the relay looks for work by itself, should a wake-up be lost.")
    ] = 1_000
    pressure_depth: Annotated[
        int, Meta(ge=1, description="Waiting jobs of one tenant in one queue above which new ones are refused.")
    ] = 50_000
    pressure_age_s: Annotated[
        int, Meta(ge=1, description="Age in seconds of a tenant's oldest waiting job above which new ones are refused.")
    ] = 3_600
    sweep_grace_s: Annotated[
        int, Meta(ge=1, description="Seconds after which a relayed job that Redis forgot is queued again.")
    ] = 60
    handled_days: Annotated[
        int, Meta(ge=1, description="Days for which a handled job is remembered, so that a copy changes nothing.")
    ] = 35


class Settings(msgspec.Struct, frozen=True):
    """All of it. Built by `settings.load`, handed to the wiring, read by nobody else."""

    home: Annotated[
        str,
        Meta(
            min_length=1,
            description="The directory of the embedded engines and their secrets, as an absolute path. Without it, "
            "`.handbill` in the working directory or the nearest one above it; root in a place that is closed to "
            "others uses /var/lib/handbill.",
        ),
    ] = ".handbill"
    demo: Annotated[
        Literal["auto", "on", "off"],
        Meta(
            description="The demo tenant with its keys, and the demo shop at /demo. auto: `up` makes the tenant on the "
            "embedded PostgreSQL when there is no other; on: `up` makes it wherever there is none yet; off: nothing is "
            "made, read, printed or served."
        ),
    ] = "auto"
    log: Log = Log()
    telemetry: Telemetry = Telemetry()
    postgres: Postgres = Postgres()
    redis: Redis = Redis()
    clickhouse: ClickHouse = ClickHouse()
    api: Api = Api()
    worker: Worker = Worker()
    health: Health = Health()
    tenants: Tenants = Tenants()
    jobs: Jobs = Jobs()
    events: Events = Events()
    insights: Insights = Insights()
    banners: Banners = Banners()
    adstats: Adstats = Adstats()
    contacts: Contacts = Contacts()
    messaging: Messaging = Messaging()
    alerts: Alerts = Alerts()
