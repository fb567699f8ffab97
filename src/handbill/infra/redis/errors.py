"""What can go wrong with Redis: away, busy, or a reply that says no."""

from __future__ import annotations

import re

from handbill.kit.errors import Broken, Busy, EngineRefused, HandbillError
from handbill.kit.telemetry import metrics

_BUSY = {
    "LOADING": "it is loading its data",
    "BUSY": "a script is running",
    "OOM": "its memory is full",
    "MISCONF": "it cannot write to its disk",
    "READONLY": "it is a replica",
    "MASTERDOWN": "its master is down",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "slots are moving",
    "NOREPLICAS": "too few replicas are up",
}
_LOGIN = frozenset({"WRONGPASS", "NOAUTH", "NOPERM"})
# What Redis before 7.0 says when a command inside a script is refused: "ERR Error running script (call to f_...):
# @user_script:10: @user_script: 10: -READONLY You can't write against a read only replica."
_WRAPPING_MAX = 300
_IN_SCRIPT = re.compile(r"@user_script: ?[0-9]{1,9}: -([A-Z]{1,20}) ")


class RedisAway(Busy):
    """No connection, or it broke. `maybe_done`: the command had been handed over, so it may have run."""

    code = "REDIS_AWAY"

    def __init__(self, detail: str, *, maybe_done: bool = False) -> None:
        super().__init__(detail, retry_after=1.0)
        self.maybe_done = maybe_done


class RedisBusy(Busy):
    """Redis answers, but cannot do it now; or too many of our own calls wait for it. Nothing was done."""

    code = "REDIS_BUSY"


class RedisCluster(Broken):
    """The address is a node of a Redis Cluster. We follow no redirections: keys of other nodes could not be reached."""

    code = "REDIS_CLUSTER"

    def __init__(self, address: object) -> None:
        super().__init__(
            f"Redis at {address} runs in cluster mode (cluster_enabled:1), which is not supported; nothing was done "
            "there. Set HANDBILL_REDIS__URL to a single primary, with replicas if you like."
        )


class RedisError(EngineRefused):
    """An error reply: `code` is its first word (WRONGTYPE, NOSCRIPT, CROSSSLOT, ERR)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def from_reply(text: str) -> RedisError | HandbillError:
    """The error for an error reply, also of a command inside a script."""
    code = text.partition(" ")[0].rstrip(":")
    if code == "ERR" and (inner := _IN_SCRIPT.search(text, 0, _WRAPPING_MAX)) is not None:
        code = inner[1]
    metrics.REDIS_ERRORS.labels(code if code.isupper() and len(code) < 20 else "ERR").inc()
    if code in _BUSY:
        return RedisBusy(f"Redis cannot do it now: {_BUSY[code]}; nothing was done, try again.", retry_after=1.0)
    if code in _LOGIN:
        return Broken(f"Redis refused the login ({code}). Check the URL, its user and password.", code="REDIS_LOGIN")
    return RedisError(code, text)
