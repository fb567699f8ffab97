"""Conditions of what every installation does: processes, serving, counting, export, disk."""

from __future__ import annotations

from handbill.alerts.condition import Condition
from handbill.alerts.grammar import (
    Absent,
    Both,
    Compare,
    Increase,
    Latest,
    Match,
    Quantile,
    Ratio,
    SecondsSince,
)

_ANSWERS = (Match("route", "!~", "/ready|/health"),)
_FAILED = (*_ANSWERS, Match("status", "=~", "5.."))
_DECIDING = (Match("route", "=~", "/banners|/v1/decide"),)

PROCESSES = (
    Condition(
        name="HandbillDown",
        area="processes",
        severity="critical",
        summary="{job} at {instance} does not answer",
        description="Its metrics page did not answer: the process is stopped, stuck or cut off. Run `handbill "
        "doctor`, and look "
        "at the end of its log.",
        test=Compare(Latest("up", "min", ("job", "instance"), (Match("job", "=~", "handbill-.*"),)), "==", 0),
        for_s=15,
    ),
    Condition(
        name="HandbillApiMissing",
        area="processes",
        severity="critical",
        summary="Prometheus has no API process to read",
        description="No target of the job handbill-api exists: none runs, or service discovery does not find it.",
        test=Absent("up", (Match("job", "=", "handbill-api"),)),
        for_s=15,
        prometheus_only=True,
    ),
    Condition(
        name="HandbillWorkerMissing",
        area="processes",
        severity="critical",
        summary="Prometheus has no worker process to read",
        description="No target of the job handbill-worker exists: none runs, or service discovery does not find it.",
        test=Absent("up", (Match("job", "=", "handbill-worker"),)),
        for_s=15,
        prometheus_only=True,
    ),
    Condition(
        name="HandbillNotReady",
        area="processes",
        severity="critical",
        summary="{part} fails its readiness check",
        description="Requests that need it are refused. Run `handbill doctor`; `GET /ready` on the metrics port has "
        "the reason.",
        test=Compare(Latest("handbill_not_ready", "max", ("part",)), ">", 0),
        for_s=20,
    ),
    Condition(
        name="HandbillTaskStuck",
        area="processes",
        severity="critical",
        summary="The background task {task} makes no progress",
        description="It has not reported for longer than its own limit. The log line that names the task says since "
        "when; restart "
        "the process if it does not restart by itself.",
        test=Compare(Latest("handbill_task_stuck", "max", ("task",)), ">", 0),
        onset_s=40,
    ),
    Condition(
        name="HandbillTaskFailing",
        area="processes",
        severity="warning",
        summary="The background task {task} failed {value} times in 10 minutes",
        description="It is tried again by itself. The reason is in the log of its process, beside the name of the "
        "task.",
        test=Compare(Increase("handbill_task_errors_total", 600, ("task",)), ">=", 5),
    ),
    Condition(
        name="HandbillDiskLow",
        area="processes",
        severity="warning",
        summary="{value} of the disk of the data directory is free",
        description="Remove old backups and files of other programs, or enlarge the disk, before it is full.",
        test=Compare(Latest("handbill_disk_free_ratio", "min"), "<", 0.15),
        for_s=60,
        unit="ratio",
    ),
    Condition(
        name="HandbillDiskAlmostFull",
        area="processes",
        severity="critical",
        summary="Only {value} of the disk of the data directory is free",
        description="When it is full, engines stop accepting data. Free space now: `df -h`, then `du -xsh` of what "
        "is large.",
        test=Compare(Latest("handbill_disk_free_ratio", "min"), "<", 0.05),
        for_s=10,
        unit="ratio",
    ),
    Condition(
        name="HandbillCertificateEnds",
        area="processes",
        severity="warning",
        summary="The TLS certificate of the public address ends within 14 days",
        description="Renew it at the proxy. After its end no browser and no app reaches this installation.",
        test=Compare(SecondsSince(Latest("probe_ssl_earliest_cert_expiry", "min")), ">", -14 * 86_400),
        unit="seconds",
    ),
)

