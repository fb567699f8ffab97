"""The three engines run from this very installation: PostgreSQL, Redis and ClickHouse under one home directory."""

from handbill.infra.embedded.clickhouse import start_clickhouse
from handbill.infra.embedded.home import Home
from handbill.infra.embedded.postgres import start_postgres
from handbill.infra.embedded.process import Engine
from handbill.infra.embedded.redis import start_redis

__all__ = ["Engine", "Home", "start_clickhouse", "start_postgres", "start_redis"]
