"""Other programs' names for our settings, in one table: old deployments start unchanged."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Alias(msgspec.Struct, frozen=True):
    """`name` stands for the setting at `path`; `values` translates the words of the old programs into ours."""

    name: str
    path: str
    values: Mapping[str, str] = {}

    def translated(self, text: str) -> str:
        """The value in our words; a word that is not in the table stays, and is checked like any other."""
        if not self.values:
            return text
        return ",".join(self.values.get(word.strip(), word.strip()) for word in text.split(","))

    @property
    def words(self) -> str:
        """What one may write under this name beside our own words, for a message; empty if nothing is translated."""
        return f" (or {', '.join(self.values)})" if self.values else ""


ALIASES: tuple[Alias, ...] = (
    Alias("DATABASE_URL", "postgres.url"),
    Alias("REDIS_URL", "redis.url"),
    Alias("CLICKHOUSE_URL", "clickhouse.url"),
    Alias("LOG_LEVEL", "log.level"),
    Alias("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.otlp_endpoint"),
    Alias("WORKER_PORT", "worker.port"),
    Alias("PROCESSOR_BACKPRESSURE_THRESHOLD", "events.backpressure_threshold"),
    Alias("BANNER_SCHEDULE_SYNC_CRON", "banners.schedule_sync_cron"),
    Alias("BANNER_STATS_ROLLUP_CRON", "banners.stats_rollup_cron"),
    Alias("RETENTION_CLEANUP_CRON", "banners.retention_cron"),
    Alias("GEOLITE2_COUNTRY_URL", "banners.geo_url"),
    Alias(
        "SERVICE_TYPE",
        "worker.only",
        {"OUTBOX": "relay", "CONSUMER": "consume", "PROCESSOR": "consume", "WORKER": "jobs", "SCHEDULER": "cron"},
    ),
)
