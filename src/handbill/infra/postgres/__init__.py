"""PostgreSQL: pools by role, one transaction per unit of work, the tenant set with the BEGIN."""

from __future__ import annotations

from handbill.infra.postgres.database import Database
from handbill.infra.postgres.errors import (
    CheckViolation,
    ForeignKeyViolation,
    PermissionDenied,
    PostgresAway,
    PostgresBusy,
    PostgresError,
    PostgresStopped,
    TransactionAborted,
    UniqueViolation,
)
from handbill.infra.postgres.hot import HotLookups, HotTimeouts
from handbill.infra.postgres.portions import repeat, walk, walk_within, work
from handbill.infra.postgres.prepare import prepare_all
from handbill.infra.postgres.tx import Session, Tx
from handbill.infra.postgres.urls import PostgresUrls, derive

__all__ = [
    "CheckViolation",
    "Database",
    "ForeignKeyViolation",
    "HotLookups",
    "HotTimeouts",
    "PermissionDenied",
    "PostgresAway",
    "PostgresBusy",
    "PostgresError",
    "PostgresStopped",
    "PostgresUrls",
    "Session",
    "TransactionAborted",
    "Tx",
    "UniqueViolation",
    "derive",
    "prepare_all",
    "repeat",
    "walk",
    "walk_within",
    "work",
]
