"""What an error reply of Redis becomes."""

from __future__ import annotations

import pytest

from handbill.infra.redis import RedisError
from handbill.infra.redis.errors import RedisBusy, from_reply
from handbill.kit.errors import Broken, EngineRefused, HandbillError

REFUSALS = {
    "OOM": "command not allowed when used memory > 'maxmemory'.",
    "READONLY": "You can't write against a read only replica.",
    "MISCONF": "Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
}


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize(
    "said",
    [
        "{code} {text}",
        "{code} {text} script: f_79762b44cd0907ea1c7a6f165b0228582258e18e, on @user_script:10.",
        "ERR Error running script (call to f_79762b44cd0907ea1c7a6f165b0228582258e18e): "
        "@user_script:10: @user_script: 10: -{code} {text}",
    ],
    ids=["alone", "in a script of Redis 7", "in a script of Redis 6"],
)
def test_redis_that_cannot_write_now_is_busy(code: str, said: str) -> None:
    assert isinstance(from_reply(said.format(code=code, text=REFUSALS[code])), RedisBusy)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("NOPERM this user has no permissions to run the 'get' command", Broken),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", RedisError),
        ("ERR unknown command 'TIME'", RedisError),
        ("ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -WRONGTYPE Operation", RedisError),
        ("ERR " + "@user_script:1: -" * 10_000, RedisError),
        ("", RedisError),
    ],
)
def test_other_refusals_are_about_the_command_or_the_login(
    said: str, kind: type[HandbillError] | type[EngineRefused]
) -> None:
    assert type(from_reply(said)) is kind