SERVING = (
    Condition(
        name="HandbillServerErrors",
        area="serving",
        severity="critical",
        summary="{value} of all answers are errors of ours (5xx)",
        description="At least 5 in a minute. `handbill doctor` shows whether an engine is away; the API's log has "
        "each error.",
        test=Both(
            Compare(
                Ratio(
                    Increase("handbill_api_replies_total", 60, (), _FAILED),
                    Increase("handbill_api_replies_total", 60, (), _ANSWERS),
                ),
                ">",
                0.05,
            ),
            Compare(Increase("handbill_api_replies_total", 60, (), _FAILED), ">=", 5),
        ),
        for_s=10,
        unit="ratio",
    ),
    Condition(
        name="HandbillDecisionsSlow",
        area="serving",
        severity="critical",
        summary="One decision in a hundred takes longer than {value}",
        description="Pages wait for their banners. Look at the load of the machine and of Redis, and at `handbill "
        "doctor`.",
        test=Both(
            Compare(Quantile("handbill_api_seconds", 0.99, 60, _DECIDING), ">", 0.5),
            Compare(Increase("handbill_api_seconds_count", 60, (), _DECIDING), ">=", 20),
        ),
        for_s=30,
        unit="seconds",
    ),
    Condition(
        name="HandbillRequestsSlow",
        area="serving",
        severity="warning",
        summary="One request in twenty takes longer than {value}",
        description="Over all routes, for ten minutes. The dashboard shows which route; PostgreSQL and ClickHouse "
        "come first.",
        test=Both(
            Compare(Quantile("handbill_api_seconds", 0.95, 300), ">", 2.5),
            Compare(Increase("handbill_api_seconds_count", 300), ">=", 50),
        ),
        for_s=300,
        unit="seconds",
    ),
    Condition(
        name="HandbillDecisionsWithoutRedis",
        area="serving",
        severity="critical",
        summary="{value} decisions in 5 minutes were made without Redis",
        description="Caps are not exact meanwhile. Start Redis or make it faster: `handbill doctor` says which it is.",
        test=Compare(Increase("handbill_decide_fallback_total", 300), ">", 0),
    ),
    Condition(
        name="HandbillCatalogStale",
        area="serving",
        severity="critical",
        summary="An API process serves banners that are {value} old",
        description="It cannot read changes from PostgreSQL. Changed, switched off and ended banners are served as "
        "they were.",
        test=Compare(Latest("handbill_catalog_age_seconds", "max"), ">", 30),
        onset_s=30,
        for_s=10,
        unit="seconds",
    ),
    Condition(
        name="HandbillBannersLeftOut",
        area="serving",
        severity="warning",
        summary="{value} banners could not be compiled and are shown to nobody",
        description="The API's log names them (banners.banner_left_out). Saving such a banner again repairs it.",
        test=Compare(Increase("handbill_banners_left_out_total", 600), ">", 0),
    ),
    Condition(
        name="HandbillCatalogUnreadable",
        area="serving",
        severity="warning",
        summary="Stored {kind} rows could not be read {value} times",
        description="The API's log names them (catalog.row_unreadable). They are served as they were, or not at all.",
        test=Compare(Increase("handbill_catalog_unreadable_rows_total", 600, ("kind",)), ">", 0),
    ),
    Condition(
        name="HandbillGeoStale",
        area="serving",
        severity="warning",
        summary="The GeoIP file is {value} old",
        description="A new one is fetched when it is 30 days old, and that fails. Check HANDBILL_BANNERS__GEO_URL "
        "and the API's log.",
        test=Compare(Latest("handbill_geo_age_seconds", "max"), ">", 45 * 86_400),
        for_s=3_600,
        unit="seconds",
    ),
)

