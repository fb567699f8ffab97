"""The adapter and the key builder on a cluster of one node."""

from __future__ import annotations

import pytest

from handbill.infra.redis import Keys, RedisError
from handbill.infra.redis.client import opened
from tests.kit.cluster import one_node_cluster
from tests.kit.waiting import soon


async def test_keys_of_one_tag_go_together_and_others_are_refused() -> None:
    keys = Keys("hb")
    a, b = keys.tagged("caps", "7:1", "a"), keys.tagged("caps", "7:1", "b")
    async with one_node_cluster() as url, opened(url, timeout=30, cluster_allowed=True) as redis:
        assert await redis.many([("SET", a, 1), ("SET", b, 2)], atomic=True) == [b"OK", b"OK"]
        assert await redis.call("MGET", a, b) == [b"1", b"2"]
        both = redis.script("return redis.call('GET', KEYS[1]) + redis.call('GET', KEYS[2])")
        assert await both(keys=[a, b]) == 3
        elsewhere = keys.tagged("caps", "7:2", "a")
        with pytest.raises(RedisError) as refused:
            await both(keys=[a, elsewhere])
        assert refused.value.code == "CROSSSLOT"
        async with redis.subscribe(keys.channel("news")) as messages:
            await redis.call("PUBLISH", keys.channel("news"), "x")
            assert await soon(anext(messages)) == ("handbill:news", b"x")
