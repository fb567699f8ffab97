"""Redis over one coalescing connection per process, with dedicated ones for what blocks or listens."""

from __future__ import annotations

from handbill.infra.redis.client import Redis, Script, refuse_cluster
from handbill.infra.redis.dedicated import Connection
from handbill.infra.redis.errors import RedisAway, RedisBusy, RedisCluster, RedisError
from handbill.infra.redis.keys import Keys
from handbill.infra.redis.line import Command, Word
from handbill.infra.redis.subscriber import SubscriptionTask

__all__ = [
    "Command", "Connection", "Keys", "Redis", "RedisAway", "RedisBusy", "RedisCluster", "RedisError", "Script",
    "SubscriptionTask", "Word", "refuse_cluster",
]  # fmt: skip