COUNTING = (
    Condition(
        name="HandbillJournalLag",
        area="counting",
        severity="critical",
        summary="Events wait {value} to be counted",
        description="No worker counts, or it is too slow. They are safe in the journal. Look at the workers' "
        "/health first.",
        test=Compare(Latest("handbill_journal_lag_seconds", "max"), ">", 30),
        onset_s=30,
        for_s=10,
        unit="seconds",
    ),
    Condition(
        name="HandbillJournalGap",
        area="counting",
        severity="critical",
        summary="Entries of the journal were lost before they were counted",
        description="Redis was wiped, evicted keys or failed over to an older copy. Check its persistence and "
        "maxmemory-policy.",
        test=Compare(Increase("handbill_journal_gaps_total", 600), ">", 0),
    ),
    Condition(
        name="HandbillEventsShed",
        area="counting",
        severity="critical",
        summary="{value} requests with events were refused in 5 minutes (429)",
        description="More events wait than the limit allows. Clients of ours send them again; add workers, see "
        "HandbillJournalLag.",
        test=Compare(Increase("handbill_events_shed_total", 300), ">", 0),
    ),
    Condition(
        name="HandbillJournalRefused",
        area="counting",
        severity="critical",
        summary="{value} appends to the journal were refused in 5 minutes ({why})",
        description="Requests with events were answered with 503. full: Redis is too slow; away: it does not answer.",
        test=Compare(Increase("handbill_journal_refused_total", 300, ("why",)), ">", 0),
    ),
    Condition(
        name="HandbillClicksUncounted",
        area="counting",
        severity="critical",
        summary="{value} clicks were redirected and not counted in 5 minutes ({code})",
        description="Visitors arrived, the journal did not accept the click. Run `handbill doctor`.",
        test=Compare(Increase("handbill_redirect_uncounted_total", 300, ("code",)), ">", 0),
    ),
    Condition(
        name="HandbillEventsParked",
        area="counting",
        severity="warning",
        summary="{value} events were parked in 15 minutes ({reason})",
        description="They are kept with their bytes and not counted. `handbill events parked --help` shows how to "
        "list and replay them.",
        test=Compare(Increase("handbill_events_parked_total", 900, ("reason",)), ">", 0),
    ),
    Condition(
        name="HandbillStatsWrong",
        area="counting",
        severity="warning",
        summary="An audit found {value} rows of the live statistics wrong",
        description="They are recounted from raw events. If it happens again, keep the worker's log and report it.",
        test=Compare(Increase("handbill_stats_audit_wrong_total", 3_600), ">", 0),
    ),
    Condition(
        name="HandbillRollupStale",
        area="counting",
        severity="warning",
        summary="The daily rollup of statistics is {value} days behind",
        description="Raw rows are not removed before they are rolled up, so the database grows. See `handbill dead "
        "ls`.",
        test=Compare(Latest("handbill_rollup_stale_days", "max"), ">", 2),
        for_s=600,
    ),
)

EXPORT = (
    Condition(
        name="HandbillExportDelayed",
        area="export",
        severity="critical",
        summary="Counted events wait {value} for ClickHouse",
        description="Insights are behind; counts are not. Check ClickHouse (`handbill doctor`) and the exporter in "
        "the worker's log.",
        test=Compare(Latest("handbill_events_unshipped_seconds", "max"), ">", 30),
        onset_s=30,
        for_s=10,
        unit="seconds",
    ),
    Condition(
        name="HandbillExportLost",
        area="export",
        severity="critical",
        summary="{value} counted events were lost before ClickHouse had them",
        description="The journal no longer has them. Counts are right, insights lack them: `handbill events lost` "
        "lists them.",
        test=Compare(Increase("handbill_events_shipping_lost_total", 3_600), ">", 0),
    ),
    Condition(
        name="HandbillExportRowsLost",
        area="export",
        severity="critical",
        summary="ClickHouse lost {value} rows that it had accepted",
        description="The journal no longer has them. Check ClickHouse's disks and restarts; `handbill events lost` "
        "lists them.",
        test=Compare(Increase("handbill_export_rows_lost_total", 3_600), ">", 0),
    ),
    Condition(
        name="HandbillExportRowsMissing",
        area="export",
        severity="warning",
        summary="ClickHouse did not have {value} rows that it had accepted",
        description="They are exported again. If it goes on, check ClickHouse's restarts and the durability of its "
        "inserts.",
        test=Compare(Increase("handbill_export_rows_missing_total", 3_600), ">", 0),
    ),
    Condition(
        name="HandbillExportRowsDoubled",
        area="export",
        severity="warning",
        summary="ClickHouse has {value} rows more often than once",
        description="Insights count them twice until its tables merge. Check that ClickHouse keeps its "
        "deduplication window.",
        test=Compare(Increase("handbill_export_rows_doubled_total", 3_600), ">", 0),
    ),
    Condition(
        name="HandbillExportAuditOld",
        area="export",
        severity="warning",
        summary="An exported batch has waited {value} for its second count",
        description="The journal keeps events for 10 minutes; what ClickHouse loses after that cannot be sent again.",
        test=Compare(Latest("handbill_export_audit_age_seconds", "max"), ">", 300),
        for_s=60,
        unit="seconds",
    ),
)
