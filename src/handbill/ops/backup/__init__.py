"""Backup and restore: one directory or tar with a manifest, taken on a busy stack, checked before it is used.

Order matters. Redis is copied first, then PostgreSQL's moment is fixed, then ClickHouse is read: a job or journal entry
that finished in between is in Redis as unfinished and in PostgreSQL as done, and doing it again changes nothing.
The other way round it could be finished in Redis and never have happened in PostgreSQL.
"""

from handbill.ops.backup.restore import restore
from handbill.ops.backup.take import backup

__all__ = ["backup", "restore"]
